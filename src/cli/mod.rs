//! Arguments, terminal, messages.

pub mod args;
mod context;
pub mod doctor;
mod driver;
pub mod error;
pub mod explain;
mod job;
mod keep;
mod log;
mod messages;
pub mod near;
mod orders;
pub mod pool;
pub mod rows;
mod setup;
#[cfg(test)]
pub(crate) mod story;
mod trial;
pub mod ui;
pub mod when;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::gitlab::env::JobEnv;
use crate::gitlab::exit::Outcome;
use args::{Cli, Command, Place, PoolCommand};
use error::CliError;

/// Parses, dispatches, prints errors, maps the exit status.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let Cli { place, command } = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(problem) => {
            problem.print().ok();
            return ExitCode::from(u8::try_from(problem.exit_code()).unwrap_or(2));
        }
    };
    match command {
        Command::Config(_) | Command::Prepare(_) | Command::Run { .. } | Command::Cleanup(_) => {
            called_by_runner(&place, &command)
        }
        Command::Instance { arguments } => crate::provider::local::server::main(&arguments),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "greenroom", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        command => match in_runtime(for_operator(&place, command)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(error) => {
                ui::err(&error.for_operator());
                ExitCode::from(2)
            }
        },
    }
}

/// A call of GitLab Runner: exit codes are its own, errors are one sentence for the job's author.
fn called_by_runner(place: &Place, command: &Command) -> ExitCode {
    let env = JobEnv::read(std::env::vars_os());
    let codes = env.exit_codes();
    let outcome = match command {
        Command::Config(option) => driver::config(place, option, &env),
        Command::Prepare(option) => in_runtime(driver::prepare(place, option, env)),
        Command::Run { script, stage } => in_runtime(driver::run(place, script, stage, env)),
        Command::Cleanup(option) => in_runtime(driver::cleanup(place, option, env)),
        _ => Ok(Outcome::System),
    };
    ExitCode::from(codes.of_outcome(outcome.unwrap_or_else(|error| driver::failed(&error))))
}

async fn for_operator(place: &Place, command: Command) -> Result<bool, CliError> {
    match command {
        Command::Keep { background } => keep::keep(place, background).await,
        Command::Reap { pool, dry_run, json } => keep::reap(place, pool.as_deref(), dry_run, json).await,
        Command::Pool(PoolCommand::Drain { pool, instance, wait, dry_run }) => {
            orders::drain(place, pool.as_deref(), instance.as_deref(), wait, dry_run).await
        }
        Command::Pool(PoolCommand::Resume { pool, instance, dry_run }) => {
            orders::resume(place, pool.as_deref(), instance.as_deref(), dry_run).await
        }
        Command::Pool(PoolCommand::Status { pool, watch, json }) => {
            pool::status::command::status(place, pool.as_deref(), watch, json).await
        }
        Command::Explain { what, json } => explain::command::tell(place, &what, json).await,
        Command::Doctor(options) => doctor::command::doctor(place, &options).await,
        Command::Try(options) => trial::try_job(place, options).await,
        _ => Err(CliError::say("this command is not there yet")),
    }
}

/// Driver calls start ten times a job: one thread, nothing else.
fn in_runtime<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    if std::env::args_os().nth(1).is_some_and(|a| a == "keep")
        && std::env::args_os().any(|a| a == "--background")
    {
        crate::host::local::detach()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work)
}
