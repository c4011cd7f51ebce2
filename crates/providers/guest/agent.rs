//! The conversation with the host, and the commands that the guest carries out for it.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::identity::{PartialIdentity, proxy_environment};
use crate::protocol::{Answer, HostCommand, Port};
use crate::ssh::{self, Server};
use crate::sys::{self, End, MS_NOATIME, MS_RDONLY};
use crate::{naming, say};

/// Written when the image was built: flavour and SSH server, two words.
const IMAGE: &str = "/usr/lib/greenroom/image";

/// An SSH server that does not listen after so long will not.
const LISTENS_WITHIN: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The first programs of a job, run once so that they are in memory when a snapshot is taken.
const WARM_UP: &str = "git --version; git-lfs --version; curl --version; gitlab-runner --version; date; id";

/// The image's own additions to [`WARM_UP`].
const OWN_WARM_UP: &str = "/usr/lib/greenroom/warm-up";

/// The image's own description, from [`IMAGE`].
pub(crate) struct Image {
    flavour: String,
    pub(crate) server: Server,
}

impl Image {
    pub(crate) fn read() -> io::Result<Self> {
        let text = fs::read_to_string(IMAGE).map_err(naming(IMAGE))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::other(format!("{IMAGE} names no flavour or no SSH server")))
    }

    fn parse(text: &str) -> Option<Self> {
        let (flavour, server) = text.trim_end().split_once(' ')?;
        Some(Self { flavour: flavour.to_owned(), server: Server::named(server)? })
    }

    /// Starts the SSH server; returns when it listens.
    fn start_ssh() -> io::Result<()> {
        ssh::release()?;
        let deadline = Instant::now() + LISTENS_WITHIN;
        while !ssh::is_listening() {
            if Instant::now() >= deadline {
                return Err(io::Error::other("the SSH server does not listen; read the console"));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn warm_up(&self) -> io::Result<()> {
        // A tool that is not in the image is no obstacle.
        ssh::quiet(Command::new("bash").args(["-lc", WARM_UP])).ok();
        if Path::new(OWN_WARM_UP).exists()
            && let Err(error) = ssh::quiet(&mut Command::new(OWN_WARM_UP))
        {
            // The warm-up only saves jobs time.
            say(&format!("{OWN_WARM_UP}: {error}"));
        }
        self.server.warm_up()?;
        sys::sync_disks();
        Ok(())
    }
}

/// Receives commands and carries them out, for as long as the machine runs.
pub(crate) fn agent() -> io::Result<()> {
    let image = Image::read()?;
    fs::create_dir_all(Path::new(ssh::RUN)).map_err(naming(ssh::RUN))?;
    bring_up_network()?;
    let mut port = Port::open()?;
    port.say(&Answer::Hello { flavour: image.flavour.clone(), ssh: image.server.name().to_owned() })?;
    let mut received = Received::default();
    loop {
        let command = port.hear()?.and_then(|line| HostCommand::parse(&line)).map_err(io::Error::other);
        let outcome = command
            .and_then(|command| carry_out(command, &image, &mut received, &mut |answer| port.say(answer)));
        let answer = outcome.unwrap_or_else(|error| {
            let problem = error.to_string();
            say(&problem);
            Some(Answer::Failed(problem))
        });
        if let Some(answer) = answer {
            port.say(&answer)?;
        }
    }
}

/// Parts that commands have brought and that a later command uses.
#[derive(Default)]
struct Received {
    parts: PartialIdentity,
    script: Script,
}

/// Carries out a command; `None`: the host expects no answer to it.
fn carry_out(
    command: HostCommand,
    image: &Image,
    received: &mut Received,
    report: &mut dyn FnMut(&Answer) -> io::Result<()>,
) -> io::Result<Option<Answer>> {
    match command {
        HostCommand::Ping(what) => return Ok(Some(Answer::Pong(what))),
        HostCommand::WarmUp => {
            image.warm_up()?;
            return Ok(Some(Answer::Warm));
        }
        HostCommand::ImageStore => {
            mount_image_store()?;
            return Ok(Some(Answer::Stored));
        }
        HostCommand::Run => {
            let script = std::mem::take(&mut received.script);
            script.run(received.parts.proxy(), |line| report(&Answer::Said(line)))?;
            return Ok(Some(Answer::Ran));
        }
        HostCommand::Go => {
            let identity = std::mem::take(&mut received.parts).complete().map_err(io::Error::other)?;
            identity.assume(image.server)?;
            Image::start_ssh()?;
            return Ok(Some(Answer::Ready));
        }
        HostCommand::PowerOff => return Err(sys::end_machine(End::PowerOff)),
        HostCommand::Script(part) => received.script.add(&part),
        part => received.parts.keep(part),
    }
    Ok(None)
}

const SHELL: &str = "/bin/sh";
/// The engine of containers keeps files there.
const HOME: &str = "/root";

/// A script of the host's, which runs before the machine has an identity; the parts that have come so far.
#[derive(Debug, Default)]
pub(crate) struct Script(Vec<u8>);

impl Script {
    pub(crate) fn add(&mut self, part: &[u8]) {
        self.0.extend(part);
    }

    /// Runs the script; `each` gets every line of its output. The script reports its failures itself: its status says
    /// nothing more.
    pub(crate) fn run(
        self,
        proxy: Option<&str>,
        mut each: impl FnMut(String) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut command = Command::new(SHELL);
        // What it writes about its own failures goes to the console.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("HOME", HOME);
        for (name, value) in proxy.into_iter().flat_map(proxy_environment) {
            command.env(name, value).env(name.to_ascii_uppercase(), value);
        }
        let mut child = command.spawn()?;
        // The shell reads all of it before the first command runs: nothing is written meanwhile.
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&self.0));
        let told = child.stdout.take().map_or(Ok(()), |stdout| {
            for line in BufReader::new(stdout).split(b'\n') {
                each(String::from_utf8_lossy(&line?).into_owned())?;
            }
            Ok(())
        });
        child.wait()?;
        sys::sync_disks();
        written.and(told)
    }
}

/// The directory in which the container engine looks for images. Empty as long as the host attaches nothing.
const IMAGE_STORE: &str = "/var/lib/greenroom/image-store";
/// The serial number by which the host marks the disk.
const SERIAL: &str = "greenroom-store";
const DISKS: &str = "/sys/block";

/// Mounts the disk with images of containers that the host may attach. A template has seen an empty one in its place.
pub(crate) fn mount_image_store() -> io::Result<()> {
    let disk = store_disk(Path::new(DISKS)).map_err(naming(DISKS))?;
    let disk = disk.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no disk for images"))?;
    fs::create_dir_all(IMAGE_STORE).map_err(naming(IMAGE_STORE))?;
    let name = disk.to_str().ok_or(io::ErrorKind::InvalidData)?;
    sys::mount_at(name, Path::new(IMAGE_STORE), "ext4", MS_RDONLY | MS_NOATIME, "")
        .map_err(naming(disk.display()))
}

/// The device that has [`SERIAL`].
fn store_disk(disks: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(disks)? {
        let entry = entry?;
        // Not every disk has one.
        let serial = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
        if serial.trim() == SERIAL {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

const INTERFACE: &str = "eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Brings loopback and the one interface up, which may be repeated. A machine may have no interface.
///
/// The network of QEMU's user mode is the same in every machine.
pub(crate) fn bring_up_network() -> io::Result<()> {
    sys::bring_up("lo").map_err(naming("lo"))?;
    if !std::path::Path::new("/sys/class/net").join(INTERFACE).exists() {
        return Ok(());
    }
    sys::set_address(INTERFACE, ADDRESS, MASK)
        .and_then(|()| sys::bring_up(INTERFACE))
        .and_then(|()| sys::set_gateway(GATEWAY))
        .map_err(naming(INTERFACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_its_flavour_and_its_server() {
        let image = Image::parse("light dropbear\n").unwrap();
        assert_eq!((image.flavour.as_str(), image.server), ("light", Server::Dropbear));
        assert!(Image::parse("light").is_none());
        assert!(Image::parse("light telnet").is_none());
    }

    #[test]
    fn parts_of_an_identity_are_not_answered() {
        let image = Image::parse("light openssh").unwrap();
        let mut received = Received::default();
        let mut answer = |command| {
            carry_out(command, &image, &mut received, &mut |_| Ok(())).map_err(|error| error.to_string())
        };
        assert_eq!(answer(HostCommand::Hostname("a".to_owned())), Ok(None));
        assert_eq!(answer(HostCommand::Go), Err("GO without TIME".to_owned()));
        assert_eq!(answer(HostCommand::Ping("7".to_owned())), Ok(Some(Answer::Pong("7".to_owned()))));
    }

    #[test]
    fn a_script_is_put_together_and_knows_the_proxy() {
        let mut script = Script::default();
        for part in ["main() { echo \"$http_proxy $NO_PROXY\"; ", "echo over; exit 3; }\nmain </dev/null\n"] {
            script.add(part.as_bytes());
        }
        let mut lines = Vec::new();
        let each = |line| {
            lines.push(line);
            Ok(())
        };
        script.run(Some("http://10.0.2.100:3128"), each).unwrap();
        assert_eq!(lines, ["http://10.0.2.100:3128 localhost,127.0.0.1,::1", "over"]);
    }

    #[test]
    fn the_disk_is_found_by_its_mark_alone() {
        let disks = std::env::temp_dir().join(format!("greenroom-disks-{}", std::process::id()));
        for (name, serial) in [("vda", None), ("vdb", Some("other")), ("vdc", Some("greenroom-store\n"))] {
            fs::create_dir_all(disks.join(name)).unwrap();
            if let Some(serial) = serial {
                fs::write(disks.join(name).join("serial"), serial).unwrap();
            }
        }
        assert_eq!(store_disk(&disks).unwrap(), Some(PathBuf::from("/dev/vdc")));
        fs::remove_dir_all(disks.join("vdc")).unwrap();
        assert_eq!(store_disk(&disks).unwrap(), None);
        fs::remove_dir_all(disks).unwrap();
    }
}
