//! Plays GitLab Runner 19.4 towards a custom-executor driver: same calls, order, arguments, environment and signals.
//!
//! [`Runner`](runner::Runner) is the runner's configuration, [`Job`](job::Job) what GitLab would send. `runner.run(&job)`
//! plays a whole job; `runner.start(&job)` plays it beside the test, which may cancel it; `runner.start_in_own_process(&job)`
//! does the same in a process that can really be killed; `runner.attempt(&job)` makes single calls by hand. Nothing is masked
//! in the log, unlike GitLab's: a test must be able to see a secret that leaked.
//!
//! ```ignore
//! let runner = Runner::new(env!("CARGO_BIN_EXE_greenroom"), home.path()).with_global_args(&["--config", file]);
//! let result = runner.run(&Job::new(1).script(["exit 42"]).after_script(["echo $CI_JOB_STATUS"]));
//! result.expect_outcome(&Outcome::ScriptFailure { exit_code: 42 });
//! assert!(result.call("after_script").stdout_text().contains("failed"));
//!
//! let handle = runner.start_in_own_process(&Job::new(2).script(["while sleep 0.1; do echo tick; done"]));
//! let run = handle.wait_for_stage("build_script");
//! run.wait_for_output("tick", Duration::from_secs(30));
//! handle.kill_runner();
//! assert_eq!(handle.finish().outcome, Outcome::None);
//!
//! let attempt = runner.attempt(&Job::new(3));
//! assert_eq!(attempt.config().exit_code(), Some(0));
//! let prepare = attempt.start_prepare();
//! prepare.kill9();
//! ```
//!
//! [`Runner`](runner::Runner) `::start_in_own_process` needs the line `greenroom_testkit::runner_process!();` in the root of the
//! test program. A script that a test stops should sleep in short pieces: bash loses a SIGTERM for a child between its fork and exec.

pub mod attempt;
mod config_json;
mod events;
pub mod exit_code;
pub mod handle;
pub mod job;
mod play;
pub mod process;
pub mod record;
pub mod repository;
pub mod runner;
mod script;
mod variables;
