//! The server of pods (`server/main.rs`) as the first process of a container: what it does beside serving stages.
//!
//! `the_connectors_contract_holds_on_it` runs the suite of `connector/` on it, where it takes the place of sshd.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{ConnectError, Connector as _, StageEnd};
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::skipped::skipped;
use rustix::process::{Pid, Signal, getuid, kill_process};

use crate::connector::sshd::account;
use crate::connector::support::{Kept, children_of, eventually, kill, never, stage};

pub(crate) const WITHIN: Duration = Duration::from_secs(20);
/// Cargo names it also where it does not build it.
const PROGRAM: Option<&str> =
    if cfg!(feature = "server") { option_env!("CARGO_BIN_EXE_greenroom-server") } else { None };

/// A server, and a connector that has its keys.
pub(crate) struct Server {
    child: Child,
    log: BufReader<ChildStdout>,
    pub(crate) ssh: Ssh,
    pub(crate) id: InstanceId,
    pub(crate) at: Endpoint,
    dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in children_of(self.child.id()) {
            kill(process);
        }
        kill(self.child.id());
        self.child.wait().unwrap();
    }
}

impl Server {
    /// Starts the server of pods; `None`: these tests were built without the program.
    pub(crate) async fn start(variables: &[(&str, &str)]) -> Option<Self> {
        Self::started_by(&[], variables).await
    }

    async fn started_by(before: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let Some(program) = PROGRAM else {
            skipped("these tests were built without `greenroom-server`: use `--features server`");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let ssh = Ssh::new(SshSettings::new(dir.path().join("keys")));
        let id = InstanceId::new("pod");
        let key = ssh.keys(&id).await.unwrap().authorized_key;
        let user = variables.iter().find(|(name, _)| *name == "GREENROOM_USER");
        let user = user.map_or_else(account, |(_, user)| (*user).to_owned());
        for _ in 0..10 {
            // RACE: as in sshd.rs.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let words: Vec<&str> = before.iter().copied().chain([program]).collect();
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
            command.env("GREENROOM_AUTHORIZED_KEY", &key).env("GREENROOM_USER", &user);
            command.env("GREENROOM_LISTEN", "127.0.0.1").env("GREENROOM_PORT", port.to_string());
            command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut log = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            let Some(host_key) = line.trim_end().strip_prefix("greenroom-host-key ") else {
                child.wait().unwrap();
                assert!(line.contains("in use"), "its first line is its host key: {line}");
                continue;
            };
            let at = Endpoint {
                address: "127.0.0.1".to_owned(),
                port,
                user,
                host_key: host_key.to_owned(),
                key: None,
                jump: None,
                forward: None,
                metadata: None,
            };
            return Some(Self { child, log, ssh, id, at, dir });
        }
        unreachable!("ten ports in a row were taken");
    }

    pub(crate) async fn run(&self, script: &str) -> (Result<StageEnd, ConnectError>, Kept) {
        let mut kept = Kept::default();
        let end = self.ssh.run(&self.id, &self.at, stage(Shell::Sh, script), &mut kept, never()).await;
        (end, kept)
    }

    async fn said(&self, script: &str) -> String {
        let (end, kept) = self.run(script).await;
        assert_eq!(end.unwrap(), StageEnd::Exited(0), "{kept:?}");
        kept.out()
    }

    /// The exit status of the server, and the rest of its log.
    fn end(&mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

#[test]
fn the_connectors_contract_holds_on_it() {
    if PROGRAM.is_none() {
        skipped("these tests were built without `greenroom-server`: use `--features server`");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["connector::guest", "connector::stopping", "connector::unbegun", "--test-threads=4"]);
    let output = command.env("GREENROOM_TEST_SERVER", "1").stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && !printed.contains("ok. 0 passed"), "{printed}");
}

#[tokio::test]
async fn it_ends_non_zero_on_sigterm_and_at_the_end_of_its_lifetime() {
    let Some(mut server) = Server::start(&[]).await else { return };
    server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap();
    let pid = Pid::from_child(&server.child);
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(server.end().0.code(), Some(143));
    let Some(mut server) = Server::start(&[("GREENROOM_LIFETIME", "1")]).await else { return };
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(3));
    assert!(log.ends_with("greenroom: the lifetime of the pod is over\n"), "{log}");
}

#[tokio::test]
async fn it_lets_in_one_key_and_one_user() {
    let Some(mut server) = Server::start(&[]).await else { return };
    let stranger = InstanceId::new("stranger");
    server.ssh.keys(&stranger).await.unwrap();
    let error = server.ssh.check(&stranger, &server.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap();
    server.at.user = "somebody-else".to_owned();
    let error = server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn a_session_has_the_containers_environment_and_nothing_of_ours() {
    let own = [("KUBERNETES_PORT", "x"), ("HOSTNAME", "x"), ("TERM", "x"), ("HOME", "/x")];
    let given = [("CARGO_HOME", "/opt/it's \"cargo\""), ("LANG", "de_DE.UTF-8")];
    let Some(server) = Server::start(&[&own[..], &given].concat()).await else { return };
    let said = server.said("env; pwd\n").await;
    let lines: Vec<&str> = said.lines().collect();
    for line in ["CARGO_HOME=/opt/it's \"cargo\"", "LANG=de_DE.UTF-8", &format!("USER={}", account())] {
        assert!(lines.contains(&line), "{said}");
    }
    let foreign = |line: &&&str| {
        ["GREENROOM_", "KUBERNETES_", "HOSTNAME=", "TERM="].iter().any(|own| line.starts_with(own))
    };
    assert_eq!(lines.iter().find(foreign), None);
    let home = lines.iter().find_map(|line| line.strip_prefix("HOME=")).unwrap();
    assert_eq!(lines.last(), Some(&home));
}

#[tokio::test]
async fn an_image_without_the_shell_says_so_with_status_127() {
    let Some(server) = Server::start(&[("GREENROOM_SHELL", "/no/sh")]).await else { return };
    let error = server.ssh.check(&server.id, &server.at, WITHIN).await.unwrap_err().to_string();
    assert!(
        error.contains("127") && error.contains("the image cannot run jobs: it has no /no/sh"),
        "{error}"
    );
    let (end, _) = server.run("true\n").await;
    let error = end.unwrap_err().to_string();
    assert!(error.contains("the session ended with exit status 127 before the script began"), "{error}");
}

#[tokio::test]
async fn it_becomes_the_user_before_it_reads_a_byte() {
    if !getuid().is_root() {
        return skipped("only root can take another user's identity");
    }
    let Some(server) = Server::start(&[("GREENROOM_USER", "nobody")]).await else { return };
    let said = server.said("id -u; id -un; cat /proc/$PPID/environ >/dev/null && echo read; pwd\n").await;
    assert_eq!(said, "65534\nnobody\n/\n", "{said}");
    // A connection that has not said anything.
    let before = children_of(server.child.id());
    let silent = std::net::TcpStream::connect(("127.0.0.1", server.at.port)).unwrap();
    let uid_of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("Uid:")).map(|line| line.trim().starts_with("65534"))
    };
    let of_the_user = || {
        children_of(server.child.id()).iter().any(|pid| !before.contains(pid) && uid_of(pid) == Some(true))
    };
    eventually("its process is the user's", of_the_user).await;
    drop(silent);
}

#[tokio::test]
async fn it_stays_the_user_that_the_container_started_as() {
    if !getuid().is_root() {
        return skipped("only root can take another user's identity");
    }
    // That user need not see the directory of the program.
    let script = "exec 9<\"$0\"; exec setpriv --reuid=12345 --regid=12345 --clear-groups /proc/self/fd/9";
    let as_other = ["sh", "-c", script];
    let variables = [("GREENROOM_USER", "root"), ("GREENROOM_KEEP_USER", "yes"), ("HOME", "/var")];
    let Some(server) = Server::started_by(&as_other, &variables).await else { return };
    assert_eq!(
        server.said("id -u; id -g; echo $USER $HOME; pwd\n").await,
        "12345\n12345\n12345 /var\n/var\n"
    );
    let Some(server) = Server::start(&variables).await else { return };
    assert_eq!(server.said("id -u; echo $USER\n").await, "0\nroot\n");
}

#[tokio::test]
async fn what_cannot_work_ends_it_with_a_sentence() {
    let Some(program) = PROGRAM else {
        return skipped("these tests were built without `greenroom-server`: use `--features server`");
    };
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPKqwKtL4ZYBzlsnqxu65tbHDgoTo5SkOSbaTWROVONW";
    let user = if getuid().is_root() {
        "the image has no user no-such in /etc/passwd"
    } else {
        "which is not the user no-such"
    };
    let cases: [(&[(&str, &str)], &str); 5] = [
        (
            &[
                ("GREENROOM_AUTHORIZED_KEY", key),
                ("GREENROOM_KEEP_USER", "yes"),
                ("GREENROOM_SHELL", "/no/sh"),
            ],
            "greenroom: the image cannot run jobs: it has no /no/sh",
        ),
        (&[], "greenroom: GREENROOM_AUTHORIZED_KEY is not set\n"),
        (
            &[("GREENROOM_AUTHORIZED_KEY", "rubbish")],
            "greenroom: GREENROOM_AUTHORIZED_KEY is not a public key",
        ),
        (
            &[("GREENROOM_AUTHORIZED_KEY", key), ("GREENROOM_PORT", "many")],
            "greenroom: GREENROOM_PORT is \"many\"",
        ),
        (&[("GREENROOM_AUTHORIZED_KEY", key), ("GREENROOM_USER", "no-such")], user),
    ];
    for (variables, expected) in cases {
        let mut command = Command::new(program);
        let output = command.env_clear().envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn as_the_first_process_it_reaps_what_loses_its_parent() {
    let unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
    let possible = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skipped("namespaces need root");
    }
    let Some(server) = Server::started_by(&unshare, &[]).await else { return };
    // The last one is looked for while it may still be a zombie that is about to be reaped.
    let script = "for i in 1 2 3 4 5; do (sh -c 'sleep 0.05' & ) ; done; sleep 0.2; n=1\n\
                  until ! grep -qs '^State:.Z' /proc/[0-9]*/status; do [ $((n += 1)) -lt 100 ] || exit 1; sleep 0.1; done\n\
                  tr '\\0' ' ' </proc/1/cmdline\n";
    let said = server.said(script).await;
    assert!(said.trim_end().ends_with("greenroom-server"), "{said}");
    // Its sessions end with it.
    drop(server);
}

#[tokio::test]
async fn it_copies_itself() {
    let Some(program) = PROGRAM else {
        return skipped("these tests were built without `greenroom-server`: use `--features server`");
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("greenroom-server");
    let copied = Command::new(program).arg("install").arg(&file).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    assert!(fs::read(&file).unwrap() == fs::read(program).unwrap());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    let missing = dir.path().join("no/file");
    let failed = Command::new(program).arg("install").arg(&missing).output().unwrap();
    assert_eq!(failed.status.code(), Some(78));
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(
        said.contains("greenroom: cannot copy the program to ") && said.contains("No such file"),
        "{said}"
    );
}

#[tokio::test]
async fn a_program_loses_its_streams_with_its_connection_and_lives_on() {
    let Some(server) = Server::start(&[]).await else { return };
    let mark = server.dir.path().join("mark");
    let script =
        format!("echo $$ >{0}.pid; cat >/dev/null; echo over >{0}; exec sleep 600\n", mark.display());
    let cut = async {
        eventually("it runs", || {
            fs::read_to_string(mark.with_extension("pid")).is_ok_and(|pid| pid.ends_with('\n'))
        })
        .await;
        children_of(server.child.id()).into_iter().for_each(kill);
    };
    // The script is its own input, whose end `cat` would wait for: the channel stays open.
    let ((end, _), ()) = tokio::join!(server.run(&script), cut);
    assert!(matches!(end, Err(ConnectError::Lost { .. })), "{end:?}");
    eventually("its input ends", || mark.exists()).await;
    let pid = fs::read_to_string(mark.with_extension("pid")).unwrap().trim().parse().unwrap();
    assert!(crate::connector::support::lives(pid));
    kill(pid);
}
