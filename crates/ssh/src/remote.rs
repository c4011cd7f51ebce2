//! Commands for a guest's shell.
//!
//! A stage runs as `exec /bin/sh -c 'echo MARK$$ >&2; exec bash'`, which every login shell understands. The mark is
//! random, so neither a profile's output nor a script can imitate the word after it, the stage's stop handle.
//!
//! The shell then gets a first line, and acknowledges it by another random mark, which it has to put together. The
//! script follows only after that: what a profile or `BASH_ENV` leaves behind may read its standard input, or may not
//! be the shell at all.
//!
//! On a host that other jobs use afterwards, a stage first leaves a trace for cleaning:
//! * a symbolic link `~/.greenroom/MARK/ATTEMPT.builds` to the attempt's builds directory; only the first stage makes it
//! * its session, as an empty file `ATTEMPT.SESSION.START` beside the link
//! * the mark, in the environment of every process that it starts
//! * a separate directory for temporary files
//!
//! Link and file need no space on a full disk.
//!
//! A stage that cannot leave its trace does not run, because cleaning would miss it.

use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::shell_text::one_line;
use greenroom_core::text::{Secret, clean_line, quoted};
use greenroom_ports::connector::{ConnectError, Mark, Reader, Stage, StageEnd, Trace};
use greenroom_system::random_hex;
use russh::Sig;

use super::container;
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
    fn new(is_for: Shell, environment: Option<&LoginEnvironment>) -> Result<Self, ConnectError> {
        let mark = random_mark("shell")?;
        let (begin, rest) = mark.split_at(mark.len() / 2);
        let environment = environment.map_or("", LoginEnvironment::line);
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

impl Marker for Acknowledged {
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
    /// A command that reads a script from standard input. `before`: shell commands to run first. `environment`: that of an earlier
    /// login shell, which then needs no other one.
    pub(super) fn reader(
        reader: &Reader,
        before: &str,
        environment: Option<&LoginEnvironment>,
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
            Some(_) => format!("{handle}{}{before}exec {program}{joined}", LoginEnvironment::READ),
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

/// A command line that hands `script` to `/bin/sh`, whatever the login shell is.
pub(super) fn shell(script: &str) -> String {
    format!("exec /bin/sh -c {}", quoted(script))
}

/// Shell commands for `/bin/sh`, to run before a stage's reader, or before that of a later stage.
pub(super) fn before(stage: &Stage, reader: &Reader) -> String {
    let limit = match reader {
        Reader::Container(_) => container::limit(stage.container_start),
        Reader::Shell(_) => String::new(),
    };
    prelude(stage.trace.as_ref()) + &limit
}

/// Shell commands for `/bin/sh`, to run before the interpreter takes its place.
pub(super) fn prelude(trace: Option<&Trace>) -> String {
    let Some(Trace { mark, attempt, builds_dir }) = trace else { return String::new() };
    let builds = quoted(builds_dir);
    let values = [("MARK", mark.as_str()), ("ATTEMPT", attempt.as_str()), ("BUILDS", builds.as_str())];
    one_line(include_str!("trace.sh"), &values) + " "
}

/// The prelude of a stage of no job, which an administrator's logs can tell from those of jobs: shows that a trace can be left,
/// and leaves none.
pub(super) fn probe_prelude(mark: Option<&Mark>) -> String {
    let Some(mark) = mark else { return ": check; ".to_owned() };
    one_line(include_str!("probe.sh"), &[("MARK", mark.as_str())]) + " "
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Output};

    use greenroom_core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
    use greenroom_testkit::shells::shells;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quoted_text_reaches_the_command_as_it_is(text in "[ -~\n]{0,60}") {
            let out = Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quoted(&text))).output().unwrap();
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
        let script = format!("{}echo $$ $TMPDIR $GREENROOM_TRACE", prelude(Some(&trace)));
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
