//! Decides which of the two programs runs a command.
//!
//! `greenroom` starts a dozen times per job, so it does not contain the libraries of clouds. If the configuration needs
//! them, commands that make a provider's calls re-execute as `greenroom-backends`, which is installed beside it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use greenroom_providers::registration::Calls;

use super::args::{Command, GlobalOptions, OperatorCommand, PoolCommand};
use super::context::config_file;
use super::error::CliError;
use super::plugin::args::PluginCommand;
use crate::config::{Config, PoolConfig};
use crate::provider;

const DRIVER: &str = "greenroom";
const BACKENDS: &str = "greenroom-backends";

/// The absolute path of the program for driver calls, links and `local` instances.
pub(super) fn driver() -> std::io::Result<PathBuf> {
    let running = std::env::current_exe()?;
    let running = successor(&running).filter(|path| path.exists()).unwrap_or(running);
    let beside = running.with_file_name(DRIVER);
    Ok(if is_backends(&running) && beside.exists() { beside } else { running })
}

fn is_backends(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == BACKENDS)
}

/// The absolute path of the program for port-forwards, beside [`driver`], whether it exists or not.
pub(super) fn forwarder() -> Option<PathBuf> {
    Some(driver().ok()?.with_file_name(BACKENDS))
}

/// The path of the new program, if an upgrade replaced this one's file: Linux then marks the path of the old one.
fn successor(running: &Path) -> Option<PathBuf> {
    let path = running.as_os_str().as_bytes().strip_suffix(b" (deleted)")?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// Re-executes as `greenroom-backends` if the command needs it ([`makes_calls`]), and does not return then. An error if that
/// program is missing, except for `doctor`, which reports it.
pub(super) fn go_on(place: &GlobalOptions, command: &Command) -> Result<(), CliError> {
    let Command::Operator(command) = command else { return Ok(()) };
    let of_plugins = match command {
        OperatorCommand::Plugin(PluginCommand::Install(_)) => Some("the installation of plugins"),
        OperatorCommand::Plugin(PluginCommand::Test(_)) => Some("the conformance kit of plugins"),
        _ => None,
    };
    if let Some(what) = of_plugins.filter(|_| !provider::has_calls()) {
        return Err(become_program(&backends(what)?));
    }
    if !makes_calls(command) {
        return Ok(());
    }
    // The command itself reports an invalid configuration.
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

/// Re-executes as the program that the configuration needs now. Returns only an error.
pub(super) fn begin_anew() -> CliError {
    driver().map_or_else(CliError::system, |driver| become_program(&driver))
}

fn become_program(program: &Path) -> CliError {
    let mut arguments = std::env::args_os();
    let mut process = Process::new(program);
    // Under its original name, by which operators find it.
    process.arg0(arguments.next().unwrap_or_else(|| DRIVER.into())).args(arguments);
    CliError::system(process.exec())
        .help(format!("check `{}`, which this command re-executes as", program.display()))
}

/// The path of `greenroom-backends`, if this configuration needs it and this program is another; an error if it is missing
/// ([`backends`]).
pub(super) fn other(config: &Config) -> Result<Option<PathBuf>, CliError> {
    let elsewhere = |pool: &&PoolConfig| calls(pool) == Some(Calls::Delegated);
    let Some(pool) = config.pools.values().find(elsewhere) else { return Ok(None) };
    backends(&format!("provider \"{}\"", pool.provider.kind)).map(Some)
}

/// The path of `greenroom-backends`; an error that names what needs it if it is missing.
pub(super) fn backends(for_what: &str) -> Result<PathBuf, CliError> {
    let running = std::env::current_exe()?;
    let help = "install both programs of the package that `scripts/package` builds";
    if is_backends(&running) {
        // It would re-execute as itself without end.
        let what = format!("{for_what} needs another build of `{BACKENDS}`: this one does not contain it");
        return Err(CliError::say(what).help(help));
    }
    let backends = running.with_file_name(BACKENDS);
    if backends.exists() {
        return Ok(backends);
    }
    let beside = backends.parent().unwrap_or(Path::new("/")).display().to_string();
    let what = format!("{for_what} needs the program `{BACKENDS}`, which is not in `{beside}`");
    Err(CliError::say(what).help(help))
}

/// The program that makes the calls of a pool; `None`: no provider of that kind exists.
pub(super) fn calls(pool: &PoolConfig) -> Option<Calls> {
    provider::find(&pool.provider.kind).ok().map(|known| known.calls)
}

fn makes_calls(command: &OperatorCommand) -> bool {
    match command {
        OperatorCommand::Keep { .. }
        | OperatorCommand::Reap { .. }
        | OperatorCommand::Doctor(_)
        | OperatorCommand::Pool(PoolCommand::Leaks(_)) => true,
        OperatorCommand::Metrics { .. }
        | OperatorCommand::Pool(_)
        | OperatorCommand::Explain { .. }
        | OperatorCommand::History(_)
        | OperatorCommand::Try(_)
        | OperatorCommand::Image(_)
        | OperatorCommand::Init(_)
        // Its program is not in the configuration, and needs no library.
        | OperatorCommand::Provider(_)
        // `go_on` knows the one that calls a registry, whatever the configuration.
        | OperatorCommand::Plugin(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_program_starts_the_one_in_its_place() {
        let new = successor(Path::new("/usr/bin/greenroom (deleted)"));
        assert_eq!(new.as_deref(), Some(Path::new("/usr/bin/greenroom")));
        assert_eq!(successor(Path::new("/usr/bin/greenroom")), None);
    }
}
