//! Arguments, terminal, messages.

pub mod args;
pub mod doctor;
pub mod error;
pub mod explain;
pub mod near;
pub mod pool;
pub mod rows;
#[cfg(test)]
pub(crate) mod story;
pub mod ui;
pub mod when;

use std::ffi::OsString;
use std::process::ExitCode;

/// Parses, dispatches, prints errors, maps the exit status.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = args.skip(1).collect();
    match arguments.split_first() {
        Some((command, rest)) if command == "instance" => crate::provider::local::server::main(rest),
        _ => ExitCode::from(2),
    }
}
