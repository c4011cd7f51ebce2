//! Commands for a guest's shell.
//!
//! A stage runs as `exec /bin/sh -c 'echo MARK$$ >&2; exec bash'`, which every login shell understands. The mark is
//! random, so neither a profile's output nor a script can imitate the word after it, the stage's stop handle.
//!
//! The shell then gets a first line, and acknowledges it by another random mark, which it has to put together. The
//! script follows only after that: what a profile or `BASH_ENV` leaves behind may read its standard input, or may not
//! be the shell at all.

use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::secret::Secret;
use greenroom_core::text::clean_line;
use greenroom_ports::connector::{ConnectError, Reader, StageEnd};
use russh::Sig;

use super::container;
use super::login_profile::{Environment, Login};
use super::quote::shell;
use super::sift::Word;

/// A command line that first prints its stop handle, and the mark that identifies that line.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) command: String,
    pub(super) mark: String,
    /// `None`: the program reads nothing before its input, or shows in another way that it reads a script: a container's
    /// shell has a first line of its own; see `proof`.
    pub(super) first_line: Option<FirstLine>,
    /// The login profile that is read before.
    pub(super) login: Option<Login>,
}

/// The first line that a shell gets, before any part of a script.
#[derive(Debug)]
pub(super) struct FirstLine {
    /// What is sent. The line of a login shell's environment comes before it.
    pub(super) text: Secret<String>,
    /// What the shell prints for it, as a line of its standard output.
    pub(super) mark: String,
    is_for: Shell,
}

impl FirstLine {
    fn new(is_for: Shell, environment: Option<&Environment>) -> Result<Self, ConnectError> {
        let mark = random_mark("shell")?;
        let (begin, rest) = mark.split_at(mark.len() / 2);
        let environment = environment.map_or("", Environment::line);
        // What only repeats its input does not print the mark.
        let text = format!("{environment}echo {begin}\"\"{rest}${{BASH_VERSION:+bash}}\n");
        Ok(Self { text: Secret::new(text), mark, is_for })
    }

    /// True if the shell that answered is the one that was started.
    pub(super) fn is_answered_by(&self, answer: &Acknowledged) -> bool {
        self.is_for != Shell::Bash || answer.is_bash
    }
}

/// The rest of the line by which a shell answers its first line.
#[derive(Debug)]
pub(super) struct Acknowledged {
    is_bash: bool,
}

impl Word for Acknowledged {
    const LONGEST: usize = 4;

    fn parse(word: &[u8]) -> Option<Self> {
        match word.strip_suffix(b"\r").unwrap_or(word) {
            b"bash" => Some(Self { is_bash: true }),
            b"" => Some(Self { is_bash: false }),
            _ => None,
        }
    }
}

impl Marked {
    /// What reads a script from standard input. `before`: shell commands to run first. `environment`: that of an earlier
    /// login shell, which then needs no other one.
    pub(super) fn reader(
        reader: &Reader,
        before: &str,
        environment: Option<&Environment>,
    ) -> Result<Self, ConnectError> {
        let StageShell { shell: kind, login_shell, separate_stderr } = match reader {
            Reader::Shell(shell) => *shell,
            Reader::Container(container) => {
                return Self::new(before, &format!("$$.{container}"), &container::start(container));
            }
        };
        let program = match kind {
            Shell::Bash => "bash",
            Shell::Sh => "sh",
            Shell::Pwsh => {
                "pwsh -NoProfile -NoLogo -NonInteractive -InputFormat text -OutputFormat text \
                 -ExecutionPolicy Bypass -Command -"
            }
        };
        let joined = if separate_stderr { "" } else { " 2>&1" };
        let mark = random_mark("session")?;
        // PowerShell starts without a profile, and gets no first line that the environment could come before.
        let has_first_line = kind != Shell::Pwsh;
        let known = environment.filter(|_| login_shell && has_first_line);
        let handle = format!("echo {mark}$$ >&2; ");
        let command = match known {
            // After the handle, because a profile may start something else, which must not read it.
            Some(_) => format!("{handle}{}{before}exec {program}{joined}", Environment::READ),
            None => format!("{before}{handle}exec {program}{joined}"),
        };
        let login = if login_shell && known.is_none() { Some(Login::new(kind)?) } else { None };
        let command = login.as_ref().map_or_else(|| shell(&command), |login| login.command(&command));
        let first_line = if has_first_line { Some(FirstLine::new(kind, known)?) } else { None };
        Ok(Self { command, mark, first_line, login })
    }

    /// An operator's command, in the syntax of `/bin/sh`.
    pub(super) fn command(command: &str) -> Result<Self, ConnectError> {
        Self::new("", "$$", command)
    }

    /// `handle`: the stop handle, as the shell expands it.
    fn new(before: &str, handle: &str, command: &str) -> Result<Self, ConnectError> {
        let mark = random_mark("session")?;
        let command = shell(&format!("{before}echo {mark}{handle} >&2; {command}"));
        Ok(Self { command, mark, first_line: None, login: None })
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
