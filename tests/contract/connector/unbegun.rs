//! Guests that answer and begin no stages.

use std::fs;
use std::time::Duration;

use greenroom_core::execution::Shell;
use greenroom_core::ids::{InstanceId, OwnerId, PoolName};
use greenroom_ports::connector::{ConnectError, Connector as _, Mark, Stage};
use greenroom_ssh::Ssh;

use super::sshd::Sshd;
use super::support::{never, stage};

const SOON: Duration = Duration::from_secs(20);
/// Lines of a login that treats stages differently.
const EXITS: &str =
    "case $SSH_ORIGINAL_COMMAND in *greenroom-session-*) exit 0;; esac; exec sh -c \"$SSH_ORIGINAL_COMMAND\"";
const SWALLOWS: &str = "case $SSH_ORIGINAL_COMMAND in *greenroom-session-*) exec sleep 60;; esac; exec sh -c \"$SSH_ORIGINAL_COMMAND\"";
const FREEZES_ITS_SERVER: &str = "kill -STOP $PPID; exec sleep 60";

async fn run(sshd: &Sshd, within: Duration) -> ConnectError {
    let hurried = Stage { start_within: within, ..stage(Shell::Bash, "echo it ran\n") };
    let (end, kept) = sshd.run(hurried, never()).await;
    assert_eq!(kept.out(), "");
    end.expect_err("the stage does not begin")
}

#[tokio::test]
async fn a_login_that_ends_a_stage_or_swallows_it_is_the_guests_fault() {
    for (login, within, why) in [
        (EXITS, SOON, "the session ended with exit status 0 before the script began"),
        (SWALLOWS, Duration::from_secs(2), "the instance did not start the stage within 2 s"),
    ] {
        let sshd = Sshd::start().await;
        sshd.login_through(login);
        let error = run(&sshd, within).await;
        let ConnectError::NotBegun { why: found, .. } = &error else { panic!("{error:?}") };
        assert_eq!(found, why);
    }
}

/// The guest's SSH server is on the connection's side of the question.
#[tokio::test]
async fn a_server_that_does_not_answer_says_nothing_about_its_guest() {
    let sshd = Sshd::start().await;
    sshd.login_through(FREEZES_ITS_SERVER);
    let error = run(&sshd, Duration::from_secs(2)).await;
    assert!(matches!(error, ConnectError::Lost { .. } | ConnectError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn a_stage_of_nobodys_shows_whether_stages_begin() {
    let sshd = Sshd::start().await;
    let mark = Mark::new(&OwnerId::new("owner"), &PoolName::new("pool"), &InstanceId::new("guest"));
    let shell = || Shell::Sh.into();
    let begins = async |mark| sshd.connector().begins_stage(&sshd.id, &sshd.at, (shell(), mark), SOON).await;
    begins(None).await.expect("a healthy guest");
    begins(Some(&mark)).await.expect("a healthy guest");
    let notes = sshd.path("home").join(".greenroom");
    let left = fs::read_dir(notes.join(mark.as_str())).expect("its notes").count();
    assert_eq!(left, 0, "it is no job, and leaves no trace");
    fs::remove_dir_all(&notes).expect("the notes can be removed");
    fs::write(&notes, "").expect("a file");
    begins(None).await.expect("launched instances have no notes");
    let error = begins(Some(&mark)).await.expect_err("a black hole");
    assert!(matches!(&error, ConnectError::NotBegun { why, .. } if why.contains("97")), "{error:?}");
    fs::remove_file(&notes).expect("a file");
    sshd.login_through(EXITS);
    let error = begins(None).await.expect_err("a login that ends all stages");
    assert!(matches!(error, ConnectError::NotBegun { .. }), "{error:?}");
    sshd.end();
    let error = Ssh::new(sshd.settings.clone()).begins_stage(&sshd.id, &sshd.at, (shell(), None), SOON).await;
    // A server that is ending may accept the connection.
    let ended = matches!(error, Err(ConnectError::Unreachable { .. } | ConnectError::TurnedAway { .. }));
    assert!(ended, "{error:?}");
}
