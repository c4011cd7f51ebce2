//! Commands for a guest's shell, with the marks by which the guest shows that it carries them out.
//!
//! A stage first prints a mark. It is random, so neither a profile's output nor a script can imitate the word after it, the
//! stage's stop handle.
//!
//! The shell then gets a first line, and acknowledges it by another random mark, which it has to put together. The
//! script follows only after that: what a profile or `BASH_ENV` leaves behind may read its standard input, or may not
//! be the shell at all.

use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::text::{Secret, clean_line};
use greenroom_ports::connector::{ConnectError, Reader, StageEnd};
use greenroom_ports::dialect::{BASH, GuestDialect, Profile, Start};
use greenroom_system::random_hex;
use russh::Sig;

use super::login_profile::{Login, LoginEnvironment};
use super::marker_scan::Marker;
use super::stage::LocalError;

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
    /// The text that is sent. The line of a login shell's environment comes before it.
    pub(super) text: Secret<String>,
    /// The mark that the shell prints for it, as a line of its standard output.
    pub(super) mark: String,
    is_for: Shell,
}

impl FirstLine {
    fn new(
        dialect: &dyn GuestDialect,
        is_for: Shell,
        environment: Option<&LoginEnvironment>,
    ) -> Result<Self, ConnectError> {
        let mark = random_mark("shell")?;
        let text = dialect.first_line(&mark, environment.map_or("", LoginEnvironment::line));
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

impl Marker for Acknowledged {
    const LONGEST: usize = BASH.len();

    fn parse(word: &[u8]) -> Option<Self> {
        match word.strip_suffix(b"\r").unwrap_or(word) {
            b"" => Some(Self { is_bash: false }),
            word => (word == BASH.as_bytes()).then_some(Self { is_bash: true }),
        }
    }
}

impl Marked {
    /// A command that reads a script from standard input. `before`: commands to run first. `environment`: that of an earlier
    /// login shell, which then needs no other one.
    pub(super) fn reader(
        dialect: &'static dyn GuestDialect,
        reader: &Reader,
        before: &str,
        environment: Option<&LoginEnvironment>,
    ) -> Result<Self, ConnectError> {
        let mark = random_mark("session")?;
        let shell = match reader {
            Reader::Shell(shell) => Some(*shell),
            Reader::Container(_) => None,
        };
        let reads_profile = shell.is_some_and(|shell| shell.login_shell);
        // PowerShell starts without a profile, and gets no first line that the environment could come before.
        let first_line_of = shell.map(|StageShell { shell, .. }| shell).filter(|shell| *shell != Shell::Pwsh);
        let known = environment.filter(|_| reads_profile && first_line_of.is_some());
        let login = if reads_profile && known.is_none() { Some(Login::new(dialect)?) } else { None };
        let profile = match (&login, known) {
            (Some(login), _) => Profile::Read { mark: login.mark() },
            (None, Some(_)) => Profile::Known,
            (None, None) => Profile::Unread,
        };
        let command = dialect.start(reader, &Start { before, mark: &mark, profile });
        let first_line = match first_line_of {
            Some(shell) => Some(FirstLine::new(dialect, shell, known)?),
            None => None,
        };
        Ok(Self { command, mark, first_line, login })
    }

    /// An operator's command, in the syntax of the dialect.
    pub(super) fn command(dialect: &dyn GuestDialect, text: &str) -> Result<Self, ConnectError> {
        let mark = random_mark("session")?;
        let command = dialect.start_command(text, &mark);
        Ok(Self { command, mark, first_line: None, login: None })
    }
}

/// A text that no other process knows.
pub(super) fn random_mark(what: &str) -> Result<String, ConnectError> {
    let random = random_hex(16).map_err(LocalError::Random)?;
    Ok(format!("greenroom-{what}-{random}-"))
}

/// The end by a signal, whose name the guest may have invented.
pub(super) fn signalled(signal: &Sig) -> StageEnd {
    StageEnd::Signalled(match signal {
        Sig::Custom(name) => clean_line(name.as_bytes(), 32),
        known => format!("{known:?}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Output};
    use std::time::Duration;

    use greenroom_core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
    use greenroom_ports::connector::{Mark, Trace};
    use greenroom_ports::dialect::Posix;
    use greenroom_testkit::shells::shells;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quoted_text_reaches_the_command_as_it_is(text in "[ -~\n]{0,60}") {
            let out = Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", Posix.quote(&text))).output().unwrap();
            prop_assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
    }

    /// Leaves the trace of one stage; `path`: where the shell finds programs.
    fn leave(sh: &[&str], home: &Path, path: &str) -> Output {
        let trace = Trace {
            mark: Mark::new(&OwnerId::new("owner"), &PoolName::new("pool"), &InstanceId::new("host")),
            attempt: AttemptName::new("x1"),
            builds_dir: home.join("it's/builds/x1").display().to_string(),
        };
        let reader = Reader::Shell(Shell::Bash.into());
        let before = Posix.before(&reader, Some(&trace), Duration::ZERO);
        let script = format!("{before}echo $$ $TMPDIR $GREENROOM_TRACE");
        let program = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join(sh[0]))
            .find(|program| program.exists());
        Command::new(program.unwrap())
            .args(&sh[1..])
            .args(["-c", &script])
            .env("HOME", home)
            .env("PATH", path)
            .output()
            .unwrap()
    }

    #[test]
    fn only_the_first_stage_starts_programs_for_its_trace() {
        for sh in shells() {
            let home = tempfile::tempdir().unwrap();
            let own = std::env::var("PATH").unwrap();
            let outputs = [leave(sh, home.path(), &own), leave(sh, home.path(), "/nowhere")];
            let notes = home.path().join(".greenroom/owner.pool.host");
            for output in outputs {
                assert!(output.status.success() && output.stderr.is_empty(), "{sh:?}: {output:?}");
                let said = String::from_utf8(output.stdout).unwrap();
                let (session, rest) = said.trim().split_once(' ').unwrap();
                let builds = home.path().join("it's/builds/x1").display().to_string();
                assert_eq!(rest, format!("{builds}.tmp /owner.pool.host/"), "{sh:?}");
                let prefix = format!("x1.{session}.");
                let noted = std::fs::read_dir(&notes).unwrap().flatten();
                let noted: Vec<String> = noted.map(|n| n.file_name().into_string().unwrap()).collect();
                let start = noted.iter().find_map(|name| name.strip_prefix(&prefix));
                assert!(start.is_some_and(|start| start.parse::<u64>().is_ok()), "{sh:?}: {noted:?}");
                assert_eq!(std::fs::read_link(notes.join("x1.builds")).unwrap(), Path::new(&builds));
            }
        }
    }

    #[test]
    fn a_stage_that_cannot_leave_its_trace_does_not_run() {
        for sh in shells() {
            let home = tempfile::tempdir().unwrap();
            std::fs::write(home.path().join(".greenroom"), "").unwrap();
            let output = leave(sh, home.path(), &std::env::var("PATH").unwrap());
            assert_eq!(output.status.code(), Some(97), "{sh:?}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("greenroom: cannot record in "));
            assert!(output.stdout.is_empty());
        }
    }
}
