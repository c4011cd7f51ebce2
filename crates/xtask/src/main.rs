//! The program that runs the steps of the test suite. `scripts/test` calls it after it has installed what they need.

use std::env;
use std::fs;
use std::io;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use regex_lite::Regex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use greenroom_xtask::build::Dirs;
use greenroom_xtask::process::{self, Processes};
use greenroom_xtask::report::StepReport;
use greenroom_xtask::run::{self, Results, Run};
use greenroom_xtask::setting::{SelectionError, Setting};
use greenroom_xtask::step::{Need, Step};
use greenroom_xtask::steps::STEPS;
use greenroom_xtask::summary::SkippedTests;
use greenroom_xtask::{junit, summary};

/// The exit status of wrong usage, which includes an `--only` that matches nothing.
const USAGE: u8 = 2;
/// The exit status of a run that a signal stopped.
const INTERRUPTED: u8 = 130;

/// Tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the steps of the test suite
    Test(TestArguments),
    /// List the steps of the test suite
    Steps,
    /// Become a program that ends with its parent
    #[command(name = process::EXEC, hide = true)]
    Exec {
        parent: i32,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct TestArguments {
    /// Run more seeds, kills and mutants, for hours
    #[arg(long)]
    full: bool,
    /// Run the steps whose names match
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,
    /// Part of the machine that is missing
    #[arg(long = "without", value_name = "PART")]
    missing: Vec<Need>,
    /// Language whose linter is installed
    #[arg(long = "lint", value_name = "LANGUAGE")]
    languages: Vec<String>,
    /// Sentence of the summary on what cannot be tested here
    #[arg(long = "skipped", value_name = "TEXT")]
    skipped_parts: Vec<String>,
}

/// The reasons for which there is no result.
#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error("cannot prepare the run: {0}")]
    Prepare(#[from] io::Error),
    #[error("cannot write {}: {source}", path.display())]
    Junit { path: PathBuf, source: io::Error },
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Test(arguments) => test(arguments).unwrap_or_else(|error| {
            writeln!(io::stderr(), "scripts/test: {error}").ok();
            ExitCode::from(match error {
                TestError::Selection(_) => USAGE,
                TestError::Prepare(_) | TestError::Junit { .. } => 1,
            })
        }),
        Task::Steps => {
            let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
            writeln!(io::stdout(), "{}", names.join("\n")).ok();
            ExitCode::SUCCESS
        }
        Task::Exec { parent, words } => process::exec_with_parent(parent, &words),
    }
}

fn test(arguments: TestArguments) -> Result<ExitCode, TestError> {
    let begun = Instant::now();
    let setting =
        Setting { is_full: arguments.full, missing: arguments.missing, languages: arguments.languages };
    let wanted = setting.wanted(STEPS, arguments.only.as_ref())?;
    let all: Vec<&Step> = STEPS.iter().filter(|step| !step.lane.is_full() && setting.allows(step)).collect();

    let processes = Arc::new(Processes::of_this_program()?);
    stop_at_signals(&processes)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let target = run::target_dir(&root, env::var_os("CARGO_TARGET_DIR").as_deref())?;
    let log = tempfile::tempdir()?;
    let skipped = log.path().join("skipped");
    fs::write(&skipped, "")?;

    let mut out = io::stdout();
    let env = variables(setting.is_full, &skipped);
    let dirs = Dirs { root, target: target.clone() };
    let run = Run::new(setting, dirs, env, log.path(), &processes, &mut out);
    let Results { reports, skipped_parts } = run.run(&wanted, &all);

    let skipped_tests = SkippedTests::read(&fs::read_to_string(&skipped)?);
    let path = target.join("junit.xml");
    fs::write(&path, junit::render(&reports, &skipped_tests))
        .map_err(|source| TestError::Junit { path, source })?;
    if processes.is_stopping() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let skipped_parts = [arguments.skipped_parts, skipped_parts].concat();
    let text = summary::render(&reports, &skipped_parts, &skipped_tests, begun.elapsed());
    io::stdout().write_all(text.as_bytes()).ok();
    let is_passed = !reports.is_empty() && reports.iter().all(StepReport::is_passed);
    Ok(if is_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Variables of all processes.
fn variables(is_full: bool, skipped: &Path) -> Vec<(String, String)> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    // Most tests wait for processes and machines. More than eight at a time would only wait for each other.
    let threads = if processors < 4 { 2 * processors } else { 8 };
    let mut variables = vec![
        // Clippy as the compiler of this workspace: `cargo clippy` would read all libraries once more, which takes six minutes.
        ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver".to_owned()),
        ("RUST_TEST_THREADS", threads.to_string()),
        ("GREENROOM_SKIPPED", skipped.to_string_lossy().into_owned()),
    ];
    // A case that finds an unknown fault must not stop a change that has nothing to do with it: new cases are for `--full`.
    if !is_full {
        variables.push(("PROPTEST_RNG_SEED", "1".to_owned()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Stops all processes when a signal asks this one to end.
fn stop_at_signals(processes: &Arc<Processes>) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let processes = Arc::clone(processes);
    thread::spawn(move || {
        for _ in signals.forever() {
            // A pipe that cannot be written to leaves the processes running; a second signal tries again.
            processes.stop().ok();
        }
    });
    Ok(())
}
