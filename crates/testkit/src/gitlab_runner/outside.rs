//! The runner as a process of its own: the test executable, started again with a job in a file.
//!
//! The root of a test program that uses it has the line `greenroom_testkit::runner_process!();`.
//! Commands (`cancel`, …) go in by standard input, events come out by standard output; SIGTERM and SIGKILL are real.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::build::Build;
use super::events::{Event, MARK, Shared, State};
use super::handle::Order;
use super::job::Job;
use super::play::play;
use super::runner::Runner;

/// Path of the file with the job. Without it, the test of [`runner_process!`](crate::runner_process) does nothing.
const WORK: &str = "RUNNER_PROCESS_WORK";

#[derive(Debug, Serialize, Deserialize)]
struct Work {
    runner: Runner,
    job: Job,
}

/// The name of the test that [`runner_process!`](crate::runner_process) adds to a test program.
const TEST: &str = "a_runner_process_plays_the_job_of_its_work_file";

/// Adds the test to a test program that [`Runner::start_in_own_process`] starts again to play one job.
#[macro_export]
macro_rules! runner_process {
    () => {
        #[test]
        fn a_runner_process_plays_the_job_of_its_work_file() {
            greenroom_testkit::gitlab_runner::outside::play_work_file();
        }
    };
}

/// Starts this test executable with nothing but that test.
pub fn start(runner: &Runner, job: &Job) -> Child {
    let work = Work { runner: runner.clone(), job: job.clone() };
    let file =
        runner.temp_dir.join(format!("work-{}-{:?}.json", job.id, Instant::now()).replace([' ', ':'], ""));
    let bytes = serde_json::to_vec(&work).expect("a job can be written as JSON");
    std::fs::write(&file, bytes).expect("the work file can be written");
    Command::new(std::env::current_exe().expect("this executable has a path"))
        .args(["--exact", TEST, "--nocapture", "--quiet"])
        .env_clear()
        .envs(runner.environment.iter().cloned())
        .env(WORK, &file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this executable starts")
}

/// Takes over the events of the process until it ends.
pub fn follow(mut child: Child, shared: &Arc<Shared>) {
    let output = child.stdout.take().expect("its output is a pipe");
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let Ok(line) = line else { break };
            if let Some(json) = line.strip_prefix(MARK.as_bytes()) {
                // Skips a line that was cut by the kill of its writer.
                if let Ok(event) = serde_json::from_slice(json) {
                    shared.emit(event);
                }
            }
        }
        shared.emit_with(|| {
            drop(child.wait());
            Event::Gone { at: shared.now() }
        });
    });
}

pub fn send(orders: Option<&mut ChildStdin>, order: &str) {
    let orders = orders.expect("the process takes orders");
    writeln!(orders, "{order}").expect("the runner process is alive");
}

/// Plays the job of the work file, if this process was started for one.
pub fn play_work_file() {
    let Some(file) = std::env::var_os(WORK) else { return };
    let bytes = std::fs::read(file).expect("the work file can be read");
    let work: Work = serde_json::from_slice(&bytes).expect("the work file is ours");
    let shared = Arc::new(Shared::new(true));
    let build = Arc::new(Build::new(&work.runner, &work.job, Arc::clone(&shared)));
    let (for_orders, for_signals) = (Arc::clone(&shared), Arc::clone(&shared));
    std::thread::spawn(move || take_orders(&for_orders));
    let grace = work.runner.pace.shutdown;
    let (ready, listening) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
            ready.send(()).expect("the test waits for this");
            terminate.recv().await;
            for_signals.tell(|state| state.shutdown = Some(Instant::now() + grace));
        });
    });
    listening.recv().expect("the signal handler is there before the first call");
    std::thread::spawn(move || play(&build));
    exit_when_over(&shared);
}

/// Returns when the job is reported or the shutdown time is over; the process ends with this test.
fn exit_when_over(shared: &Shared) {
    let over = |state: &State| state.finished.is_some().then_some(None);
    let shutdown = shared.wait(None, |state| over(state).or_else(|| state.shutdown.map(Some)));
    if let Some(Some(until)) = shutdown {
        shared.wait(Some(until), over);
    }
}

fn take_orders(shared: &Shared) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if let Some(order) = Order::named(&line) {
            shared.tell(|state| order.apply(state));
        }
    }
}
