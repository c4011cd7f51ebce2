//! The SSH server of a pod: one static program, which an init container copies into the pod of any image.
//!
//! As the first process of the container `job`, it does what `entry.sh` does with an image's own sshd: it makes a host key,
//! shows its public half as the first line of the log, and serves one user with one key. Commands only: no terminal, no
//! forwarding, no file transfer. Each connection is a process of its own, which works as that user from its first byte on.
//! Each command has a session of its own, whose leader's parent is the connection's process.
//!
//!   greenroom-server                     the first process; settings.rs has its variables
//!   greenroom-server install FILE        copies this program
//!   greenroom-server connection          serves the socket on standard input
//!   greenroom-server session PROGRAM …   starts a program in a session of its own

#![forbid(unsafe_code)]

mod account;
mod connection;
mod first;
mod install;
mod leader;
mod settings;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// The image or the pod cannot serve jobs; `entry.sh` has the same.
const UNFIT: u8 = 78;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    let done = match (words.as_slice(), arguments.as_slice()) {
        ([], []) => return first::run(),
        (["--version"], _) => {
            // A closed output ends it all the same.
            let _closed = writeln!(std::io::stdout(), "greenroom-server {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        (["install", ..], [_, file]) => install::copy(file.as_ref()),
        (["connection"], _) => connection::serve(),
        (["session", ..], [_, program, rest @ ..]) => return leader::run(program, rest),
        _ => {
            note("usage: greenroom-server [install FILE]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&error.to_string());
            ExitCode::from(UNFIT)
        }
    }
}

/// Writes a line of the log.
fn note(text: &str) {
    // In one piece, because connections write concurrently. Without a log, there is no place to report to.
    let _unread = std::io::stderr().write_all(format!("greenroom: {text}\n").as_bytes());
}
