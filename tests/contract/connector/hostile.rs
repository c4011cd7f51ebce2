//! Servers that misbehave: each costs bounded time and memory and ends in one clear sentence.
//!
//! The client runs in a process of its own, a second instance of this test binary, so that its memory can be measured.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{Connector, Output, Stage, Stream};
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::pace::Pace;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::support::{Counted, Kept, Stuck, linked_through, never, stage, through_links};
use crate::trick::{HOST, Trick, serve};

/// The client's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Task {
    Check,
    /// Runs a stage to its end and keeps its output.
    Run,
    /// Runs a stage whose output is read, and stops it half a second after the first of it.
    Stop,
    /// Runs a stage whose output is not read, and stops it half a second after the first of it.
    Stuck,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    task: Task,
    at: Endpoint,
    keys_dir: PathBuf,
    script: PathBuf,
    keepalive: Duration,
    report: PathBuf,
}

/// The result of a task.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    /// The end of the stage as text, or the error's sentence.
    outcome: String,
    stdout: usize,
    stderr: String,
    took: Duration,
    /// Growth of the process's own memory at its peak, in bytes.
    grown: u64,
}

const ORDER: &str = "GREENROOM_TEST_ORDER";
/// A limit that exceeds eight messages of the maximal size that the protocol's implementation accepts, and its buffers.
const MEMORY: u64 = 8 << 20;
const CONNECT: Duration = Duration::from_secs(1);
/// The time that a stage that is to be stopped may take to begin, on a busy machine.
const BEGINS: Duration = Duration::from_secs(6);
/// The time after which a stage without output has begun.
const BEGUN: Duration = Duration::from_secs(2);
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Output whose first piece is noticed.
struct Noticed<'a> {
    output: &'a mut dyn Output,
    written: Rc<Notify>,
}

#[async_trait(?Send)]
impl Output for Noticed<'_> {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.written.notify_one();
        self.output.write(stream, bytes).await
    }
}

#[test]
#[ignore = "the client's process of the other tests here"]
fn client() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(act(&order));
    std::fs::write(&order.report, serde_json::to_vec(&report).unwrap()).unwrap();
}

async fn act(order: &Order) -> Report {
    let settings = SshSettings {
        connect_timeout: CONNECT,
        keepalive: order.keepalive,
        linger: Duration::from_millis(300),
        ..SshSettings::new(&order.keys_dir)
    };
    let linked = linked_through(&settings, order.report.parent().unwrap());
    let ssh = Ssh::new(settings);
    let ssh: &dyn Connector = if through_links() { &linked } else { &ssh };
    let id = InstanceId::new("guest");
    let mut kept = Kept::default();
    let before = super::support::own_memory("VmRSS");
    let begun = Instant::now();
    let run = async |output: &mut dyn Output, start_within, stop| {
        let script = std::fs::File::open(&order.script).unwrap();
        let stop_grace = Duration::from_millis(300);
        let stage = Stage { script, start_within, stop_grace, ..stage(Shell::Bash, "") };
        ssh.run(&id, &order.at, stage, output, stop).await.map(|end| format!("{end:?}"))
    };
    let stopped = async |output: &mut dyn Output| {
        let written = Rc::new(Notify::new());
        let stop = Box::pin({
            let written = Rc::clone(&written);
            async move {
                // Some begin, and give no output.
                let _first = timeout(BEGUN, written.notified()).await;
                sleep(Duration::from_millis(500)).await;
            }
        });
        run(&mut Noticed { output, written }, BEGINS, stop).await
    };
    let end = match order.task {
        Task::Check => ssh.check(&id, &order.at, Duration::from_secs(5)).await.map(|()| "passed".to_owned()),
        Task::Run => run(&mut kept, CONNECT, never()).await,
        Task::Stop => stopped(&mut Counted::default()).await,
        Task::Stuck => stopped(&mut Stuck).await,
    };
    Report {
        outcome: end.unwrap_or_else(|error| error.to_string()),
        stdout: kept.stdout.len(),
        stderr: kept.err(),
        took: begun.elapsed(),
        grown: super::support::own_memory("VmHWM").saturating_sub(before),
    }
}

/// Connects a client to a server.
async fn meet(trick: Trick, task: Task) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let keys_dir = dir.path().join("keys");
    Ssh::new(SshSettings::new(&keys_dir)).keys(&InstanceId::new("guest")).await.unwrap();
    let (port, serving) = serve(trick).await;
    let host_key = HOST.public_key().to_openssh().unwrap();
    let at = Endpoint {
        address: "127.0.0.1".to_owned(),
        port,
        user: "ci".to_owned(),
        host_key,
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    };
    // Larger than any window, so that it is still being sent.
    let script = dir.path().join("script");
    std::fs::write(&script, "# script\n".repeat(1_000_000)).unwrap();
    // Its answers to keep-alives come after all its other output.
    let talks = matches!(trick, Trick::FloodsRequests | Trick::OpensChannels);
    let keepalive = if talks { Pace::watch().stretched(KEEPALIVE) } else { KEEPALIVE };
    let order = Order { task, at, keys_dir, script, keepalive, report: dir.path().join("report") };
    let mut client = tokio::process::Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::client", module_path!().split_once("::").unwrap().1);
    client.args([name.as_str(), "--exact", "--ignored", "--test-threads=1"]);
    client
        .env(ORDER, serde_json::to_string(&order).unwrap())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(Duration::from_secs(30), client.status()).await;
    let ended = ended.unwrap_or_else(|_| panic!("{trick:?} keeps the client for ever")).unwrap();
    serving.abort();
    assert!(ended.success(), "{trick:?}: {ended}");
    let report: Report = serde_json::from_slice(&std::fs::read(&order.report).unwrap()).unwrap();
    let text = format!("{trick:?} {task:?}: {report:?}");
    assert!(report.grown < MEMORY, "{text}");
    assert!(report.outcome.len() < 400 && !report.outcome.chars().any(char::is_control), "{text}");
    report
}

/// A check and a run both fail in time, with a sentence that contains this.
async fn fails_with(trick: Trick, sentence: &str, within: Duration) {
    for task in [Task::Check, Task::Run] {
        let report = meet(trick, task).await;
        assert!(report.outcome.contains(sentence), "{trick:?} {task:?}: {report:?}");
        assert!(report.took < within, "{trick:?} {task:?}: {report:?}");
    }
}

// Generous, because the machine is shared; the test only needs some limit.
const SOON: Duration = Duration::from_secs(8);
const CONNECTED: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_server_that_says_nothing_or_stops_talking_is_given_up() {
    for (trick, sentence) in [
        (Trick::Silent, "but sent no SSH greeting within"),
        (Trick::SilentAfterId, "but no host key within"),
        (Trick::SilentAfterLength, "but no host key within"),
        (Trick::NeverAuthenticates, "did not complete the login within"),
    ] {
        fails_with(trick, sentence, CONNECTED).await;
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_is_unreachable() {
    // Whether the kernel reports this during connect or after it is a matter of microseconds.
    for trick in [Trick::HangsUp, Trick::HangsUpAfterId] {
        fails_with(trick, "connect", SOON).await;
    }
}

#[tokio::test]
async fn what_is_no_ssh_is_called_so() {
    for trick in [Trick::Garbage, Trick::EndlessBanner, Trick::EndlessLine] {
        fails_with(trick, "cannot connect to 127.0.0.1:", SOON).await;
    }
    fails_with(Trick::HugePacket, "violated the SSH protocol", SOON).await;
    fails_with(Trick::GarbagePacket, "cannot connect to 127.0.0.1:", SOON).await;
}

#[tokio::test]
async fn a_server_that_refuses_us_says_so_without_control_characters() {
    fails_with(Trick::Disconnects, "go away", SOON).await;
    fails_with(Trick::RefusesSessions, "refuses to open a session", SOON).await;
    fails_with(Trick::RefusesCommands, "does not run commands", SOON).await;
}

#[tokio::test]
async fn a_session_that_never_starts_is_given_up() {
    let report = meet(Trick::NeverOpens, Task::Run).await;
    assert!(report.outcome.contains("ran no command within"), "{report:?}");
}

#[tokio::test]
async fn a_command_that_is_never_answered_is_given_up() {
    // Both take the script, but neither that nor the server's answer is output of the guest.
    for trick in [Trick::NeverStarts, Trick::NeverSpeaks] {
        let report = meet(trick, Task::Run).await;
        assert!(report.outcome.ends_with("did not start the stage within 1 s"), "{trick:?}: {report:?}");
        assert!(report.took < SOON, "{trick:?}: {report:?}");
    }
}

#[tokio::test]
async fn a_stage_that_has_begun_may_be_silent() {
    let report = meet(Trick::NamesAndRests, Task::Run).await;
    assert_eq!(report.outcome, "Exited(0)", "{report:?}");
    assert!(report.took > CONNECT * 3, "it rested longer than a start may take: {report:?}");
}

#[tokio::test]
async fn an_end_without_an_exit_status_is_a_loss() {
    let report = meet(Trick::ClosesWithoutStatus, Task::Run).await;
    assert!(report.outcome.contains("without an exit status"), "{report:?}");
    let report = meet(Trick::DropsConnection, Task::Run).await;
    assert!(report.outcome.contains("was lost: the instance closed the connection"), "{report:?}");
    assert_eq!(report.stdout, 5, "what came before the loss was passed on");
    let report = meet(Trick::DropsAfterStatus, Task::Run).await;
    // A link waits for the shell first: the status comes before that.
    let early = report.outcome.contains("before the script began");
    assert!(early || report.outcome.contains("was lost"), "the output may be incomplete: {report:?}");
}

#[tokio::test]
async fn a_server_that_stops_answering_is_found_out() {
    let report = meet(Trick::GoesSilent, Task::Run).await;
    assert!(report.outcome.contains("no answer for 3 s"), "{report:?}");
    assert!(report.took < Duration::from_secs(12), "{report:?}");
}

#[tokio::test]
async fn the_first_of_two_exit_statuses_counts() {
    let report = meet(Trick::TwoStatuses, Task::Run).await;
    assert_eq!(report.outcome, "Exited(42)");
}

/// Whatever killed the session, it was not the script.
#[tokio::test]
async fn an_end_before_the_shell_was_there_is_no_end_of_the_script() {
    let report = meet(Trick::EndsBeforeTheShell, Task::Run).await;
    assert!(
        report.outcome.contains("the session ended with signal KILL before the script began"),
        "{report:?}"
    );
}

#[tokio::test]
async fn a_status_and_then_nothing_ends_after_the_linger() {
    let report = meet(Trick::StatusOnly, Task::Run).await;
    assert_eq!(report.outcome, "Exited(7)");
    assert!(report.took < CONNECTED, "{report:?}");
}

#[tokio::test]
async fn a_signal_with_a_made_up_name_is_cleaned() {
    let report = meet(Trick::OddSignal, Task::Run).await;
    assert!(report.outcome.starts_with("Signalled(\"BOOM") && report.outcome.len() < 60, "{report:?}");
}

#[tokio::test]
async fn floods_cost_no_memory_and_a_stop_ends_them() {
    for trick in [Trick::FloodsOutput, Trick::FloodsBoth, Trick::FloodsUnknownStream] {
        for task in [Task::Stop, Task::Stuck] {
            let report = meet(trick, task).await;
            // It answers no second channel, so the stage cannot be shown to be gone.
            let outcome = "the stage did not stop within";
            assert!(report.outcome.contains(outcome), "{trick:?} {task:?}: {report:?}");
            assert!(report.took < Duration::from_secs(20), "{trick:?} {task:?}: {report:?}");
        }
    }
}

#[tokio::test]
async fn questions_and_channels_of_the_server_cost_nothing() {
    for trick in [Trick::FloodsRequests, Trick::OpensChannels] {
        let report = meet(trick, Task::Run).await;
        assert_eq!(report.outcome, "Exited(0)", "{trick:?}: {report:?}");
        assert!(report.took < Duration::from_secs(20), "{report:?}");
    }
}

#[tokio::test]
async fn a_session_number_that_is_none_is_no_command() {
    for number in ["1; reboot", "0", "-5", "$(reboot)", "99999999999", "4711"] {
        let report = meet(Trick::Names(number), Task::Run).await;
        assert_eq!((report.outcome.as_str(), report.stderr.as_str()), ("Exited(0)", ""), "{number}");
    }
    let report = meet(Trick::NamesWithoutEnd, Task::Run).await;
    assert_eq!(report.outcome, "Exited(0)");
    assert!(report.stderr.len() < 100_000, "{}", report.stderr.len());
}

#[tokio::test]
async fn a_stop_that_is_not_carried_out_takes_bounded_time() {
    for trick in [Trick::NamesAndStalls, Trick::NamesAndRefuses] {
        let report = meet(trick, Task::Stop).await;
        assert!(report.outcome.contains("the stage did not stop within"), "{trick:?}: {report:?}");
        assert!(report.took < Duration::from_secs(20), "{trick:?}: {report:?}");
    }
}
