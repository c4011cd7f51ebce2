//! The conversation with the host.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::identity::Parts;
use crate::naming;
use crate::network;
use crate::port::Port;
use crate::protocol::{Answer, Order};
use crate::say;
use crate::script::Script;
use crate::ssh::{self, Server};
use crate::store;
use crate::sys::{self, End};

/// Written when the image was built: flavour and SSH server, two words.
const IMAGE: &str = "/usr/lib/greenroom/image";

/// An SSH server that does not listen after so long will not.
const LISTENS_WITHIN: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(5);

/// What a job runs first, once, so that it lies in memory when a snapshot is taken.
const WARM_UP: &str = "git --version; git-lfs --version; curl --version; gitlab-runner --version; date; id";

/// What an image adds to that.
const OWN_WARM_UP: &str = "/usr/lib/greenroom/warm-up";

/// What the image says of itself.
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

    /// Lets people in; returns when the server listens.
    fn start_ssh() -> io::Result<()> {
        ssh::release()?;
        let deadline = Instant::now() + LISTENS_WITHIN;
        while !ssh::is_listening() {
            if Instant::now() >= deadline {
                return Err(io::Error::other("the SSH server does not listen; read the console"));
            }
            sleep(LOOK);
        }
        Ok(())
    }

    fn warm_up(&self) -> io::Result<()> {
        // A tool that is not in the image is no obstacle.
        ssh::quiet(Command::new("bash").args(["-lc", WARM_UP])).ok();
        if Path::new(OWN_WARM_UP).exists()
            && let Err(error) = ssh::quiet(&mut Command::new(OWN_WARM_UP))
        {
            // It saves jobs time; they do without.
            say(&format!("{OWN_WARM_UP}: {error}"));
        }
        self.server.warm_up()?;
        sys::sync_disks();
        Ok(())
    }
}

/// Hears orders and carries them out, for as long as the machine runs.
pub(crate) fn agent() -> io::Result<()> {
    let image = Image::read()?;
    fs::create_dir_all(Path::new(ssh::RUN)).map_err(naming(ssh::RUN))?;
    network::bring_up()?;
    let mut port = Port::open()?;
    port.say(&Answer::Hello { flavour: image.flavour.clone(), ssh: image.server.name().to_owned() })?;
    let mut heard = Heard::default();
    loop {
        let outcome = match port.hear()? {
            Ok(line) => Order::parse(&line)
                .and_then(|order| carry_out(order, &image, &mut heard, &mut |answer| port.say(answer))),
            Err(problem) => Err(problem),
        };
        let answer = outcome.unwrap_or_else(|problem| {
            say(&problem);
            Some(Answer::Failed(problem))
        });
        if let Some(answer) = answer {
            port.say(&answer)?;
        }
    }
}

/// What orders have brought that a later one uses.
#[derive(Default)]
struct Heard {
    parts: Parts,
    script: Script,
}

fn carry_out(
    order: Order,
    image: &Image,
    heard: &mut Heard,
    tell: &mut dyn FnMut(&Answer) -> io::Result<()>,
) -> Result<Option<Answer>, String> {
    let failed = |error: io::Error| error.to_string();
    match order {
        Order::Ping(what) => Ok(Some(Answer::Pong(what))),
        Order::WarmUp => image.warm_up().map(|()| Some(Answer::Warm)).map_err(failed),
        Order::ImageStore => store::mount().map(|()| Some(Answer::Stored)).map_err(failed),
        Order::Script(part) => {
            heard.script.add(&part);
            Ok(None)
        }
        Order::Run => {
            let script = std::mem::take(&mut heard.script);
            let each = |line| tell(&Answer::Said(line));
            script.run(heard.parts.proxy(), each).map(|()| Some(Answer::Ran)).map_err(failed)
        }
        Order::Go => {
            let identity = std::mem::take(&mut heard.parts).complete()?;
            identity.assume(image.server).and_then(|()| Image::start_ssh()).map_err(failed)?;
            Ok(Some(Answer::Ready))
        }
        Order::PowerOff => Err(sys::end_machine(End::PowerOff).to_string()),
        part => {
            heard.parts.keep(part);
            Ok(None)
        }
    }
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
        let mut heard = Heard::default();
        let mut order = |order| carry_out(order, &image, &mut heard, &mut |_| Ok(()));
        assert_eq!(order(Order::Hostname("a".to_owned())), Ok(None));
        assert_eq!(order(Order::Go), Err("GO without TIME".to_owned()));
        assert_eq!(order(Order::Ping("7".to_owned())), Ok(Some(Answer::Pong("7".to_owned()))));
    }
}
