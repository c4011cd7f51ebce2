//! Which of the two programs does what.
//!
//! `greenroom` starts a dozen times a job, so it goes without the libraries of clouds. Commands that make a provider's calls
//! go on as `greenroom-clouds`, which lies beside it and is the same otherwise, where the configuration needs it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use super::args::{Command, OperatorCommand, Place, PoolCommand};
use super::context::config_file;
use super::error::CliError;
use crate::config::Config;
use crate::provider::{self, Calls};

const DRIVER: &str = "greenroom";
const CLOUDS: &str = "greenroom-clouds";

/// The program for driver calls, links, and instances that are processes of ours. Absolute.
pub(super) fn driver() -> std::io::Result<PathBuf> {
    let running = std::env::current_exe()?;
    let beside = running.with_file_name(DRIVER);
    let is_clouds = running.file_name().is_some_and(|name| name == CLOUDS);
    Ok(if is_clouds && beside.exists() { beside } else { running })
}

/// Goes on as the other program where the command needs it: then this does not return. An error if it is missing, unless
/// the command is the one that says what is missing.
pub(super) fn go_on(place: &Place, command: &Command) -> Result<(), CliError> {
    let Some(kind) = wanted(place, command) else { return Ok(()) };
    let clouds = std::env::current_exe()?.with_file_name(CLOUDS);
    if !clouds.exists() {
        let examines = |command: &OperatorCommand| matches!(command, OperatorCommand::Doctor(doctor) if doctor.boot.is_none());
        if matches!(command, Command::Operator(command) if examines(command)) {
            return Ok(());
        }
        let beside = clouds.parent().unwrap_or(Path::new("/")).display().to_string();
        let what = format!("provider \"{kind}\" needs the program `{CLOUDS}`, which is not in `{beside}`");
        return Err(CliError::say(what)
            .hint("the package has both programs; `cargo build --features aws-ec2,gce` makes both"));
    }
    let mut process = Process::new(&clouds);
    process.arg0(DRIVER).args(std::env::args_os().skip(1));
    Err(CliError::system(process.exec()).hint(format!("it was about to go on as `{}`", clouds.display())))
}

/// The kind of provider for which this command needs the other program; `None`: it can go on as this one.
fn wanted(place: &Place, command: &Command) -> Option<&'static str> {
    let Command::Operator(command) = command else { return None };
    if !makes_calls(command) {
        return None;
    }
    // What is wrong with a configuration, the command itself says.
    let (config, _) = Config::read(&config_file(place).ok()?).ok()?;
    let mut kinds = config.pools.values().filter_map(|pool| provider::find(&pool.provider.kind).ok());
    kinds.find(|known| known.calls == Calls::Elsewhere).map(|known| known.kind)
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
