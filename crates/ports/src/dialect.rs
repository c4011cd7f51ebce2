//! The dialect of a guest: the commands that its operating system understands.
//!
//! [`GuestDialect`] builds these commands, and [`Posix`] is its only implementation. Both are in this crate, and not beside the
//! connector, because the engine and the providers build commands, too, and the engine must not depend on a connector. A dialect
//! only makes text: its caller brings random marks, sends the commands, and reads what the guest prints.
//!
//! A dialect says nothing about scripts that a command reads from standard input, such as those that prepare containers or clean a
//! host. Each of these is for POSIX shells. The commands of container engines differ within a dialect.

mod posix;

use std::fmt;
use std::time::Duration;

use greenroom_core::container::name::EngineContainer;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;

pub use self::posix::Posix;
use super::connector::{Mark, Reader, Trace};

/// The commands that guests of one operating system understand: to start, stop and check, and to clean.
///
/// An implementer promises:
/// * Each command line means the same to all login shells that an account may have there.
/// * A command contains no secret: other accounts can read the arguments of a process.
/// * A started stage prints its stop handle as one line of standard error, directly after the mark, before it reads any input.
///
/// A caller sends the commands of a dialect only to guests of that dialect, which [`of`] returns.
pub trait GuestDialect: fmt::Debug + Send + Sync {
    /// A text as one word of a command, whatever is in it.
    fn quote(&self, text: &str) -> String;

    /// The command line that runs `script`, a text in the syntax of this dialect, whatever the login shell is.
    fn command_line(&self, script: &str) -> String;

    /// The command that reads a script from standard input. `arguments`: words of a command, or nothing.
    fn read_script(&self, arguments: &str) -> String;

    /// The command line of a check, which succeeds wherever a command starts.
    fn check(&self) -> &'static str;

    /// The commands before a stage's reader, for [`Start::before`]: they leave its trace, and limit the start of its container.
    fn before(&self, reader: &Reader, trace: Option<&Trace>, container_start: Duration) -> String;

    /// The commands before a stage of no job, which an administrator's logs can tell from those of jobs: they show that a trace
    /// can be left, and leave none.
    fn before_probe(&self, mark: Option<&Mark>) -> String;

    /// The command line that starts a stage's reader.
    fn start(&self, reader: &Reader, start: &Start<'_>) -> String;

    /// The command line of an operator's or Greenroom's own command, `text`, which first prints `mark` and its stop handle.
    fn start_command(&self, text: &str, mark: &str) -> String;

    /// The first line that a stage's shell gets: the shell puts `mark` together and prints it with [`BASH`] if it is bash.
    /// `environment`: the line of [`environment_line`](Self::environment_line), which comes before.
    fn first_line(&self, mark: &str, environment: &str) -> String;

    /// The first line that a container's shell gets.
    fn first_line_in_container(&self, marks: &ContainerMarks<'_>) -> String;

    /// The line of input by which a later shell takes over the environment that a login shell has printed.
    fn environment_line(&self, printed: &str) -> String;

    /// Commands that run `command` in the environment of a login shell.
    fn in_login_shell(&self, shell: Shell, command: &str) -> String;

    /// The line before a script whose files all users may change.
    fn open_umask(&self) -> &'static str;

    /// The command line that sends TERM once to every process of a stage and, after `grace`, KILL until none is left. It gives
    /// up `killing` later, so that the command itself does not stay behind.
    fn stop(&self, handle: &StopHandle, grace: Duration, killing: Duration) -> String;

    /// The command line that prints `held PID NAME` for a process of a stage that has its output open.
    fn holder(&self, handle: &StopHandle) -> String;

    /// The command that reads the script of a cleaning as the account of jobs.
    fn clean(&self, mark: &Mark, keeps_cache: bool) -> String;

    /// The command that reads the script of a cleaning by root. `argument`: its only one, or nothing.
    fn clean_as_root(&self, by: RootAccess<'_>, argument: &str) -> String;
}

/// The dialect of a guest. All guests are POSIX systems so far.
pub fn of(_at: &Endpoint) -> &'static dyn GuestDialect {
    &Posix
}

/// The word that bash adds to the mark of its first line.
pub const BASH: &str = "bash";

/// The message of a container's start that took too long; its limit in seconds follows.
pub const NOT_STARTED: &str = "the container engine did not start the container within";

/// The parts of a stage's start.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Commands that run first.
    pub before: &'a str,
    /// The text that is printed directly before the stop handle.
    pub mark: &'a str,
    /// The login profile that is read before.
    pub profile: Profile<'a>,
}

/// The login profile of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile<'a> {
    /// No profile is read.
    Unread,
    /// A login shell reads it. This mark is printed as a line of standard error before it, after it, and after the environment.
    Read { mark: &'a str },
    /// An earlier login shell has read it: the line of its environment comes first on standard input.
    Known,
}

/// The marks that a shell in a container prints.
#[derive(Debug, Clone, Copy)]
pub struct ContainerMarks<'a> {
    /// The mark that the shell prints when it has read its first line, with `1` if it knows the quotes `$'…'` and `0` otherwise.
    pub ready: &'a str,
    /// The mark that the shell prints with its status when it exits, on each of its streams.
    pub exit: &'a str,
    /// True if both streams are one.
    pub joined: bool,
}

/// The way to root for a cleaning.
#[derive(Debug, Clone, Copy)]
pub enum RootAccess<'a> {
    /// The login is root's.
    Login,
    /// `sudo` runs this program, the script of the cleaning of `host`, if it is the one on standard input. A script of another
    /// version, or for other directories, would clean something else.
    Sudo { program: &'a str, host: &'a str },
}

/// A guest's name for a running stage, by which the stage and everything that it started can be stopped.
///
/// The guest prints it as its first word, before it reads the script. A link records it for its successor. Only a dialect makes
/// commands of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopHandle {
    /// The stage's session in the guest.
    session: u32,
    /// The container that the stage runs in.
    container: Option<EngineContainer>,
}

impl StopHandle {
    /// The length of the longest handle: a session, a dot, and a container.
    pub const LONGEST: usize = 10 + 1 + EngineContainer::LONGEST;

    /// The handle that a guest has printed. Sessions 0 and 1 are rejected: they are never a stage's, whatever the guest reports.
    pub fn parse(word: &[u8]) -> Option<Self> {
        let word = std::str::from_utf8(word.strip_suffix(b"\r").unwrap_or(word)).ok()?;
        let (session, container) = match word.split_once('.') {
            Some((session, container)) => (session, Some(EngineContainer::parse(container)?)),
            None => (word, None),
        };
        let digits = Some(session).filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
        let session = digits.parse().ok().filter(|session| *session > 1)?;
        Some(Self { session, container })
    }

    /// The number of the stage's session in the guest.
    pub fn session(&self) -> u32 {
        self.session
    }
}

impl fmt::Display for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.container {
            Some(container) => write!(f, "{}.{container}", self.session),
            None => self.session.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_was_written_and_nothing_else_is_one() {
        for word in ["2", "4711", "4294967295", "4711.greenroom-a1", "4711.a.b", "4711.docker/a"] {
            assert_eq!(StopHandle::parse(word.as_bytes()).unwrap().to_string(), word);
            assert_eq!(StopHandle::parse(format!("{word}\r").as_bytes()).unwrap().to_string(), word);
        }
        for word in [
            "",
            "0",
            "1",
            "-1",
            "+2",
            "4294967296",
            "4711.",
            ".a",
            "4711.a;b",
            "4711.-a",
            "4711 a",
            "a.4711",
            "4711.x/a",
        ] {
            assert_eq!(StopHandle::parse(word.as_bytes()), None, "{word}");
        }
        let name = "x".repeat(greenroom_core::container::name::ContainerName::LONGEST);
        let longest = format!("{}.podman/{name}", u32::MAX);
        assert_eq!(longest.len(), StopHandle::LONGEST);
        assert!(StopHandle::parse(longest.as_bytes()).is_some());
    }
}
