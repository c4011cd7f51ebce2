//! Reads the login profile before a stage, once for the stages of a job.
//!
//! A login shell prints its environment between marks. Later stages of the job get that environment without a login shell.

use greenroom_core::text::Secret;
use greenroom_ports::connector::ConnectError;
use greenroom_ports::dialect::GuestDialect;

use super::remote::random_mark;

/// A login shell that goes before a command.
#[derive(Debug)]
pub(super) struct Login {
    dialect: &'static dyn GuestDialect,
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
    pub(super) fn new(dialect: &'static dyn GuestDialect) -> Result<Self, ConnectError> {
        Ok(Self { dialect, mark: random_mark("login")? })
    }

    pub(super) fn mark(&self) -> &str {
        &self.mark
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
            [_, _, commands, _] => {
                let line = self.dialect.environment_line(std::str::from_utf8(commands).ok()?);
                Some(LoginEnvironment(Secret::new(line)))
            }
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

/// The environment of a login shell: one line of input for a later shell. Its values may be secrets.
#[derive(Debug)]
pub(super) struct LoginEnvironment(Secret<String>);

impl LoginEnvironment {
    pub(super) fn line(&self) -> &str {
        self.0.expose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Output, Stdio};

    use greenroom_core::execution::Shell;
    use greenroom_ports::connector::Reader;
    use greenroom_ports::dialect::{Posix, Profile, Start};

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
            let reader = Reader::Shell(kind.into());
            let start = |profile| Posix.start(&reader, &Start { before: "", mark: "session-", profile });
            let login = Login::new(&Posix).unwrap();
            let first = run(&start(Profile::Read { mark: login.mark() }), &format!("{show}\n"), home.path());
            let printed = String::from_utf8_lossy(&first.stdout).into_owned();
            assert!(printed.ends_with("it's!\n$(two) \\ lines||0027\n"), "{kind}: {printed}");
            assert!(printed.lines().next().unwrap().ends_with(":/opt/tools/bin"), "{kind}: {printed}");
            assert_eq!(login.reached(&first.stderr), LoginProgress::End);
            let is_handle = |shown: &[u8]| shown.starts_with(b"session-") && shown.ends_with(b"\n");
            assert!(is_handle(&login.shown(&first.stderr)), "{kind}");
            let environment = login.environment(&first.stderr).unwrap();
            let input = format!("{}{show}\necho the next line\n", environment.line());
            assert_eq!(input.lines().count(), 3, "{kind}: {input}");
            let later = run(&start(Profile::Known), &input, home.path());
            let expected = [first.stdout, b"the next line\n".to_vec()].concat();
            assert_eq!(later.stdout, expected, "{kind}: {input}");
            assert!(is_handle(&later.stderr) && later.stderr.split(|b| *b == b'\n').count() == 2);
        }
    }

    #[test]
    fn how_far_a_login_has_come_is_known_and_an_incomplete_environment_is_none() {
        let login = Login { dialect: &Posix, mark: "M".to_owned() };
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
