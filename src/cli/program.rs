//! Which of the two programs does what.
//!
//! `greenroom` starts a dozen times a job, so it goes without the libraries of clouds. Commands that make a provider's calls
//! go on as `greenroom-backends`, which lies beside it and is the same otherwise, where the configuration needs it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::args::{Command, GlobalOptions, OperatorCommand, PoolCommand};
use super::context::config_file;
use super::error::CliError;
use crate::config::{Config, PoolConfig};
use crate::provider::{self, Calls};

const DRIVER: &str = "greenroom";
const BACKENDS: &str = "greenroom-backends";

/// The program for driver calls, links, and instances that are processes of ours. Absolute.
pub(super) fn driver() -> std::io::Result<PathBuf> {
    let running = std::env::current_exe()?;
    let beside = running.with_file_name(DRIVER);
    let is_backends = running.file_name().is_some_and(|name| name == BACKENDS);
    Ok(if is_backends && beside.exists() { beside } else { running })
}

/// Goes on as the other program where the command needs it: then this does not return. An error if it is missing, unless
/// the command is the one that says what is missing.
pub(super) fn go_on(place: &GlobalOptions, command: &Command) -> Result<(), CliError> {
    let Command::Operator(command) = command else { return Ok(()) };
    if !makes_calls(command) {
        return Ok(());
    }
    // What is wrong with a configuration, the command itself says.
    let Some((config, _)) = config_file(place).ok().and_then(|path| Config::read(&path).ok()) else {
        return Ok(());
    };
    match other(&config) {
        Ok(None) => Ok(()),
        Ok(Some(backends)) => Err(become_program(&backends)),
        Err(_) if matches!(command, OperatorCommand::Doctor(doctor) if doctor.boot.is_none()) => Ok(()),
        Err(missing) => Err(missing),
    }
}

/// Begins anew, as whichever program the configuration needs now. Returns only to say why not.
pub(super) fn begin_anew() -> CliError {
    driver().map_or_else(CliError::system, |driver| become_program(&driver))
}

fn become_program(program: &Path) -> CliError {
    let mut arguments = std::env::args_os();
    let mut process = Process::new(program);
    // Under the name that it was called by: who looks for it finds it.
    process.arg0(arguments.next().unwrap_or_else(|| DRIVER.into())).args(arguments);
    CliError::system(process.exec()).help(format!("it was about to go on as `{}`", program.display()))
}

/// The program that makes the calls of this configuration, if this one cannot; an error if it is missing.
pub(super) fn other(config: &Config) -> Result<Option<PathBuf>, CliError> {
    let elsewhere = |pool: &&PoolConfig| calls(pool) == Some(Calls::Delegated);
    let Some(pool) = config.pools.values().find(elsewhere) else { return Ok(None) };
    let backends = std::env::current_exe()?.with_file_name(BACKENDS);
    if backends.exists() {
        return Ok(Some(backends));
    }
    let beside = backends.parent().unwrap_or(Path::new("/")).display().to_string();
    let kind = &pool.provider.kind;
    let what = format!("provider \"{kind}\" needs the program `{BACKENDS}`, which is not in `{beside}`");
    Err(CliError::say(what)
        .help("the package has both programs; `cargo build --features aws-ec2,gce` makes both"))
}

/// Who makes the calls of a pool; `None`: no provider of that kind is known.
pub(super) fn calls(pool: &PoolConfig) -> Option<Calls> {
    provider::find(&pool.provider.kind).ok().map(|known| known.calls)
}

fn makes_calls(command: &OperatorCommand) -> bool {
    match command {
        OperatorCommand::Keep { .. }
        | OperatorCommand::Reap { .. }
        | OperatorCommand::Doctor(_)
        | OperatorCommand::Pool(PoolCommand::Leaks(_)) => true,
        OperatorCommand::Pool(_)
        | OperatorCommand::Explain { .. }
        | OperatorCommand::Try(_)
        | OperatorCommand::Image(_) => false,
    }
}
