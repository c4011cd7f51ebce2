//! Commands for a guest's shell.
//!
//! A stage runs as `exec /bin/sh -c 'echo MARK$$ >&2; exec bash'`, which every login shell understands. The mark is
//! random, so neither a profile's output nor a script can imitate the word after it, the stage's stop handle.

use russh::Sig;

use super::container;
use super::quote::shell;
use crate::core::execution::Shell;
use crate::core::text::clean_line;
use crate::port::connector::{ConnectError, Reader, StageEnd};

/// A command line that first prints its stop handle, and the mark that identifies that line.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) command: String,
    pub(super) mark: String,
}

impl Marked {
    /// What reads a script from standard input. `before`: shell commands to run first.
    pub(super) fn reader(reader: &Reader, before: &str) -> Result<Self, ConnectError> {
        let program = match reader {
            Reader::Shell(Shell::Bash) => "bash",
            Reader::Shell(Shell::Sh) => "sh",
            Reader::Shell(Shell::Pwsh) => {
                "pwsh -NoProfile -NoLogo -NonInteractive -InputFormat text -OutputFormat text \
                 -ExecutionPolicy Bypass -Command -"
            }
            Reader::Container(container) => {
                return Self::new(before, &format!("$$.{container}"), &container::start(container));
            }
        };
        Self::new(before, "$$", &format!("exec {program}"))
    }

    /// An operator's command, in the syntax of `/bin/sh`.
    pub(super) fn command(command: &str) -> Result<Self, ConnectError> {
        Self::new("", "$$", command)
    }

    /// `handle`: the stop handle, as the shell expands it.
    fn new(before: &str, handle: &str, command: &str) -> Result<Self, ConnectError> {
        let mark = random_mark("session")?;
        Ok(Self { command: shell(&format!("{before}echo {mark}{handle} >&2; {command}")), mark })
    }
}

/// A text that no other process knows.
pub(super) fn random_mark(what: &str) -> Result<String, ConnectError> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|e| {
        ConnectError::Local { what: format!("cannot get random numbers from the kernel: {e}") }
    })?;
    Ok(format!("greenroom-{what}-{:032x}-", u128::from_ne_bytes(random)))
}

/// The end by a signal, whose name the guest may have invented.
pub(super) fn signalled(signal: &Sig) -> StageEnd {
    StageEnd::Signalled(match signal {
        Sig::Custom(name) => clean_line(name.as_bytes(), 32),
        known => format!("{known:?}"),
    })
}
