//! Kind: a server that closes a connection before its SSH greeting refuses this address for a while, and is no network fault.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{ConnectError, Connector, FirstStage, Step};
use greenroom_ssh::link::Linked;
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::skipped::skipped;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use crate::linked::jump::behind;
use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{eventually, linked_through};

const WITHIN: Duration = Duration::from_secs(10);

/// The greeter's treatment of a connection.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// Sends this, and closes the connection.
    Says(&'static [u8]),
    /// Sends a line of this length, and waits.
    Floods(usize),
    Waits,
    /// Closes the first connections, and forwards later ones to this port.
    ForwardsAfter(usize, u16),
}

/// A listener, its port, and how many connections it has accepted.
async fn greeter(manner: Manner) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let number = seen.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(greet(stream, manner, number));
        }
    });
    (port, count)
}

async fn greet(mut stream: TcpStream, manner: Manner, number: usize) {
    match manner {
        Manner::Says(text) => {
            // The client's greeting is read, so that the end is no reset.
            let _sent = stream.write_all(text).await;
            let _ended = stream.shutdown().await;
            let _read = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        }
        Manner::Floods(length) => {
            let _sent = stream.write_all(&vec![b'x'; length]).await;
            std::future::pending::<()>().await;
        }
        Manner::ForwardsAfter(closed, port) if number >= closed => {
            let mut to = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ended = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
        }
        Manner::ForwardsAfter(..) => {}
        Manner::Waits => std::future::pending::<()>().await,
    }
}

/// Each way in which a server can fail to greet has a sentence of its own, and costs bounded time.
#[tokio::test]
async fn each_server_that_does_not_greet_is_called_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let ssh = Ssh::new(SshSettings::new(dir.path().join("keys")));
    let id = InstanceId::new("guest");
    let keys = ssh.keys(&id).await.unwrap();
    let away = "closes connections before its SSH greeting: it penalizes this address (`PerSourcePenalties`)";
    for (manner, sentence) in [
        (Manner::Says(b""), away),
        (Manner::Says(b"Not allowed at this time\r\n"), "(`Not allowed at this time`)"),
        (Manner::Says(b"Exceeded MaxStartups\r\n"), "(`Exceeded MaxStartups`)"),
        (
            Manner::Says(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "the port serves HTTP (`HTTP/1.1 400 Bad Request`)",
        ),
        (Manner::Floods(1 << 20), "the server does not speak SSH 2"),
        (Manner::Says(b"SSH-2.0-x\r\n"), "cannot connect to 127.0.0.1:"),
        (Manner::Waits, "accepted the connection, but sent no SSH greeting within 1 s"),
    ] {
        let (port, _) = greeter(manner).await;
        let at = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
            user: "ci".to_owned(),
            host_key: keys.host_key_public.clone(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let error = ssh.check(&id, &at, Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains(sentence), "{manner:?}: {error}");
        let turned_away =
            matches!(manner, Manner::Says(text) if !text.starts_with(b"HTTP") && !text.starts_with(b"SSH"));
        assert_eq!(matches!(error, ConnectError::TurnedAway { .. }), turned_away, "{manner:?}: {error}");
    }
}

/// A job comes while so many others log in that the server drops some connections (`MaxStartups`).
#[tokio::test]
async fn a_job_tries_again_where_the_keeper_reports_at_once() {
    let sshd = Sshd::start().await;
    let first = FirstStage { shell: Shell::Bash.into(), trace: None };
    for (closed, by_job) in [(2, true), (1, false)] {
        let (port, count) = greeter(Manner::ForwardsAfter(closed, sshd.at.port)).await;
        let at = Endpoint { port, ..sshd.at.clone() };
        let linked = linked_through(&sshd.settings, &sshd.path(&format!("greeter{closed}")));
        linked.has_answered(&sshd.id);
        if by_job {
            linked.check_for(&sshd.id, &at, &first, WITHIN).await.unwrap();
            assert_eq!(count.load(Ordering::SeqCst), closed + 1);
        } else {
            let error = linked.check(&sshd.id, &at, WITHIN).await.unwrap_err();
            assert!(matches!(error, ConnectError::TurnedAway { .. }), "{error:?}");
            assert_eq!(count.load(Ordering::SeqCst), 1);
        }
        linked.disconnect(&sshd.id).await;
    }
}

/// Connections and logins that a server has logged.
fn logged(sshd: &Sshd) -> (usize, usize) {
    let log = std::fs::read_to_string(sshd.path("log")).unwrap();
    (log.matches("Connection from ").count(), log.matches("Accepted publickey").count())
}

/// Checks until the link that was cut has been replaced.
async fn reach(linked: &Linked, id: &InstanceId, at: &Endpoint) {
    while let Err(error) = linked.check(id, at, WITHIN).await {
        assert!(matches!(error, ConnectError::Lost { .. }), "{error:?}");
    }
}

/// Links to a host are cut again and again: each new one is a login, and no connection comes without one.
#[tokio::test]
async fn a_host_that_has_answered_is_never_connected_to_without_a_login() {
    let sshd = Sshd::start().await;
    let linked = linked_through(&sshd.settings, &sshd.path("counted"));
    for links in 1..=3 {
        reach(&linked, &sshd.id, &sshd.at).await;
        eventually("the login", || logged(&sshd).1 == links).await;
        sshd.cut();
    }
    let (connections, logins) = logged(&sshd);
    assert_eq!((connections, logins), (4, 3), "the first one found out whether the port answers");
}

/// The first contact behind a jump host, and each further link: the jump host sees logins only.
#[tokio::test]
async fn a_jump_host_is_never_connected_to_without_a_login() {
    let (jump, guest) = (Sshd::start().await, Sshd::start().await);
    let at = behind(&jump, &guest);
    let linked = linked_through(&guest.settings, &guest.path("counted"));
    for links in 1..=3 {
        reach(&linked, &guest.id, &at).await;
        eventually("the login", || logged(&guest).1 == links).await;
        guest.cut();
        jump.cut();
    }
    assert_eq!((logged(&jump), logged(&guest)), ((3, 3), (3, 3)));
}

/// An account whose login takes longer than Greenroom waits, and one whose shell does.
#[tokio::test]
async fn a_slow_login_and_a_slow_shell_are_told_apart() {
    if !rustix::process::getuid().is_root() {
        return skipped("this is not root");
    }
    // It is called for a key that the file does not have.
    let config = "AuthorizedKeysCommandUser root\nAuthorizedKeysCommand /usr/bin/sleep 20";
    let slow_login = Sshd::with(Set { config, ..Set::default() }).await;
    slow_login.authorize("");
    let slow_shell = Sshd::start().await;
    slow_shell.login_through("sleep 20");
    for (sshd, step) in [(&slow_login, Step::Login), (&slow_shell, Step::Shell)] {
        for connector in [&sshd.ssh as &dyn Connector, sshd.connector()] {
            let error = connector.check(&sshd.id, &sshd.at, Duration::from_secs(2)).await.unwrap_err();
            let ConnectError::TimedOut { during, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*during, step, "{error}");
        }
    }
}
