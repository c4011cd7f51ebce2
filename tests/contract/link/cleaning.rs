//! The cost of a host that is cleaned after each job: no login, and no shell that waits for nothing.

use std::time::Duration;

use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
use greenroom_ports::connector::{FirstStage, Mark, RemoteCommand, Stage, StageEnd, Trace};
use greenroom_ports::tail::Tail;

use super::{figures, only_link, said, until_ready};
use crate::linked::sshd::Sshd;
use crate::linked::support::{children_of, eventually, never, number, stage};

const WITHIN: Duration = Duration::from_secs(30);

fn logins(sshd: &Sshd) -> usize {
    std::fs::read_to_string(sshd.path("log")).unwrap().matches("Accepted publickey").count()
}

async fn command(sshd: &Sshd, shared: bool) -> (StageEnd, String) {
    let mut tail = Tail::default();
    let (text, input) = ("cat; exit 3", "the input\n");
    let command = RemoteCommand { text, input, within: WITHIN, start_within: Duration::ZERO, shared };
    let end = sshd.connector().command(&sshd.id, &sshd.at, command, &mut tail).await.unwrap();
    (end, tail.text())
}

#[tokio::test]
async fn a_shared_command_needs_no_login_and_leaves_the_shell_of_the_next_job() {
    let sshd = Sshd::start().await;
    let server = number(&said(&sshd, "echo parent=$PPID\n").await, "parent");
    until_ready(&sshd).await;
    let link = only_link(&sshd);
    for _ in 0..3 {
        assert_eq!(command(&sshd, true).await, (StageEnd::Exited(3), "the input\n".to_owned()));
        eventually("its processes end", || children_of(server).len() == 1).await;
        assert!(figures(&sshd).await[0].shell_waits);
    }
    sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    assert_eq!(said(&sshd, "echo fine\n").await, "fine\n");
    until_ready(&sshd).await;
    assert_eq!((only_link(&sshd), logins(&sshd)), (link, 1));
    // A command that may change what a login gets has one of its own.
    assert_eq!(command(&sshd, false).await, (StageEnd::Exited(3), "the input\n".to_owned()));
    assert_eq!(logins(&sshd), 2);
}

#[tokio::test]
async fn a_shared_command_works_while_another_job_uses_the_link() {
    let sshd = Sshd::start().await;
    let script = super::saying(&sshd, "while [ ! -e done ]; do sleep 0.05; done; rm done; exit 5");
    let other = async {
        super::runs(&sshd).await;
        let answer = command(&sshd, true).await;
        std::fs::write(sshd.path("home").join("done"), "").unwrap();
        answer
    };
    let script = format!("cd {}\n{script}", sshd.path("home").display());
    let ((end, _), answer) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), other);
    assert_eq!((end.unwrap(), answer.0), (StageEnd::Exited(5), StageEnd::Exited(3)));
}

fn trace(sshd: &Sshd, attempt: &str) -> Trace {
    let mark = Mark::new(&OwnerId::new("owner"), &PoolName::new("pool"), &InstanceId::new("host"));
    let builds_dir = sshd.path("home").join(attempt).display().to_string();
    Trace { mark, attempt: AttemptName::new(attempt), builds_dir }
}

#[tokio::test]
async fn no_shell_waits_after_the_last_stage_of_a_job_on_a_host_that_is_cleaned() {
    let sshd = Sshd::start().await;
    let server = number(&said(&sshd, "echo parent=$PPID\n").await, "parent");
    for last in [false, true, false] {
        let stage = Stage { trace: Some(trace(&sshd, "x1")), last, ..stage(Shell::Bash, "exit 4\n") };
        assert_eq!(sshd.run(stage, never()).await.0.unwrap(), StageEnd::Exited(4));
        if last {
            eventually("the stage's processes end", || children_of(server).is_empty()).await;
            sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
            assert!(!figures(&sshd).await[0].shell_waits);
        } else {
            until_ready(&sshd).await;
        }
    }
}

#[tokio::test]
async fn the_first_shell_of_a_job_waits_when_the_job_has_its_host() {
    let sshd = Sshd::start().await;
    let server = number(&said(&sshd, "echo parent=$PPID\n").await, "parent");
    // The link of a launched instance has a shell before its first job.
    let stage_before = Stage { trace: Some(trace(&sshd, "x0")), last: true, ..stage(Shell::Bash, "true\n") };
    assert_eq!(sshd.run(stage_before, never()).await.0.unwrap(), StageEnd::Exited(0));
    for attempt in ["x1", "x2"] {
        command(&sshd, true).await;
        let trace = Some(trace(&sshd, attempt));
        let shell = StageShell { separate_stderr: true, ..Shell::Bash.into() };
        let first = FirstStage { shell, trace: trace.clone() };
        sshd.connector().check_for(&sshd.id, &sshd.at, &first, WITHIN).await.unwrap();
        assert!(figures(&sshd).await[0].shell_waits);
        let shells = children_of(server);
        let [shell] = shells[..] else { panic!("one shell waits: {shells:?}") };
        let noted = std::fs::read_dir(sshd.path("home").join(".greenroom/owner.pool.host")).unwrap();
        let noted: Vec<String> =
            noted.flatten().map(|note| note.file_name().into_string().unwrap()).collect();
        let prefix = format!("{attempt}.{shell}.");
        assert!(noted.iter().any(|note| note.starts_with(&prefix)), "{prefix}: {noted:?}");
        let stage = Stage { trace, last: true, ..stage(Shell::Bash, "echo pid=$$\n") };
        let (end, kept) = sshd.run(stage, never()).await;
        assert_eq!((end.unwrap(), number(&kept.out(), "pid")), (StageEnd::Exited(0), shell));
    }
}
