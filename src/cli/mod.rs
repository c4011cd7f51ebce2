//! Arguments, terminal, messages.

pub mod args;
pub mod error;
pub mod ui;

use std::ffi::OsString;
use std::process::ExitCode;

/// Parses, dispatches, prints errors, maps the exit status.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    drop(args);
    ExitCode::from(2)
}
