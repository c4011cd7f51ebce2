//! Arguments, terminal, messages.

pub mod args;
mod containers;
mod context;
pub mod doctor;
mod driver;
pub mod error;
mod explain;
mod fields;
#[cfg(test)]
pub(crate) mod fixture;
mod history;
pub mod image;
pub mod init;
mod job;
mod keep;
mod kit;
mod man;
mod messages;
mod metrics;
mod notify;
mod plugin;
pub mod pool;
mod program;
mod prompt;
mod provider;
mod read_model;
mod reporting;
mod runner_args;
mod service;
mod setup;
mod trial;
pub mod ui;
pub mod when;

use std::ffi::OsString;
use std::process::ExitCode;
use std::rc::Rc;

use clap::{CommandFactory as _, Parser as _};
use greenroom_core::time::ManagerId;
use greenroom_manager::gitlab::env::JobEnv;
use greenroom_manager::runner_host::SystemClock;
use greenroom_ssh::link;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use args::{Cli, Command, GlobalOptions, OperatorCommand, PoolCommand, RunnerCall};
use error::CliError;

/// [`run`] with the calls to clouds that this program was built with.
#[cfg(feature = "backends")]
pub fn run_with_backends(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    #[cfg(feature = "https")]
    if matches!(args.as_slice(), [_, only] if only == notify::helper::COMMAND) {
        forbid_core_dumps();
        return notify::helper::process::main();
    }
    #[cfg(feature = "kubernetes")]
    if matches!(args.as_slice(), [_, only] if only == greenroom_ports::forward::COMMAND) {
        forbid_core_dumps();
        return greenroom_backends::kubernetes::forward();
    }
    crate::provider::install(crate::provider::WITH_BACKENDS);
    run(args.into_iter())
}

/// Parses, dispatches, prints errors, maps the exit status.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    forbid_core_dumps();
    let args: Vec<OsString> = args.collect();
    // There may be hundreds of links, running for days: they must not even keep the memory of an argument parser.
    if matches!(args.as_slice(), [_, only] if only == link::process::COMMAND) {
        // A link writes no state, so it needs no manager.
        return match SystemClock::new(ManagerId::default()) {
            Ok(clock) => link::process::main(Rc::new(clock)),
            Err(_) => ExitCode::FAILURE,
        };
    }
    if let Some((place, call)) = runner_args::read(&args, |name| std::env::var_os(name)) {
        return called_by_runner(&place, &call);
    }
    let Cli { place, command } = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(problem) => {
            problem.print().ok();
            return ExitCode::from(u8::try_from(problem.exit_code()).unwrap_or(2));
        }
    };
    if let Err(error) = program::go_on(&place, &command) {
        if let Command::Operator(OperatorCommand::Keep { background: true, .. }) = command {
            keep::complain(&place, &error);
        }
        ui::err(&error.for_operator());
        return ExitCode::from(2);
    }
    match command {
        Command::Runner(call) => called_by_runner(&place, &call),
        Command::Operator(command) => called_by_operator(&place, command),
        Command::Schema => {
            ui::out(&schema());
            ExitCode::SUCCESS
        }
        Command::Instance { arguments } => crate::provider::instance(&arguments),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "greenroom", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { command, dir } => exit_status(man::man(&command, dir.as_deref()).map(|()| true)),
    }
}

/// The JSON Schema of the configuration, with the keys of all providers.
fn schema() -> String {
    format!("{:#}\n", greenroom_keys::schema::render(crate::config::KEYS, crate::provider::KEYS))
}

/// Exit codes are the runner's own; an error is one sentence in the job log.
fn called_by_runner(place: &GlobalOptions, call: &RunnerCall) -> ExitCode {
    let env = JobEnv::read(|name| std::env::var_os(name));
    let codes = env.exit_codes();
    let outcome = match call {
        RunnerCall::Config(option) => driver::config(place, option, &env),
        RunnerCall::Prepare(option) => in_runtime(|| driver::prepare(place, option, env)),
        RunnerCall::Run { script, stage } => in_runtime(|| driver::run(place, script, stage, env)),
        RunnerCall::Cleanup(option) => in_runtime(|| driver::cleanup(place, option, env)),
    };
    ExitCode::from(codes.of_outcome(outcome.unwrap_or_else(|error| driver::failed(&error))))
}

/// Exit status: 0 success, 1 negative result, 2 failure.
fn called_by_operator(place: &GlobalOptions, command: OperatorCommand) -> ExitCode {
    exit_status(match command {
        OperatorCommand::Keep { background: true, .. } => greenroom_manager::runner_host::detach()
            .map_err(CliError::from)
            .and_then(|()| in_runtime(|| keep::keep(place, true, None))),
        other => in_runtime(|| ask(place, other)),
    })
}

fn exit_status(answer: Result<bool, CliError>) -> ExitCode {
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            ui::err(&error.for_operator());
            ExitCode::from(2)
        }
    }
}

async fn ask(place: &GlobalOptions, command: OperatorCommand) -> Result<bool, CliError> {
    match command {
        OperatorCommand::Keep { metrics, background } => keep::keep(place, background, metrics).await,
        OperatorCommand::Metrics { output, openmetrics } => {
            metrics::print(place, output.as_deref(), openmetrics).await
        }
        OperatorCommand::Reap { pool, dry_run, json } => {
            keep::reap(place, pool.as_deref(), dry_run, json).await
        }
        OperatorCommand::Pool(PoolCommand::Drain { pool, instance, wait, dry_run }) => {
            pool::drain::drain(place, pool.as_deref(), instance.as_deref(), wait, dry_run).await
        }
        // The order of the next four counts: the plain `resume` is the last.
        OperatorCommand::Pool(PoolCommand::Resume { pool, forget_elsewhere: true, dry_run, .. }) => {
            pool::drain::forget_elsewhere(place, pool.as_deref(), dry_run).await
        }
        OperatorCommand::Pool(PoolCommand::Resume { pool, forget_unreachable: true, dry_run, .. }) => {
            pool::drain::forget_unreachable(place, pool.as_deref(), dry_run).await
        }
        OperatorCommand::Pool(PoolCommand::Resume {
            pool,
            instance: Some(host),
            unbind: true,
            dry_run,
            ..
        }) => pool::drain::unbind(place, pool.as_deref(), &host, dry_run).await,
        OperatorCommand::Pool(PoolCommand::Resume { pool, instance, dry_run, .. }) => {
            pool::drain::resume(place, pool.as_deref(), instance.as_deref(), dry_run).await
        }
        OperatorCommand::Pool(PoolCommand::Status { pool, wide, watch, json }) => {
            pool::status::status(place, pool.as_deref(), wide, watch, json).await
        }
        OperatorCommand::Pool(PoolCommand::Leaks(options)) => pool::leaks::leaks(place, &options).await,
        OperatorCommand::Explain { what, json } => explain::explain_it(place, &what, json).await,
        OperatorCommand::History(options) => history::history(place, &options).await,
        OperatorCommand::Doctor(options) => doctor::doctor(place, &options).await,
        OperatorCommand::Try(options) => trial::try_job(place, options).await,
        OperatorCommand::Image(command) => image::image(place, command).await,
        OperatorCommand::Init(options) => init::init(place, &options),
        OperatorCommand::Provider(command) => provider::provider(command).await,
        OperatorCommand::Plugin(command) => plugin::plugin(place, command).await,
    }
}

/// Driver calls start ten times per job: one thread, nothing else. Each kind of work has a function of its own:
/// otherwise every call would touch, page by page, the stack that the largest of them needs.
#[inline(never)]
fn in_runtime<T, W: Future<Output = Result<T, CliError>>>(work: impl FnOnce() -> W) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())
}

/// Forbids core dumps of this process and of the programs that it starts: they hold keys and the runner's response.
///
/// With a limit of 0, Linux would still hand the dump to a program such as `systemd-coredump`; 1 forbids that, too. A
/// job on the provider `local` can raise the limit again.
fn forbid_core_dumps() {
    let maximum = getrlimit(Resource::Core).maximum;
    // A maximum of 0 is lower already.
    let _best_effort = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum });
}
