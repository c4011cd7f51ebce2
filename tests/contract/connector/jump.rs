//! Through a jump host: two real servers, each with a key of its own.

use std::time::Duration;

use greenroom_core::endpoint::{Endpoint, Jump, LoginKey};
use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, StageEnd};

use super::sshd::{Set, Sshd, account};
use super::support::{Kept, never, stage};

const WITHIN: Duration = Duration::from_secs(10);

/// A guest behind another server, and the path to it.
pub(crate) fn behind(jump: &Sshd, guest: &Sshd) -> Endpoint {
    let first = Jump {
        address: "127.0.0.1".to_owned(),
        port: jump.at.port,
        user: account(),
        host_key: jump.at.host_key.clone(),
        key: LoginKey::File(jump.path("keys/guest/client_key")),
    };
    Endpoint { jump: Some(Box::new(first)), ..guest.at.clone() }
}

#[tokio::test]
async fn a_stage_runs_and_is_stopped_behind_a_jump_host() {
    let (jump, guest) = (Sshd::start().await, Sshd::start().await);
    let at = behind(&jump, &guest);
    guest.connector().check(&guest.id, &at, WITHIN).await.unwrap();
    let mut kept = Kept::default();
    let script =
        stage(Shell::Bash, "head -c 3000000 /dev/zero | tr '\\0' x; echo \"$SSH_CONNECTION\" >&2; exit 7\n");
    let end = guest.connector().run(&guest.id, &at, script, &mut kept, never()).await.unwrap();
    assert_eq!((end, kept.stdout.len()), (StageEnd::Exited(7), 3_000_000));
    let stop = Box::pin(tokio::time::sleep(Duration::from_millis(500)));
    let endless = stage(Shell::Bash, "trap '' TERM; while :; do sleep 0.1; done\n");
    let end = guest.connector().run(&guest.id, &at, endless, &mut kept, stop).await.unwrap();
    assert_eq!(end, StageEnd::Stopped);
    let key = guest.ssh.host_key(&at, WITHIN).await.unwrap();
    assert!(guest.at.host_key.starts_with(&key.line), "{key:?}");
}

#[tokio::test]
async fn an_error_says_which_of_the_two_hosts_it_is_about() {
    let (jump, guest) = (Sshd::start().await, Sshd::start().await);
    let at = behind(&jump, &guest);
    let first = |change: &dyn Fn(&mut Jump)| {
        let mut at = at.clone();
        change(at.jump.as_mut().unwrap());
        at
    };
    let through = format!("{}:{} (through jump host 127.0.0.1:{})", at.address, at.port, jump.at.port);
    let by_name = format!("jump host 127.0.0.1:{}", jump.at.port);
    let fail = async |at: Endpoint| guest.connector().check(&guest.id, &at, WITHIN).await.unwrap_err();

    let error = fail(first(&|jump| jump.host_key.clone_from(&guest.at.host_key))).await;
    let ConnectError::HostKey { at: place, expected, found } = &error else { panic!("{error:?}") };
    assert!(*place == by_name && expected != found, "{error}");

    let error = fail(Endpoint { host_key: jump.at.host_key.clone(), ..at.clone() }).await;
    assert!(matches!(&error, ConnectError::HostKey { at, .. } if *at == through), "{error:?}");

    let error = fail(first(&|jump| jump.key = LoginKey::File(guest.path("keys/guest/client_key")))).await;
    assert!(matches!(&error, ConnectError::Refused { at, .. } if *at == by_name), "{error:?}");

    let closed = Endpoint { port: 1, ..at.clone() };
    let error = fail(closed).await;
    let ConnectError::Unreachable { at: place, problem } = &error else { panic!("{error:?}") };
    assert!(place.starts_with("127.0.0.1:1 (through jump host") && problem.contains(&by_name), "{error}");
}

#[tokio::test]
async fn a_jump_host_that_passes_nothing_on_is_named() {
    let jump = Sshd::with(Set { config: "AllowTcpForwarding no", ..Set::default() }).await;
    let guest = Sshd::start().await;
    let at = behind(&jump, &guest);
    let text = guest.connector().check(&guest.id, &at, WITHIN).await.unwrap_err().to_string();
    assert!(text.contains("does not forward the connection (administratively prohibited)"), "{text}");
}
