//! Kind: OpenSSH 9.8 and later penalizes an address for connections without a login and for denied logins.
//!
//! The server is OpenSSH 10 of Debian trixie, in a directory of its own. It is unpacked once, into `state/`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::endpoint::{Endpoint, Jump, LoginKey};
use greenroom_core::ids::InstanceId;
use greenroom_core::obstacle::{Cause, Lasting, Obstacle};
use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::connector::{ConnectError, Connector};
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::skipped::skipped;
use tokio::time::sleep;

use crate::linked::sshd::{Sshd, write_private};
use crate::linked::support::{kill, linked_through};

const WITHIN: Duration = Duration::from_secs(10);
/// OpenSSH locks an address out when it has penalties of 15 s; a connection without a login costs one.
const LINKS: usize = 20;

/// The directory with OpenSSH 10 and what its logins need; `None`: it cannot be made here.
fn trixie() -> Option<PathBuf> {
    if !rustix::process::getuid().is_root() {
        skipped("this is not root");
        return None;
    }
    let parent = Path::new(env!("CARGO_MANIFEST_DIR")).join("state/test-openssh");
    fs::create_dir_all(&parent).unwrap();
    // Several tests make it only once.
    let lock = fs::File::create(parent.join("lock")).unwrap();
    lock.lock().unwrap();
    let (tree, made) = (parent.join("trixie"), parent.join("made"));
    if made.exists() {
        return Some(tree);
    }
    let _half_made = fs::remove_dir_all(&tree);
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args([
        "--quiet",
        "--variant=extract",
        "--include=openssh-server,bash,coreutils,dash",
        "trixie",
    ]);
    let output = mmdebstrap.arg(&tree).stdin(Stdio::null()).output();
    if !output.is_ok_and(|output| output.status.success()) {
        skipped("OpenSSH 10 needs mmdebstrap and a mirror of Debian");
        return None;
    }
    // What the packages' scripts would make.
    for folder in ["bin", "sbin", "lib", "lib64"] {
        if tree.join("usr").join(folder).exists() && !tree.join(folder).exists() {
            symlink(format!("usr/{folder}"), tree.join(folder)).unwrap();
        }
    }
    if !tree.join("usr/bin/sh").exists() {
        symlink("dash", tree.join("usr/bin/sh")).unwrap();
    }
    for folder in ["run/sshd", "root", "proc", "mnt"] {
        fs::create_dir_all(tree.join(folder)).unwrap();
    }
    let accounts = "root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n";
    fs::write(tree.join("etc/passwd"), accounts).unwrap();
    fs::write(tree.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n").unwrap();
    fs::write(&made, "").unwrap();
    Some(tree)
}

/// OpenSSH 10 with the keys of instance `jump`.
struct Server {
    child: Child,
    dir: tempfile::TempDir,
    ssh: Ssh,
    settings: SshSettings,
    id: InstanceId,
    at: Endpoint,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The namespace's first process takes the others with it.
        kill(self.child.id());
        let _waited = self.child.wait();
    }
}

impl Server {
    async fn start(tree: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = SshSettings::new(dir.path().join("keys"));
        let ssh = Ssh::new(settings.clone());
        let id = InstanceId::new("jump");
        let keys = ssh.keys(&id).await.unwrap();
        write_private(&dir.path().join("host_key"), &keys.host_key);
        write_private(&dir.path().join("authorized_keys"), &format!("{}\n", keys.authorized_key));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey /mnt/host_key\nAuthorizedKeysFile /mnt/authorized_keys\n\
             StrictModes no\nPidFile none\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPrintMotd no\nPrintLastLog no\nLogLevel VERBOSE\n"
        );
        fs::write(dir.path().join("sshd_config"), config).unwrap();
        let script = "mount --make-rprivate / && mount --bind \"$1\" \"$0/mnt\" && mount -t proc own \"$0/proc\" && \
                      mount --bind /dev \"$0/dev\" && exec chroot \"$0\" /usr/sbin/sshd -D -e -f /mnt/sshd_config";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
        let mut child =
            command.arg(tree).arg(dir.path()).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut said) = (String::new(), String::new());
        while !line.contains("Server listening on") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server does not start: {said}");
            said.push_str(&line);
        }
        let mut file = fs::File::create(dir.path().join("log")).unwrap();
        std::thread::spawn(move || std::io::copy(&mut log, &mut file));
        let at = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
            user: "root".to_owned(),
            host_key: keys.host_key_public,
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        Self { child, dir, ssh, settings, id, at }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("keys/jump/client_key")
    }
}

/// A pool of many hosts behind one jump host: each job begins with a new link.
#[tokio::test]
async fn a_jump_host_with_openssh_10_lets_each_of_many_new_links_through() {
    let Some(tree) = trixie() else { return };
    let (jump, guest) = (Server::start(&tree).await, Sshd::start().await);
    let way = Jump {
        address: "127.0.0.1".to_owned(),
        port: jump.at.port,
        user: "root".to_owned(),
        host_key: jump.at.host_key.clone(),
        key: LoginKey::File(jump.key()),
    };
    let at = Endpoint { jump: Some(Box::new(way)), ..guest.at.clone() };
    let linked = linked_through(&guest.settings, &guest.path("many"));
    for link in 0..LINKS {
        let checked = linked.check(&guest.id, &at, WITHIN).await;
        checked.unwrap_or_else(|error| panic!("link {link}: {error}: {}", jump.log()));
        linked.disconnect(&guest.id).await;
    }
    assert!(!jump.log().contains("penalty"), "{}", jump.log());
}

/// A host with OpenSSH 10, to whose links the same happens.
#[tokio::test]
async fn a_host_with_openssh_10_lets_each_of_many_new_links_in() {
    let Some(tree) = trixie() else { return };
    let host = Server::start(&tree).await;
    let linked = linked_through(&host.settings, &host.dir.path().join("many"));
    for link in 0..LINKS {
        // As the keeper does with an instance that has been ready.
        linked.has_answered(&host.id);
        let checked = linked.check(&host.id, &host.at, WITHIN).await;
        checked.unwrap_or_else(|error| panic!("link {link}: {error}: {}", host.log()));
        linked.disconnect(&host.id).await;
    }
    assert!(!host.log().contains("penalty"), "{}", host.log());
}

/// A booting machine gets the key of the login late: the pauses between the denied logins keep it from locking Greenroom out.
#[tokio::test]
async fn a_machine_with_openssh_10_that_denies_the_login_for_a_while_is_not_provoked() {
    let Some(tree) = trixie() else { return };
    let machine = Server::start(&tree).await;
    let own = fs::read_to_string(machine.dir.path().join("authorized_keys")).unwrap();
    write_private(&machine.dir.path().join("authorized_keys"), "");
    let linked = linked_through(&machine.settings, &machine.dir.path().join("denied"));
    let at = Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
    let mut lasting: Option<Lasting> = None;
    for _ in 0..5 {
        let error = linked.check(&machine.id, &machine.at, WITHIN).await.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}: {}", machine.log());
        let obstacle = Obstacle { cause: Cause::LoginDenied, at: String::new(), detail: String::new() };
        let next = Lasting::next(lasting.as_ref(), obstacle, at);
        sleep(next.pause(Duration::from_secs(1))).await;
        lasting = Some(next);
    }
    write_private(&machine.dir.path().join("authorized_keys"), &own);
    linked.check(&machine.id, &machine.at, WITHIN).await.unwrap();
    linked.disconnect(&machine.id).await;
}

/// An operator's own tries have locked the runner host out: the error names that, and a job waits as long as it may.
#[tokio::test]
async fn a_penalty_is_called_a_penalty() {
    let Some(tree) = trixie() else { return };
    let host = Server::start(&tree).await;
    // Denied logins cost 5 s each.
    let stranger = InstanceId::new("stranger");
    host.ssh.keys(&stranger).await.unwrap();
    let denied = || host.ssh.check(&stranger, &host.at, WITHIN);
    for _ in 0..20 {
        let errors = join_all([denied(), denied(), denied(), denied()]).await;
        if errors.iter().any(|error| matches!(error, Err(ConnectError::TurnedAway { .. }))) {
            break;
        }
    }
    let error = host.ssh.check(&host.id, &host.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::TurnedAway { .. }), "{error}");
    assert!(error.to_string().contains("PerSourcePenalties"), "{error}");
}
