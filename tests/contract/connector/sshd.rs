//! OpenSSH's server, for one test. With `GREENROOM_TEST_SERVER`, the server of pods (`server/main.rs`) takes its place, unless the
//! test needs lines of `sshd_config`, or passwords.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{ConnectError, Connector, Stage, StageEnd, Stop};
use greenroom_ssh::link::Linked;
use greenroom_ssh::{Ssh, SshSettings};

use super::support::{Kept, children_of, kill, linked_through, through_links};

/// Options of a test's server.
#[derive(Clone, Debug)]
pub(crate) struct Set<'a> {
    /// The command that starts the login shell; `None` is the account's own.
    pub(crate) login: Option<&'static str>,
    /// Lines of `.bashrc`, which bash reads for commands over SSH.
    pub(crate) profile: &'a str,
    /// Further lines of `sshd_config`; `DIR` stands for the server's directory.
    pub(crate) config: &'static str,
    pub(crate) linger: Duration,
    pub(crate) first_line: Duration,
    pub(crate) keepalive: Duration,
}

/// The defaults.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(20);

impl Default for Set<'_> {
    fn default() -> Self {
        Self {
            login: None,
            profile: "",
            config: "",
            linger: Duration::from_secs(10),
            first_line: Duration::from_mins(10),
            keepalive: KEEPALIVE,
        }
    }
}

/// A server with the keys of instance `guest`, and a connector that has them.
pub(crate) struct Sshd {
    child: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) settings: SshSettings,
    pub(crate) ssh: Ssh,
    linked: Linked,
    pub(crate) id: InstanceId,
    pub(crate) at: Endpoint,
    config: &'static str,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.end();
        self.child.wait().unwrap();
    }
}

impl Sshd {
    pub(crate) async fn start() -> Self {
        Self::with(Set::default()).await
    }

    pub(crate) async fn with(set: Set<'_>) -> Self {
        Self::with_variables(set, "").await
    }

    /// Starts a server. `variables`: more of them for the guest, each after a space.
    pub(crate) async fn with_variables(set: Set<'_>, variables: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let Set { linger, first_line, keepalive, .. } = set;
        let settings =
            SshSettings { linger, first_line, keepalive, ..SshSettings::new(dir.path().join("keys")) };
        let ssh = Ssh::new(settings.clone());
        let id = InstanceId::new("guest");
        let keys = ssh.keys(&id).await.unwrap();
        let host_key = dir.path().join("host_key");
        write_private(&host_key, &keys.host_key);
        if let Some(shell) = set.login {
            // For the server of pods. By this variable, bash knows that it has to read `.bashrc`.
            let line =
                format!("SSH_CLIENT=here; export SSH_CLIENT; exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"\n");
            fs::write(dir.path().join("login"), line).unwrap();
        }
        let option =
            set.login.map(|shell| format!(r#"command="exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"" "#));
        let authorized = format!("{}{}\n", option.unwrap_or_default(), keys.authorized_key);
        write_private(&dir.path().join("authorized_keys"), &authorized);
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        fs::write(home.join(".bashrc"), set.profile).unwrap();
        let (child, port, own_key) = listen(dir.path(), variables, set.config);
        let at = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
            user: account(),
            host_key: own_key.unwrap_or(keys.host_key_public),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let linked = linked_through(&settings, dir.path());
        Self { child, dir, settings, ssh, linked, id, at, config: set.config }
    }

    /// The connector under test.
    pub(crate) fn connector(&self) -> &dyn Connector {
        if through_links() { &self.linked } else { &self.ssh }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Authorizes another key.
    pub(crate) fn authorize(&self, key: &str) {
        write_private(&self.path("authorized_keys"), &format!("{key}\n"));
    }

    /// Runs logins through this line of `/bin/sh`, whatever the account's own shell is.
    pub(crate) fn login_through(&self, line: &str) {
        let login = self.path("login");
        fs::write(&login, format!("{line}\n")).unwrap();
        let key = fs::read_to_string(self.path("authorized_keys")).unwrap();
        self.authorize(&format!("command=\"exec /bin/sh {}\" {}", login.display(), key.trim()));
    }

    pub(crate) async fn run(&self, stage: Stage, stop: Stop<'_>) -> (Result<StageEnd, ConnectError>, Kept) {
        let mut kept = Kept::default();
        let end = self.connector().run(&self.id, &self.at, stage, &mut kept, stop).await;
        (end, kept)
    }

    /// Starts the server again, on another port.
    pub(crate) fn restart(&mut self) {
        self.end();
        self.child.wait().unwrap();
        let (child, port, own_key) = listen(self.dir.path(), "", self.config);
        (self.child, self.at.port) = (child, port);
        self.at.host_key = own_key.unwrap_or_else(|| self.at.host_key.clone());
    }

    /// Stops the server and all its connections.
    pub(crate) fn end(&self) {
        let sessions = children_of(self.child.id());
        kill(self.child.id());
        for session in sessions {
            kill_serving(session);
        }
    }

    /// Cuts all connections: kills the processes that serve them.
    pub(crate) fn cut(&self) {
        for session in children_of(self.child.id()) {
            kill_serving(session);
        }
    }
}

/// The process of one connection and, where it works with split privileges, the one below it; no process of a guest.
fn kill_serving(session: u32) {
    for below in children_of(session) {
        if fs::read_to_string(format!("/proc/{below}/comm")).is_ok_and(|name| name.starts_with("sshd")) {
            kill(below);
        }
    }
    kill(session);
}

/// The server's process, its port and, if it made a host key of its own, that key.
fn listen(dir: &Path, variables: &str, more: &str) -> (Child, u16, Option<String>) {
    let own =
        own_server().filter(|_| more.is_empty() && variables.is_empty() && !dir.join("shadow").exists());
    for _ in 0..10 {
        // RACE: between here and the server, another process may take the port; the server reports that, and the next port
        // is tried.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = match own {
            Some(program) => own_command(program, dir, port),
            None => sshd_command(dir, port, variables, more),
        };
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let log: Box<dyn io::Read + Send> = match child.stderr.take() {
            Some(log) => Box::new(log),
            None => Box::new(child.stdout.take().unwrap()),
        };
        let mut log = BufReader::new(log);
        let (mut line, mut said) = (String::new(), String::new());
        while log.read_line(&mut line).unwrap() > 0 {
            said.push_str(&line);
            if line.contains("Server listening on") {
                // It continues logging, so its output has to be read.
                let file = fs::File::create(dir.join("log")).unwrap();
                std::thread::spawn(move || io_copy(log, file));
                let key = said.lines().next().and_then(|first| first.strip_prefix("greenroom-host-key "));
                return (child, port, key.map(str::to_owned));
            }
            line.clear();
        }
        child.wait().unwrap();
        assert!(said.contains("in use"), "the server does not start: {said}");
    }
    panic!("no port to be had");
}

/// The server of pods, if these tests are to run on it.
pub(crate) fn own_server() -> Option<&'static str> {
    std::env::var_os("GREENROOM_TEST_SERVER")?;
    let program = option_env!("CARGO_BIN_EXE_greenroom-server").filter(|_| cfg!(feature = "server"));
    Some(program.expect("the program has to be built: `--features server`"))
}

/// The command that starts the server of pods. Its configuration cannot name another shell: a script takes the shell's
/// place.
fn own_command(program: &str, dir: &Path, port: u16) -> Command {
    let (shell, at) = (dir.join("shell"), dir.display());
    let script = format!(
        "#!/bin/sh\nHOME={at}/home; export HOME\n[ -e {at}/login ] || exec /bin/sh -c \"$2\"\n\
         SSH_ORIGINAL_COMMAND=$2; export SSH_ORIGINAL_COMMAND; exec /bin/sh {at}/login\n"
    );
    write_private(&shell, &script);
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let key = fs::read_to_string(dir.join("authorized_keys")).unwrap();
    let key = &key[key.find("ssh-").unwrap()..];
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    for (name, value) in
        [("LISTEN", "127.0.0.1"), ("PORT", &port.to_string()), ("USER", &account()), ("AUTHORIZED_KEY", key)]
    {
        command.env(format!("GREENROOM_{name}"), value);
    }
    command.env("GREENROOM_SHELL", shell).stdout(Stdio::piped());
    command
}

fn sshd_command(dir: &Path, port: u16, variables: &str, more: &str) -> Command {
    let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"]
        .into_iter()
        .find(|p| Path::new(p).exists());
    let sshd = sshd.expect("these tests need OpenSSH's server: `apt-get install openssh-server`");
    if rustix::process::getuid().is_root() {
        // The chroot of its unprivileged half, which the service's unit makes at boot.
        fs::create_dir_all("/run/sshd").unwrap();
    }
    let at = dir.display();
    let shadow = dir.join("shadow").exists();
    let passwords = if shadow { "yes" } else { "no" };
    let more = more.replace("DIR", &at.to_string());
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host_key\nAuthorizedKeysFile {at}/authorized_keys\n\
         StrictModes no\nPidFile none\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication {passwords}\n\
         KbdInteractiveAuthentication no\nPrintMotd no\nSetEnv HOME={at}/home{variables}\nLogLevel VERBOSE\n{more}\n"
    );
    fs::write(dir.join("sshd_config"), config).unwrap();
    let mut command = if shadow { with_shadow(dir, sshd) } else { Command::new(sshd) };
    command.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config")).stderr(Stdio::piped());
    command
}

/// Starts a program in a namespace where `shadow` of the directory is the machine's.
fn with_shadow(dir: &Path, program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/shadow && exec \"$@\""]);
    command.arg(dir.join("shadow")).arg(program);
    command
}

fn io_copy(mut from: impl std::io::Read, mut to: fs::File) {
    std::io::copy(&mut from, &mut to).unwrap();
}

pub(crate) fn account() -> String {
    let id = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(id.stdout).unwrap().trim().to_owned()
}

pub(crate) fn write_private(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}
