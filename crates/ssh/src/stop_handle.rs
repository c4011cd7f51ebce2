//! What stops a stage in its guest.
//!
//! sshd starts each command in a session of its own, so the number of a stage's first process is its session's number.
//! A container's processes are in none of it: they are found by the container's name.

use std::fmt;
use std::time::Duration;

use greenroom_core::container::name::EngineContainer;
use greenroom_core::container::place::EnginePlace;

use super::container::{self, Additions};
use super::quote::shell;
use super::sift::Word;

/// Stops one stage, and everything that it started.
///
/// The guest gives it as its first word, before it reads the script. A link notes it for the link after it. Only this
/// file knows what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StopHandle {
    /// The stage's session in the guest.
    session: u32,
    /// The container that the stage runs in.
    container: Option<EngineContainer>,
}

impl Word for StopHandle {
    /// A session, a dot, and a container.
    const LONGEST: usize = 10 + 1 + EngineContainer::LONGEST;

    /// Rejects 0 and 1, which are never a stage's session, whatever the guest reports.
    fn parse(word: &[u8]) -> Option<Self> {
        let word = std::str::from_utf8(word.strip_suffix(b"\r").unwrap_or(word)).ok()?;
        let (session, container) = match word.split_once('.') {
            Some((session, container)) => (session, Some(EngineContainer::parse(container)?)),
            None => (word, None),
        };
        let digits = Some(session).filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
        let session = digits.parse().ok().filter(|session| *session > 1)?;
        Some(Self { session, container })
    }
}

impl StopHandle {
    /// A command for the guest that sends TERM once to every process of the stage and, after `grace`, KILL until two
    /// scans in a row find none. Gives up `killing` later, so that the command itself does not stay behind.
    ///
    /// Prefers `/proc`, which shows zombies: where no init reaps orphans they stay forever, and `pkill` counts them. A
    /// process chooses its name, line breaks and parentheses included, so only what follows the last one counts. A
    /// process whose first thread has ended looks like a zombie, but has other threads.
    /// The process group of that number is included for servers that create no session. Time comes from the guest's own
    /// clock, in hundredths of a second, because rounds take longer on a busy guest.
    pub(super) fn command(&self, grace: Duration, killing: Duration) -> String {
        let Self { session, container } = self;
        let Additions { functions, seek, inside, spared, monitor, late } =
            container.as_ref().map(container::additions).unwrap_or_default();
        let kill_at = grace.as_millis() / 10;
        let over_at = (grace + killing).as_millis() / 10;
        let command = format!(
            "exec 2>/dev/null; s={session}; {functions}\
             if [ -r /proc/self/stat ]; then \
               sweep() {{ k=$1; n=1; {seek}\
                 for f in /proc/[0-9]*/stat; do \
                   x=; while read -r l; do x=$l; done <\"$f\"; [ -n \"$x\" ] || continue; \
                   p=${{f#/proc/}}; p=${{p%/stat}}; set -- ${{x##*) }}; \
                   case $1 in Z|X) [ \"${{18}}\" -gt 1 ] || continue;; esac; \
                   if [ \"$3\" = $s ] || [ \"$4\" = $s ]{inside}; then n=0; [ $k = 0 ]{spared} || kill -$k $p; fi; \
                 done; {monitor}return $n; }}; \
             else \
               sweep() {{ if [ $1 = 0 ]; then pgrep -s $s >/dev/null; else pkill -$1 -s $s; fi; [ $? != 1 ]; }}; \
             fi; \
             if [ -r /proc/uptime ]; then \
               now() {{ read -r u x </proc/uptime; t=$((${{u%.*}} * 100 + 1${{u#*.}})); }}; \
             else \
               now() {{ t=$(($(date +%s) * 100)); }}; \
             fi; \
             now; b=$t; sweep TERM; w=0; e=0; {late}\
             while [ $e -lt 2 ]; do \
               sleep 0.02 || sleep 1; now; \
               [ $((t - b)) -lt {kill_at} ] || w=KILL; [ $((t - b)) -lt {over_at} ] || exit 1; \
               if sweep $w; then e=0; else e=$((e + 1)); fi; \
             done; exit 0"
        );
        shell(&match container {
            Some(container) => EnginePlace::of(&container.name).runs("", &command),
            None => command,
        })
    }
}

impl StopHandle {
    /// A command for the guest that prints `held PID NAME` for a process of the stage that has its output open: first of all
    /// one in its session, else one that has left it and has lost its parent, with the same connection in its environment.
    pub(super) fn holder(&self) -> String {
        let session = self.session;
        shell(&format!(
            "exec 2>/dev/null; s={session}; \
             [ -r /proc/self/stat ] || {{ \
               p=$(pgrep -s $s | head -n 1); [ -n \"$p\" ] && echo \"held $p $(ps -o comm= -p $p)\"; exit; }}; \
             holds() {{ for d in 1 2; do [ ! -p /proc/$1/fd/$d ] && [ ! -S /proc/$1/fd/$d ] || return 0; done; return 1; }}; \
             named() {{ n=; read -r n </proc/$1/comm; echo \"held $1 $n\"; exit; }}; \
             for w in own left; do \
               for f in /proc/[0-9]*/stat; do \
                 x=; while read -r l; do x=$l; done <\"$f\"; p=${{f#/proc/}}; p=${{p%/stat}}; set -- ${{x##*) }}; \
                 [ -n \"$4\" ] && holds $p || continue; \
                 if [ $w = own ]; then [ \"$4\" = $s ] && named $p; continue; fi; \
                 [ \"$2\" = 1 ] && [ -n \"$SSH_CONNECTION\" ] && \
                   tr '\\0' '\\n' </proc/$p/environ | grep -qxF \"SSH_CONNECTION=$SSH_CONNECTION\" && named $p; \
               done; \
             done"
        ))
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
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::Instant;

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
        let command = handle
            .command(grace, Duration::from_secs(20))
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
        assert_eq!(living_of(handle.session), Vec::<String>::new(), "{sh:?} {proc}");
        end
    }

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
            let command = handle.holder().replace("exec /bin/sh", &format!("exec {}", sh.join(" ")));
            let said = || Command::new("/bin/sh").args(["-c", &command]).output().unwrap().stdout;
            let expected = |said: &str| said.starts_with("held ") && said.ends_with(" sleep\n");
            let begun = Instant::now();
            let mut last = String::new();
            while !expected(&last) && begun.elapsed() < Duration::from_secs(20) {
                last = String::from_utf8(said()).unwrap();
            }
            assert!(expected(&last), "{sh:?}: {last}");
            let stopping = handle.command(Duration::ZERO, Duration::from_secs(20));
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
}
