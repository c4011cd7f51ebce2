//! The logins that are accepted, and the servers that are trusted.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::endpoint::{Endpoint, LoginKey};
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{ConnectError, Connector};
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::pace::Pace;
use russh::keys::{HashAlg, PublicKey};

use super::sshd::Sshd;
use super::support::{eventually, never, stage};

const WITHIN: Duration = Duration::from_secs(10);

/// Makes a key pair, and returns the public key.
pub(crate) fn keygen(path: &Path, arguments: &[&str]) -> String {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-N", ""])
        .args(arguments)
        .arg("-f")
        .arg(path)
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::read_to_string(path.with_extension("pub")).unwrap().trim().to_owned()
}

fn with_key(sshd: &Sshd, key: LoginKey) -> Endpoint {
    Endpoint { key: Some(key), ..sshd.at.clone() }
}

#[tokio::test]
async fn keys_are_the_same_at_each_call_and_gone_when_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = Ssh::new(SshSettings::new(dir.path().join("keys")));
    let id = InstanceId::new("linux-1");
    let first = ssh.keys(&id).await.unwrap();
    assert_eq!(ssh.keys(&id).await.unwrap(), first);
    assert_ne!(ssh.keys(&InstanceId::new("linux-2")).await.unwrap().authorized_key, first.authorized_key);
    ssh.discard_keys(&id).await;
    ssh.discard_keys(&id).await;
    assert_ne!(ssh.keys(&id).await.unwrap(), first);
}

#[tokio::test]
async fn another_host_key_is_refused_before_the_login_and_both_are_named() {
    let mut sshd = Sshd::start().await;
    let right = sshd.at.host_key.clone();
    sshd.at.host_key = sshd.ssh.keys(&InstanceId::new("other")).await.unwrap().host_key_public;
    let error = sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap_err();
    let ConnectError::HostKey { expected, found, .. } = &error else { panic!("{error:?}") };
    let fingerprint =
        |key: &str| PublicKey::from_openssh(key).unwrap().fingerprint(HashAlg::Sha256).to_string();
    assert_eq!((expected, found), (&fingerprint(&sshd.at.host_key), &fingerprint(&right)));
    assert!(expected.starts_with("SHA256:"), "{error}");
    let log = || std::fs::read_to_string(sshd.path("log")).unwrap();
    eventually("the server logs the connection", || log().contains("Connection from")).await;
    assert!(!log().contains("publickey"), "{}", log());
}

#[tokio::test]
async fn a_host_with_keys_of_another_kind_only_is_refused_as_well() {
    let mut sshd = Sshd::start().await;
    sshd.at.host_key = keygen(&sshd.path("ecdsa"), &["-t", "ecdsa"]);
    let error = sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap_err();
    let ConnectError::HostKey { found, .. } = &error else { panic!("{error:?}") };
    assert!(found.contains("ecdsa-sha2-nistp256") && found.contains("ssh-ed25519"), "{error}");
}

#[tokio::test]
async fn a_key_that_is_not_let_in_is_named() {
    let sshd = Sshd::start().await;
    let stranger = InstanceId::new("stranger");
    sshd.ssh.keys(&stranger).await.unwrap();
    let error = sshd.connector().check(&stranger, &sshd.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&sshd.at.user) && text.contains("SHA256:"), "{text}");
}

#[tokio::test]
async fn an_instance_without_keys_is_our_own_fault() {
    let sshd = Sshd::start().await;
    let error = sshd.connector().check(&InstanceId::new("nobody"), &sshd.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Local { .. }), "{error:?}");
}

#[tokio::test]
async fn a_key_file_of_the_operators_logs_in() {
    let sshd = Sshd::start().await;
    let kinds: [&[&str]; 7] = [
        &["-t", "ed25519"],
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521", "-m", "PKCS8"],
        &["-t", "rsa", "-b", "2048"],
        &["-t", "rsa", "-b", "4096", "-m", "PEM"],
        &["-t", "rsa", "-b", "2048", "-m", "PKCS8"],
    ];
    for (n, kind) in kinds.into_iter().enumerate() {
        let path = sshd.path(&format!("user{n}"));
        let public = keygen(&path, kind);
        sshd.authorize(&public);
        let at = with_key(&sshd, LoginKey::File(path));
        let checked = sshd.connector().check(&InstanceId::new("fixed host"), &at, WITHIN).await;
        checked.unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    }
}

#[tokio::test]
async fn a_key_file_that_cannot_be_used_is_refused_with_the_reason_and_the_way_out() {
    let sshd = Sshd::start().await;
    let cases: [(&[&str], &str); 5] = [
        (
            &["-t", "rsa", "-b", "1024"],
            "an RSA key, which Greenroom cannot read from a file (the key has less than 2048",
        ),
        (&["-t", "rsa", "-b", "1024", "-m", "PEM"], "the key has less than 2048 bits"),
        (&["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "secret"], "a key with a passphrase"),
        (&["-t", "ed25519", "-N", "secret"], "a key with a passphrase"),
        (&["-t", "ecdsa", "-m", "PEM", "-N", "secret"], "a key with a passphrase"),
    ];
    for (n, (kind, why)) in cases.into_iter().enumerate() {
        let path = sshd.path(&format!("user{n}"));
        keygen(&path, kind);
        let at = with_key(&sshd, LoginKey::File(path));
        let error = sshd.connector().check(&sshd.id, &at, WITHIN).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Local { .. }), "{kind:?}: {error:?}");
        assert!(
            text.contains(why) && text.contains("ssh-agent") && text.contains("user"),
            "{kind:?}: {text}"
        );
    }
}

/// An ssh-agent of the test's own.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn agent(socket: &Path, keys: &[&Path]) -> Agent {
    let agent =
        Command::new("ssh-agent").arg("-D").arg("-a").arg(socket).stdout(Stdio::null()).spawn().unwrap();
    let agent = Agent(agent);
    eventually("the agent listens", || std::os::unix::net::UnixStream::connect(socket).is_ok()).await;
    for key in keys {
        let added = Command::new("ssh-add").arg("-q").arg(key).env("SSH_AUTH_SOCK", socket).status().unwrap();
        assert!(added.success());
    }
    agent
}

#[tokio::test]
async fn an_agent_logs_in_with_any_kind_of_key() {
    let sshd = Sshd::start().await;
    let (rsa, ed25519) = (sshd.path("rsa"), sshd.path("ed25519"));
    let public_rsa = keygen(&rsa, &["-t", "rsa", "-b", "2048"]);
    let public_ed25519 = keygen(&ed25519, &["-t", "ed25519"]);
    let socket = sshd.path("agent");
    let _agent = agent(&socket, &[&ed25519, &rsa]).await;
    let with = async |key: Option<&str>| {
        let at = with_key(&sshd, LoginKey::Agent { socket: socket.clone(), key: key.map(str::to_owned) });
        sshd.connector().check(&sshd.id, &at, WITHIN).await
    };
    // The second of the agent's keys is the authorized one.
    sshd.authorize(&public_rsa);
    with(None).await.unwrap();
    with(Some(&public_rsa)).await.unwrap();
    let error = with(Some(&public_ed25519)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let other = sshd.ssh.keys(&sshd.id).await.unwrap().authorized_key;
    let text = with(Some(&other)).await.unwrap_err().to_string();
    assert!(text.contains("does not hold the key SHA256:"), "{text}");
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_named_by_its_socket() {
    let sshd = Sshd::start().await;
    let socket = sshd.path("nowhere");
    let at = with_key(&sshd, LoginKey::Agent { socket: socket.clone(), key: None });
    let text = sshd.connector().check(&sshd.id, &at, WITHIN).await.unwrap_err().to_string();
    assert!(text.contains(socket.to_str().unwrap()) && text.contains("no such file"), "{text}");
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_unreachable() {
    let mut sshd = Sshd::start().await;
    // Bound and never listening: connections are refused, and no other process can take the port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    sshd.at.port = socket.local_addr().unwrap().port();
    let error = sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    let text = error.to_string();
    assert_eq!(text, format!("cannot connect to 127.0.0.1:{}: connection refused", sshd.at.port));
}

#[tokio::test]
async fn a_host_that_never_answers_is_given_up_in_time() {
    let mut sshd = Sshd::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    sshd.at.port = silent.local_addr().unwrap().port();
    let (begun, pace) = (Instant::now(), Pace::watch());
    let error = sshd.connector().check(&sshd.id, &sshd.at, Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().ends_with("within 300 ms"), "{error}");
    let took = begun.elapsed();
    assert!(took < pace.stretched(Duration::from_secs(2)), "{took:?}");
}

#[tokio::test]
async fn a_name_is_resolved() {
    let mut sshd = Sshd::start().await;
    sshd.at.address = "localhost".to_owned();
    sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    sshd.at.address = "no-such-host.invalid".to_owned();
    let error = sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_recorded_key_that_is_no_key_is_our_own_fault() {
    let mut sshd = Sshd::start().await;
    for key in ["", "ssh-ed25519", "rubbish rubbish"] {
        sshd.at.host_key = key.to_owned();
        let (end, _) = sshd.run(stage(Shell::Bash, "true\n"), never()).await;
        assert!(matches!(end, Err(ConnectError::Local { .. })), "{end:?}");
    }
}
