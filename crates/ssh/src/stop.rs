//! Stops a running stage, or names what still holds its output.
//!
//! The guest reports a stage's [`StopHandle`] before it reads the script. The guest's dialect makes commands of it.
//!
//! While a stage is stopped, its output is discarded: unread output stalls the connection, and the second channel with it.

use std::future::pending;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, Output, StageEnd};
use greenroom_ports::dialect::StopHandle;
use russh::client::Msg;
use russh::{ChannelWriteHalf, Sig};
use tokio::time::Instant;

use super::guest::Guest;
use super::marker_scan::Marker;
use super::session::Session;

/// KILL usually takes effect immediately. A process that waits for a disk takes longer, and a guest with a hundred busy
/// processes needs seconds to start the command that sends the signal.
const KILLING: Duration = Duration::from_secs(10);
/// The guest's answer to the command takes a moment more.
const SENDING: Duration = Duration::from_secs(2);
/// Limit of a kill by the server itself, which has to start no process.
const SIGNALLING: Duration = Duration::from_secs(5);
/// Time that a stop takes beyond the grace on a well-behaved guest, however busy it is.
pub(super) const MARGIN: Duration = KILLING.saturating_add(SENDING);
/// Time that a stop takes at most beyond twice the grace, whatever the guest does.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Delay before a command that the guest could not start is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The result of one step of [`stop`].
enum StopResult {
    Gone,
    Left,
    /// No check could determine if processes are left.
    Unknown,
}

/// Sends TERM and, after `grace`, KILL to everything that the stage started. Returns [`StageEnd::Stopped`] only if nothing of it
/// is left. Takes at most `grace` plus [`MARGIN`], or twice `grace` plus 25 s if the connection has no second channel.
pub(super) async fn stop(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> Result<StageEnd, ConnectError> {
    let result = match guest.handle().cloned() {
        Some(handle) => {
            let discarding = async {
                while guest.discard_one().await {}
                pending().await
            };
            tokio::select! {
                biased;
                result = by_handle(session, &handle, grace) => result,
                result = discarding => result,
            }
        }
        None => StopResult::Unknown,
    };
    let gone = match result {
        StopResult::Gone => true,
        StopResult::Left => false,
        StopResult::Unknown => by_signal(session, guest, to, grace).await,
    };
    if gone {
        return Ok(StageEnd::Stopped);
    }
    if session.is_closed() {
        return Err(session.lost(true));
    }
    let waited = Pretty(grace + KILLING);
    Err(session.lost_because(format!("the stage did not stop within {waited}"), true))
}

async fn by_handle(session: &Session<'_>, handle: &StopHandle, grace: Duration) -> StopResult {
    match send(session, handle, grace).await {
        StopResult::Unknown => {}
        result => return result,
    }
    // The server refused the session (`MaxSessions`), or the connection is broken: stop it on a new connection.
    let Ok(other) = session.another(KILLING).await else { return StopResult::Unknown };
    let result = send(&other, handle, grace).await;
    other.close().await;
    result
}

/// One command does everything, so that the guest starts only one process, and starts it during the grace.
async fn send(session: &Session<'_>, handle: &StopHandle, grace: Duration) -> StopResult {
    let kill_at = Instant::now() + grace;
    let until = kill_at + KILLING;
    loop {
        let now = Instant::now();
        let grace = kill_at.saturating_duration_since(now);
        let command = session.dialect().stop(handle, grace, KILLING);
        match tokio::time::timeout_at(until, session.brief(&command)).await {
            Ok(Ok((StageEnd::Exited(0), _))) => return StopResult::Gone,
            Ok(Err(_)) => return StopResult::Unknown,
            // The guest could not start a process, or the command was killed with the rest.
            Ok(Ok(_)) if now + RETRY_DELAY < until => tokio::time::sleep(RETRY_DELAY).await,
            Ok(Ok(_)) | Err(_) => return StopResult::Left,
        }
    }
}

/// Sends the protocol's signal request, which reaches only the stage's first process group. Some servers ignore it.
async fn by_signal(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> bool {
    for (signal, within) in [(Sig::TERM, grace), (Sig::KILL, SIGNALLING)] {
        let ending = async {
            let _sent = to.signal(signal).await;
            while guest.discard_one().await {}
        };
        if tokio::time::timeout(within, ending).await.is_ok() {
            return !session.is_closed();
        }
    }
    false
}

impl Marker for StopHandle {
    const LONGEST: usize = Self::LONGEST;

    fn parse(word: &[u8]) -> Option<Self> {
        Self::parse(word)
    }
}

/// Limit of the output's silence after the script's end.
pub(super) const QUIET: Duration = Duration::from_secs(3);
/// Limit to find the process, and again to write the line.
const NAMED_WITHIN: Duration = Duration::from_secs(5);
/// Characters of a name; the kernel keeps 15.
const NAME_SHOWN: usize = 32;

/// Ends the stage's output with a line that names the process.
pub(super) async fn name_background(session: &Session<'_>, guest: &mut Guest, output: &mut dyn Output) {
    let found = match guest.handle().cloned() {
        Some(handle) => find_background(session, guest, &handle).await,
        None => None,
    };
    let what = found.map_or_else(|| "a background process".to_owned(), |found| found.to_string());
    let line = format!(
        "greenroom: {what} of the script still holds its output; what it prints from now on is not shown"
    );
    // A reader that takes nothing gets no line either.
    let _written = tokio::time::timeout(NAMED_WITHIN, output.own_line(&line)).await;
}

#[derive(Debug, PartialEq, Eq)]
struct BackgroundProcess {
    pid: u32,
    name: String,
}

impl std::fmt::Display for BackgroundProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "background process `{}` (pid {})", self.name, self.pid)
    }
}

/// Queries the guest, while the stage's further output is discarded: unread, it would stall the connection.
async fn find_background(
    session: &Session<'_>,
    guest: &mut Guest,
    handle: &StopHandle,
) -> Option<BackgroundProcess> {
    let command = session.dialect().holder(handle);
    let discarding = async {
        while guest.discard_one().await {}
        pending().await
    };
    tokio::select! {
        answer = tokio::time::timeout(NAMED_WITHIN, session.brief(&command)) => parse_background(&answer.ok()?.ok()?.1),
        never = discarding => never,
    }
}

/// Reads the line `held PID NAME`. A process chooses its name.
fn parse_background(output: &[u8]) -> Option<BackgroundProcess> {
    let mut lines = output.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(b"held "))?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let pid = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let name = clean_line(&rest[space..], NAME_SHOWN).replace('`', "'");
    Some(BackgroundProcess { pid, name: if name.is_empty() { "?".to_owned() } else { name } })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::Instant;

    use greenroom_ports::dialect::{GuestDialect as _, Posix};
    use greenroom_testkit::shells::shells;

    use super::*;

    /// The `/proc` entries of a session's processes that are not zombies.
    fn living_of(session: u32) -> Vec<String> {
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let of_session = stats.filter(|stat| {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            fields.len() > 4 && fields[0] != "Z" && fields[3] == session.to_string()
        });
        of_session.collect()
    }

    /// A process in a session of its own that first prints its number.
    fn victim(script: &str) -> (Child, StopHandle) {
        let mut victim = Command::new("setsid")
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("setsid of util-linux starts the victim");
        let mut line = String::new();
        let stdout = victim.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let handle = StopHandle::parse(line.trim().as_bytes()).unwrap();
        (victim, handle)
    }

    /// Stops a victim as a guest whose `/bin/sh` is `sh`; returns the victim's exit status.
    fn stopped(sh: &[&str], proc: &str, script: &str, grace: Duration) -> ExitStatus {
        let (mut victim, handle) = victim(script);
        let command = Posix
            .stop(&handle, grace, Duration::from_secs(20))
            .replace("exec /bin/sh", &format!("exec {}", sh.join(" ")))
            .replace("/proc/", proc);
        let mut stopping = Command::new("/bin/sh").arg("-c").arg(command).spawn().unwrap();
        let victim_pid = rustix::process::Pid::from_child(&victim);
        let stopped = std::thread::spawn(move || {
            let stopped = stopping.wait().unwrap().success();
            if !stopped {
                // Otherwise, the test would wait without end for what the command left alive.
                let _gone = rustix::process::kill_process(victim_pid, rustix::process::Signal::KILL);
            }
            stopped
        });
        let end = victim.wait().unwrap();
        assert!(stopped.join().unwrap(), "{sh:?} {proc}");
        assert_eq!(living_of(handle.session()), Vec::<String>::new(), "{sh:?} {proc}");
        end
    }

    #[test]
    fn the_command_kills_what_ignores_term_after_the_grace_in_every_shell_here() {
        let grace = Duration::from_millis(300);
        for sh in shells() {
            let begun = Instant::now();
            let script = "trap '' TERM; sleep 300 & echo $$; wait; wait; sleep 300";
            assert_eq!(stopped(sh, "/proc/", script, grace).signal(), Some(9), "{sh:?}");
            assert!(begun.elapsed() >= grace, "{sh:?}");
            // A guest without `/proc`. Only one process, because `pkill` counts unreaped orphans.
            let script = "trap '' TERM; echo $$; exec sleep 300";
            assert_eq!(stopped(sh, "/nowhere/", script, grace).signal(), Some(9), "{sh:?}, no /proc");
        }
    }

    #[test]
    fn the_process_that_holds_the_output_is_named_in_every_shell_here() {
        for sh in shells() {
            // Its first process holds nothing, and another one of the session does.
            let script = "echo $$; exec sh -c 'sleep 301 & exec >/dev/null 2>&1; exec sleep 302'";
            let (mut victim, handle) = victim(script);
            let command = Posix.holder(&handle).replace("exec /bin/sh", &format!("exec {}", sh.join(" ")));
            let said = || Command::new("/bin/sh").args(["-c", &command]).output().unwrap().stdout;
            let expected = |said: &str| said.starts_with("held ") && said.ends_with(" sleep\n");
            let begun = Instant::now();
            let mut last = String::new();
            while !expected(&last) && begun.elapsed() < Duration::from_secs(20) {
                last = String::from_utf8(said()).unwrap();
            }
            assert!(expected(&last), "{sh:?}: {last}");
            let stopping = Posix.stop(&handle, Duration::ZERO, Duration::from_secs(20));
            assert!(Command::new("/bin/sh").arg("-c").arg(stopping).status().unwrap().success());
            victim.wait().unwrap();
        }
    }

    #[test]
    fn the_command_finds_a_process_with_the_name_of_a_zombie() {
        for sh in shells() {
            let script =
                "printf 'a) Z\\nb' > /proc/$$/comm; trap '' TERM; echo $$; sleep 300; sleep 300; exit 7";
            let end = stopped(sh, "/proc/", script, Duration::from_millis(100));
            assert_eq!(end.signal(), Some(9), "{sh:?}");
        }
    }

    #[test]
    fn the_command_lets_what_heeds_term_end_in_its_own_way() {
        for sh in shells() {
            for proc in ["/proc/", "/nowhere/"] {
                // A second TERM would kill it in the middle of its work.
                let script = "trap 'trap - TERM; while [ $((n+=1)) -lt 100000 ]; do :; done; exit 7' TERM; echo $$; \
                     while :; do :; done";
                let end = stopped(sh, proc, script, Duration::from_mins(1));
                assert_eq!(end.code(), Some(7), "{sh:?} {proc}");
            }
        }
    }

    #[test]
    fn a_name_that_a_process_chose_is_cleaned() {
        for (output, expected) in [
            ("held 4711 sleep\n", Some("background process `sleep` (pid 4711)")),
            ("noise\nheld 7 a b\nheld 8 c\n", Some("background process `a b` (pid 7)")),
            ("held 7 \x1b[2Jx`\x07y\n", Some("background process `x'y` (pid 7)")),
            ("held 7 \n", Some("background process `?` (pid 7)")),
            ("held x y\n", None),
            ("held 7\n", None),
            ("", None),
        ] {
            let found = parse_background(output.as_bytes()).map(|found| found.to_string());
            assert_eq!(found.as_deref(), expected, "{output:?}");
        }
    }
}
