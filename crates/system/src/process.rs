//! Processes of the runner host: children that outlive the call that starts them, and others that are watched.
//!
//! Three pitfalls of such children (all measured): a child that keeps the runner's pipes makes the stage hang until the child
//! exits; a child in the caller's session is killed with it; a child that leads a process group cannot call setsid. So
//! [`start_detached`] gives the child none of the caller's streams and descriptors, and the child leads a session of its own
//! ([`lead_session`]) and confirms that with one byte on a pipe ([`confirm_start`]).
//!
//! A pid alone identifies no process, because pids are reused. Its start time is part of the identity, and both are valid
//! only inside the process namespace they were read in.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::unix::pipe;

/// Confirms that the child has detached itself: a byte that no program prints by accident.
const CONFIRMED: u8 = 0x06;
/// `O_CLOEXEC`, as `/proc/self/fdinfo` shows it.
const CLOSE_ON_EXEC: u32 = 0o2_000_000;

/// The fields of `/proc/PID/stat` that Greenroom uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The letter of the process's state in proc(5).
    pub state: char,
    /// Zero if it is outside this process's namespace; so are the next two.
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// Clock ticks from boot to the start of the process.
    pub start: u64,
}

impl Stat {
    /// The process with a pid.
    pub fn of(pid: i32) -> io::Result<Self> {
        // One read returns all needed fields together.
        let mut bytes = [0_u8; 1024];
        let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut bytes)?;
        Self::parse(&String::from_utf8_lossy(&bytes[..length]))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not in the format of proc(5)"))
    }

    /// True if the process has exited, although its parent may not have waited for it yet.
    pub fn has_exited(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// The name in parentheses may contain blanks and parentheses itself, so fields are counted from the last parenthesis.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |n: usize| fields.get(n).and_then(|field| field.parse::<i32>().ok());
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

/// True if the process of a pidfd has exited, also as a zombie. Blocks for at most `within`.
pub fn has_exited(pidfd: &OwnedFd, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap_or_default();
    matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&within)), Ok(1..))
}

/// A pidfd in the runtime: it is readable once its process has exited.
#[expect(deprecated, reason = "its successor is unsafe; what it asks for, an OwnedFd always keeps")]
pub fn watch_exit(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}

/// Children that this process has started and does not wait for.
#[derive(Debug, Default)]
pub struct Children(RefCell<Vec<Child>>);

impl Children {
    pub fn add(&self, child: Child) {
        self.0.borrow_mut().push(child);
    }

    /// Reaps those that have exited: they would stay zombies until this process exits.
    pub fn reap(&self) {
        self.0.borrow_mut().retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// The variables of this process's environment that an allow-list names.
pub fn allowed_variables<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = (&'a str, OsString)> {
    names.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// A command that starts `program` without the descriptors that this process inherited, except the three standard
/// streams.
pub fn detached_command(program: &Path) -> io::Result<Command> {
    Ok(without(&inherited()?, program))
}

/// Descriptors that a script around this call left open, perhaps copies of the runner's pipes: a child that kept one
/// would hang the stage. Greenroom's own descriptors are close-on-exec. Only 3 to 9, because shell scripts use no
/// others.
fn inherited() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for number in 3..=9 {
        let text = match fs::read_to_string(PathBuf::from(format!("/proc/self/fdinfo/{number}"))) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        if flags.is_some_and(|flags| flags & CLOSE_ON_EXEC == 0) {
            found.push(number);
        }
    }
    Ok(found)
}

/// A command that starts `program` with these descriptors closed. Safe code cannot close descriptors that it has not
/// opened, so a shell closes them and then executes the program.
fn without(descriptors: &[u32], program: &Path) -> Command {
    if descriptors.is_empty() {
        return Command::new(program);
    }
    let closes: Vec<String> = descriptors.iter().map(|number| format!("{number}>&-")).collect();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {}", closes.join(" "))).arg(program);
    shell
}

/// Starts a child in `/` with this environment and nothing of the caller's streams. The command has the arguments and standard
/// input.
pub fn start_detached<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    mut command: Command,
    environment: impl IntoIterator<Item = (N, V)>,
) -> io::Result<(Child, Confirmation)> {
    // Both ends are close-on-exec; the child inherits only its own end, as stdout.
    let (reader, writer) = io::pipe()?;
    command.env_clear().envs(environment).current_dir("/");
    command.stdout(OwnedFd::from(writer)).stderr(Stdio::null());
    // This process's copy of the pipe's end is dropped with the command.
    let child = command.spawn()?;
    Ok((child, Confirmation(pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?)))
}

/// The parent's end of the pipe on which a child confirms that it has detached itself.
#[derive(Debug)]
pub struct Confirmation(pipe::Receiver);

impl Confirmation {
    /// Waits for the child's byte; `false` if the child exited without it.
    pub async fn arrives(mut self) -> io::Result<bool> {
        let mut buffer = [0_u8; 256];
        loop {
            match self.0.read(&mut buffer).await? {
                0 => return Ok(false),
                count if buffer[..count].contains(&CONFIRMED) => return Ok(true),
                _ => {}
            }
        }
    }
}

/// Leads a session of its own, so that this process does not end with the session of the call that started it.
pub fn lead_session() -> io::Result<()> {
    // EPERM: this process already leads a session (started by hand under setsid).
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Confirms to the parent that this process has detached itself, and closes the parent's output streams. Standard input stays.
pub fn confirm_start() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // The parent may have exited or stopped waiting.
    rustix::io::write(io::stdout().as_fd(), &[CONFIRMED]).ok();
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Closes standard input, which reads as empty afterwards.
pub fn close_input() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(File::open("/dev/null")?)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_full_of_brackets_confuses_nobody() {
        let rest = "S 1 41 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987 1 2 3";
        let stat = Stat::parse(&format!("42 (a) b (c) {rest}")).unwrap();
        assert_eq!(stat, Stat { state: 'S', parent: 1, group: 41, session: 40, start: 987 });
        assert!(!stat.has_exited());
        assert!(Stat::parse(&format!("42 (a) Z{}", &rest[1..])).unwrap().has_exited());
        assert_eq!(Stat::parse("42 (a"), None);
    }

    proptest! {
        #[test]
        fn any_name_a_process_gives_itself_is_read_over(name in "\\PC{0,15}") {
            let text = format!("42 ({name}) S 7 42 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3\n");
            prop_assert_eq!(Stat::parse(&text), Some(Stat { state: 'S', parent: 7, group: 42, session: 5, start: 98765 }));
        }
    }
}
