//! A call in a process of its own: a second instance of this test binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::Connector;
use greenroom_ssh::SshSettings;
use serde::{Deserialize, Serialize};

use super::Sleepy;
use crate::linked::sshd::Sshd;
use crate::linked::support::{linked_through, never, own_memory, stage};

/// The caller's task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Task {
    Check,
    Run(String),
    /// Runs a stage whose reader sleeps for this long after its first bytes.
    Sleepy(String, Duration),
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    task: Task,
    at: Endpoint,
    settings: SshSettings,
    dir: PathBuf,
    report: PathBuf,
}

/// The result of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// `Ok`, the end of the stage as text, or the error's sentence.
    pub(super) said: String,
    /// The bytes of output that the caller has taken.
    pub(super) taken: u64,
    /// Growth of the process's own memory at its peak, in bytes.
    pub(super) grown: u64,
}

const ORDER: &str = "GREENROOM_TEST_CALL";

#[test]
#[ignore = "the caller's process of the other tests here"]
fn call() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(act(&order));
    std::fs::write(&order.report, serde_json::to_vec(&report).unwrap()).unwrap();
}

async fn act(order: &Order) -> Report {
    let linked = linked_through(&order.settings, &order.dir);
    let id = InstanceId::new("guest");
    let before = own_memory("VmRSS");
    let mut reader = Sleepy { sleeps: None, taken: 0 };
    let end = match &order.task {
        Task::Check => {
            let checked = linked.check(&id, &order.at, Duration::from_secs(15)).await;
            checked.map(|()| "Ok".to_owned())
        }
        Task::Run(script) | Task::Sleepy(script, _) => {
            if let Task::Sleepy(_, time) = &order.task {
                reader.sleeps = Some(*time);
            }
            let ended = linked.run(&id, &order.at, stage(Shell::Bash, script), &mut reader, never()).await;
            ended.map(|end| format!("{end:?}"))
        }
    };
    Report {
        said: end.unwrap_or_else(|error| error.to_string()),
        taken: reader.taken,
        grown: own_memory("VmHWM").saturating_sub(before),
    }
}

/// A call that has been started.
pub(super) struct Caller {
    child: Child,
    report: PathBuf,
}

impl Caller {
    /// Starts it; `set` changes its process.
    pub(super) fn start(sshd: &Sshd, name: &str, task: Task, set: impl FnOnce(&mut Command)) -> Self {
        let report = sshd.path(&format!("report-{name}"));
        let order = Order {
            task,
            at: sshd.at.clone(),
            settings: sshd.settings.clone(),
            dir: sshd.dir.path().to_owned(),
            report: report.clone(),
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["link::caller::call", "--exact", "--ignored", "--test-threads=1"]);
        command.env(ORDER, serde_json::to_string(&order).unwrap()).stdout(Stdio::null());
        set(&mut command);
        Self { child: command.spawn().unwrap(), report }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reaps a killed caller.
    pub(super) fn reap(mut self) {
        self.child.wait().unwrap();
    }

    pub(super) async fn finish(mut self) -> Report {
        let until = std::time::Instant::now() + Duration::from_mins(1);
        let ended = loop {
            match self.child.try_wait().unwrap() {
                Some(ended) => break ended,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            assert!(std::time::Instant::now() < until, "the call does not end");
        };
        assert!(ended.success(), "{ended}");
        read(&self.report)
    }
}

fn read(report: &Path) -> Report {
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}
