//! One machine, booted by hand: the test plays the host's part of the conversation.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use greenroom_providers::qemu::image::Image;

/// The time for everything that an emulated machine on a busy host has to get done.
const PATIENCE: Duration = Duration::from_mins(10);

/// A machine that runs under QEMU until this is dropped.
pub(crate) struct Machine {
    qemu: Child,
    dir: tempfile::TempDir,
    to: UnixStream,
    from: BufReader<UnixStream>,
    port: u16,
}

/// The identity that a machine is given.
pub(crate) struct Identity {
    pub(crate) hostname: &'static str,
    pub(crate) machine_id: String,
    /// 64 bytes.
    pub(crate) seed: &'static str,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended already.
        self.qemu.kill().ok();
        self.qemu.wait().ok();
    }
}

impl Machine {
    /// Starts one on a copy of the image's disk, up to its greeting.
    pub(crate) fn boot(image: &Image, greeting: &str) -> Self {
        let disk = format!("file={},snapshot=on", image.rootfs().display());
        Self::boot_from(image, &disk, tempfile::tempdir().expect("a folder"), greeting)
    }

    /// Starts a machine like [`boot`](Self::boot), on a larger disk.
    pub(crate) fn boot_with_disk(image: &Image, bytes: u64, greeting: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let copy = dir.path().join("disk.img");
        let mut cp = Command::new("cp");
        cp.args(["--sparse=always", "--no-preserve=mode"]).arg(image.rootfs()).arg(&copy);
        assert!(cp.status().expect("cp").success());
        let file = std::fs::OpenOptions::new().write(true).open(&copy).expect("the copy");
        file.set_len(bytes).expect("a larger file");
        Self::boot_from(image, &format!("file={}", copy.display()), dir, greeting)
    }

    fn boot_from(image: &Image, disk: &str, dir: tempfile::TempDir, greeting: &str) -> Self {
        for name in ["host", "client"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(dir.path().join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let qemu = start(image, disk, dir.path());
        // QEMU waits for this connection before the machine begins.
        let to = connect(&dir.path().join("agent"));
        to.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let from = BufReader::new(to.try_clone().expect("a second end"));
        let port = forwarded(&dir.path().join("qmp"));
        let mut machine = Self { qemu, dir, to, from, port };
        assert_eq!(machine.hear(), greeting, "{}", machine.console());
        machine
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the machine listens");
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the machine answers in time");
        line.trim_end().to_owned()
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.hear()
    }

    /// Tells it everything, and GO; it must be ready.
    pub(crate) fn become_one(&mut self, identity: &Identity) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        self.say(&format!("TIME {}", now.as_nanos()));
        self.say(&format!("SEED {}", identity.seed));
        self.say(&format!("HOSTNAME {}", identity.hostname));
        self.say(&format!("MACHINE-ID {}", identity.machine_id));
        let key = base64(&self.dir.path().join("host"));
        self.say(&format!("HOST-KEY {key}"));
        let client = self.text("client.pub");
        self.say(&format!("AUTHORIZED-KEY {client}"));
        assert_eq!(self.ask("GO"), "READY", "{}", self.console());
    }

    /// The host key that it was given.
    pub(crate) fn host_key(&self) -> String {
        self.text("host.pub")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).expect("a file").trim_end().to_owned()
    }

    pub(crate) fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join("console")).unwrap_or_default())
            .into_owned()
    }

    /// Runs a command over SSH; no other host key than this one is accepted.
    pub(crate) fn ssh(&self, host_key: &str, command: &str) -> Output {
        let known = self.dir.path().join("known");
        std::fs::write(&known, format!("[127.0.0.1]:{} {host_key}\n", self.port)).expect("known hosts");
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]);
        // A machine that hangs ends the test, not the patience of whoever runs it.
        ssh.args(["-o", "ServerAliveInterval=20"]);
        ssh.args(["-o", "ConnectTimeout=60", "-o", &format!("UserKnownHostsFile={}", known.display())]);
        ssh.arg("-i").arg(self.dir.path().join("client")).args(["-p", &self.port.to_string()]);
        ssh.args(["root@127.0.0.1", command]).stdin(Stdio::null()).output().expect("ssh")
    }

    /// The output of a command that succeeds.
    pub(crate) fn says(&self, command: &str) -> String {
        let output = self.ssh(&self.host_key(), command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {}: {error}{}", output.status, self.console());
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Does an SSH server greet whoever connects? QEMU takes every connection, so only words count.
    pub(crate) fn greets(&self) -> bool {
        let stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).expect("QEMU listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).is_ok_and(|_| line.starts_with("SSH-2.0-"))
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("the machine ends", || self.qemu.try_wait().expect("our child"))
    }
}

fn start(image: &Image, disk: &str, dir: &Path) -> Child {
    let console = format!("file:{}", dir.join("console").display());
    let agent = format!("socket,id=agent,server=on,wait=on,path={}", dir.join("agent").display());
    let qmp = format!("unix:{},server=on,wait=off", dir.join("qmp").display());
    let disk = format!("{disk},format=raw,if=none,id=disk,cache=unsafe");
    let line = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on net.ifnames=0 mitigations=off nokaslr \
         no_timer_check";
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "256M", "-nodefaults", "-no-reboot"]);
    qemu.args(["-display", "none", "-serial", &console, "-qmp", &qmp, "-append", line]);
    qemu.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(image.initrd());
    qemu.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"]);
    qemu.args(["-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"]);
    qemu.args(["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"]);
    qemu.args(["-device", "virtio-serial-pci", "-chardev", &agent]);
    qemu.args(["-device", "virtserialport,chardev=agent,name=greenroom.0"]);
    qemu.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("QEMU is installed")
}

fn connect(path: &PathBuf) -> UnixStream {
    until("QEMU opens its socket", || UnixStream::connect(path).ok())
}

/// The port of this machine that leads to the guest's SSH server, as QEMU tells it.
fn forwarded(qmp: &Path) -> u16 {
    let mut to = connect(&qmp.to_owned());
    to.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut lines = BufReader::new(to.try_clone().expect("a second end")).lines();
    let ask = r#"{"execute":"human-monitor-command","arguments":{"command-line":"info usernet"}}"#;
    writeln!(to, r#"{{"execute":"qmp_capabilities"}}"#).expect("QEMU listens");
    writeln!(to, "{ask}").expect("QEMU listens");
    let answer = lines.find_map(|line| line.ok().filter(|line| line.contains("HOST_FORWARD")));
    let answer = answer.expect("QEMU tells of its network");
    let after = answer.split("127.0.0.1").nth(1).expect("a forwarded address");
    after.split_whitespace().next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Asks again and again; what has not come in time never will.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn base64(path: &Path) -> String {
    let output = Command::new("base64").arg("-w0").arg(path).output().expect("base64");
    String::from_utf8(output.stdout).expect("text")
}
