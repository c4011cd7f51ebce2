//! Reads the login profile before a stage, once for the stages of a job.
//!
//! A login shell reads `/etc/profile` and the account's own profile, with its three streams at `/dev/null`: it takes
//! nothing of a script, and prints nothing into a job. `/bin/sh` takes its place and prints the environment between
//! marks. The stage's shell is no login shell, so `~/.bash_logout` does not run. Later stages of the job get that
//! environment without a login shell: on standard input, because other accounts can read the arguments of a process.

use greenroom_core::execution::Shell;
use greenroom_core::text::{Secret, quoted};
use greenroom_ports::connector::ConnectError;

use super::remote::{random_mark, shell};

/// A login shell that goes before a command.
#[derive(Debug)]
pub(super) struct Login {
    program: &'static str,
    /// Printed as a line of standard error before the profile, after it, and after the environment.
    mark: String,
}

/// The progress of a login, by its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginProgress {
    /// The account's own shell has not run the command.
    Nothing,
    /// The profile is being read.
    Profile,
    /// The profile has been read.
    End,
}

impl Login {
    pub(super) fn new(kind: Shell) -> Result<Self, ConnectError> {
        let program = match kind {
            Shell::Bash => "bash",
            Shell::Sh | Shell::Pwsh => "sh",
        };
        Ok(Self { program, mark: random_mark("login")? })
    }

    /// A command line that runs `command`, in the syntax of `/bin/sh`, in the environment of a login shell.
    pub(super) fn command(&self, command: &str) -> String {
        let mark = &self.mark;
        // Each line of the environment's text is a command of `/bin/sh`.
        let report = format!(
            "{{ echo {mark}; export -p; printf 'umask '; umask; printf 'ulimit -Sn '; ulimit -Sn; echo {mark}; }} >&2; "
        );
        shell(&format!("echo {mark} >&2; {}", self.plain(&format!("{report}{command}"))))
    }

    /// Commands of `/bin/sh` that run `command` in the environment of a login shell, without marks.
    pub(super) fn plain(&self, command: &str) -> String {
        let after = format!("exec <&7 >&8 2>&9 7<&- 8>&- 9>&-; exec /bin/sh -c {}", quoted(command));
        let program = self.program;
        format!("exec 7<&0 8>&1 9>&2 </dev/null >/dev/null 2>&1; exec {program} -l -c {}", quoted(&after))
    }

    pub(super) fn reached(&self, printed: &[u8]) -> LoginProgress {
        match self.parts(printed).len() {
            0 | 1 => LoginProgress::Nothing,
            2 => LoginProgress::Profile,
            _ => LoginProgress::End,
        }
    }

    /// The environment, from what was printed.
    pub(super) fn environment(&self, printed: &[u8]) -> Option<LoginEnvironment> {
        match self.parts(printed).as_slice() {
            [_, _, commands, _] => Some(LoginEnvironment::new(std::str::from_utf8(commands).ok()?)),
            _ => None,
        }
    }

    /// The output without the environment, whose values may be secrets.
    pub(super) fn shown(&self, printed: &[u8]) -> Vec<u8> {
        let parts = self.parts(printed);
        let shown = parts.iter().enumerate().filter(|(number, _)| *number != 2);
        shown.flat_map(|(_, part)| *part).copied().collect()
    }

    /// The output before, between and after the marks.
    fn parts<'a>(&self, printed: &'a [u8]) -> Vec<&'a [u8]> {
        let line = format!("{}\n", self.mark).into_bytes();
        let mut parts = Vec::new();
        let mut rest = printed;
        while let Some(at) = rest.windows(line.len()).position(|window| window == line) {
            parts.push(&rest[..at]);
            rest = &rest[at + line.len()..];
        }
        parts.push(rest);
        parts
    }
}

/// The environment of a login shell: one line of input for [`LoginEnvironment::READ`]. Its values may be secrets.
#[derive(Debug)]
pub(super) struct LoginEnvironment(Secret<String>);

impl LoginEnvironment {
    /// Commands of `/bin/sh` that read the line and evaluate it. They read nothing after it.
    pub(super) const READ: &str = "IFS= read -r greenroom_login && eval \"$(printf %b \"$greenroom_login\")\"; \
                                   unset greenroom_login; ";

    /// `commands`: what sets it, in the syntax of `/bin/sh`.
    fn new(commands: &str) -> Self {
        Self(Secret::new(commands.replace('\\', "\\\\").replace('\n', "\\n") + "\n"))
    }

    pub(super) fn line(&self) -> &str {
        self.0.expose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Output, Stdio};

    use super::*;

    const PROFILE: &str = "echo greeting; echo greeting >&2; read -r line; PATH=$PATH:/opt/tools/bin; export PATH\n\
                           export ODD=\"it's!\n\\$(two) \\\\ lines\"; NOT=exported; umask 027\n";

    fn run(command: &str, input: &str, home: &std::path::Path) -> Output {
        let mut sh = Command::new("/bin/sh");
        sh.arg("-c")
            .arg(command)
            .env_clear()
            .env("HOME", home)
            .env("PATH", std::env::var_os("PATH").unwrap());
        let mut running =
            sh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        running.wait_with_output().unwrap()
    }

    #[test]
    fn a_login_shells_environment_is_what_the_command_and_later_commands_get() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".profile"), PROFILE).unwrap();
        let show = "echo \"$PATH\"; printf '%s|' \"$ODD\" \"$NOT\"; umask";
        for kind in [Shell::Bash, Shell::Sh] {
            let login = Login::new(kind).unwrap();
            let first = run(&login.command(show), "", home.path());
            let printed = String::from_utf8_lossy(&first.stdout).into_owned();
            assert!(printed.ends_with("it's!\n$(two) \\ lines||0027\n"), "{kind}: {printed}");
            assert!(printed.lines().next().unwrap().ends_with(":/opt/tools/bin"), "{kind}: {printed}");
            assert_eq!(login.reached(&first.stderr), LoginProgress::End);
            assert_eq!(login.shown(&first.stderr), b"", "{kind}");
            let environment = login.environment(&first.stderr).unwrap();
            let input = format!("{}the next line\n", environment.line());
            assert_eq!(input.lines().count(), 2, "{kind}: {input}");
            let later = run(&format!("{}{show}; cat", LoginEnvironment::READ), &input, home.path());
            let expected = [first.stdout, b"the next line\n".to_vec()].concat();
            assert_eq!((later.stdout, later.stderr), (expected, Vec::new()), "{kind}: {input}");
        }
    }

    #[test]
    fn how_far_a_login_has_come_is_known_and_an_incomplete_environment_is_none() {
        let login = Login { program: "sh", mark: "M".to_owned() };
        for (printed, reached, shown) in [
            ("", LoginProgress::Nothing, ""),
            ("Welcome\n", LoginProgress::Nothing, "Welcome\n"),
            ("a\nM\n", LoginProgress::Profile, "a\n"),
            ("a\nM\nM\nexport KEY='secret", LoginProgress::End, "a\n"),
            ("M\nM\nexport KEY='secret'\nM\nproblem\n", LoginProgress::End, "problem\n"),
        ] {
            assert_eq!(login.reached(printed.as_bytes()), reached, "{printed}");
            assert_eq!(login.shown(printed.as_bytes()), shown.as_bytes(), "{printed}");
            let complete = login.environment(printed.as_bytes());
            assert_eq!(complete.is_some(), printed.matches("M\n").count() == 3, "{printed}");
        }
    }
}
