//! Commands for a guest's shell.
//!
//! A stage runs as `exec /bin/sh -c 'echo MARK$$ >&2; exec bash'`, which every login shell understands. The mark is
//! random, so neither a profile's output nor a script can imitate the session's number. sshd starts each command in a
//! session of its own, so the first process's number is the session's number.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use russh::Sig;

use crate::core::execution::Shell;
use crate::core::text::clean_line;
use crate::port::connector::{ConnectError, StageEnd};

/// The session of a stage in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionId(u32);

impl SessionId {
    /// Rejects 0 and 1, which are never a stage's session, whatever the guest reports.
    pub(super) fn parse(number: &[u8]) -> Option<Self> {
        let number = number.strip_suffix(b"\r").unwrap_or(number);
        let digits = std::str::from_utf8(number).ok().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
        digits.parse().ok().filter(|id| *id > 1).map(Self)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A command line that prints its session, and the mark that identifies that line.
#[derive(Debug)]
pub(super) struct Marked {
    pub(super) command: String,
    pub(super) mark: String,
}

impl Marked {
    /// A shell that reads a script from standard input. `before`: shell commands to run first.
    pub(super) fn interpreter(shell: Shell, before: &str) -> Result<Self, ConnectError> {
        let program = match shell {
            Shell::Bash => "bash",
            Shell::Sh => "sh",
            Shell::Pwsh => {
                "pwsh -NoProfile -NoLogo -NonInteractive -InputFormat text -OutputFormat text \
                 -ExecutionPolicy Bypass -Command -"
            }
        };
        Self::new(before, &format!("exec {program}"))
    }

    /// An operator's command, in the syntax of `/bin/sh`.
    pub(super) fn command(command: &str) -> Result<Self, ConnectError> {
        Self::new("", command)
    }

    fn new(before: &str, command: &str) -> Result<Self, ConnectError> {
        let mut random = [0_u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|e| {
            ConnectError::Local { what: format!("cannot get random numbers from the kernel: {e}") }
        })?;
        let mark = format!("greenroom-session-{:032x}-", u128::from_ne_bytes(random));
        Ok(Self { command: shell(&format!("{before}echo {mark}$$ >&2; {command}")), mark })
    }
}

/// A command line that hands `script` to `/bin/sh`, whatever the login shell is.
pub(super) fn shell(script: &str) -> String {
    format!("exec /bin/sh -c {}", quote(script))
}

pub(super) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Sends TERM once to every process of the session and, after `grace`, KILL until none is left. Gives up `killing`
/// later, so that the sweep itself does not stay behind.
///
/// Prefers `/proc`, which shows zombies: where no init reaps orphans they stay forever, and `pkill` counts them. The
/// process group of that number is included for servers that create no session. Time comes from the guest's own clock,
/// in hundredths of a second, because rounds take longer on a busy guest.
pub(super) fn sweep(session: SessionId, grace: Duration, killing: Duration) -> String {
    let SessionId(id) = session;
    let kill_at = grace.as_millis() / 10;
    let over_at = (grace + killing).as_millis() / 10;
    shell(&format!(
        "exec 2>/dev/null; s={id}; \
         if [ -r /proc/self/stat ]; then \
           sweep() {{ k=$1; n=1; \
             for f in /proc/[0-9]*/stat; do \
               read -r x <\"$f\" || continue; p=${{f#/proc/}}; p=${{p%/stat}}; set -- ${{x##*) }}; \
               case $1 in Z|X) continue;; esac; \
               if [ \"$3\" = $s ] || [ \"$4\" = $s ]; then n=0; [ $k = 0 ] || kill -$k $p; fi; \
             done; return $n; }}; \
         else \
           sweep() {{ if [ $1 = 0 ]; then pgrep -s $s >/dev/null; else pkill -$1 -s $s; fi; [ $? != 1 ]; }}; \
         fi; \
         if [ -r /proc/uptime ]; then \
           now() {{ read -r u x </proc/uptime; t=$((${{u%.*}} * 100 + 1${{u#*.}})); }}; \
         else \
           now() {{ t=$(($(date +%s) * 100)); }}; \
         fi; \
         now; b=$t; sweep TERM; w=0; \
         while sweep $w; do \
           sleep 0.02 || sleep 1; now; \
           [ $((t - b)) -lt {kill_at} ] || w=KILL; [ $((t - b)) -lt {over_at} ] || exit 1; \
         done; exit 0"
    ))
}

/// The end by a signal, whose name the guest may have invented.
pub(super) fn signalled(signal: &Sig) -> StageEnd {
    StageEnd::Signalled(match signal {
        Sig::Custom(name) => clean_line(name.as_bytes(), 32),
        known => format!("{known:?}"),
    })
}

/// The end as text, for messages.
pub(super) fn ending(end: &StageEnd) -> String {
    match end {
        StageEnd::Exited(code) => format!("exit code {code}"),
        StageEnd::Signalled(name) => format!("signal {name}"),
        StageEnd::Stopped => "a stop".to_owned(),
        StageEnd::Impossible(why) => why.clone(),
    }
}

/// Removes the line with the mark from the guest's standard error and passes on the rest.
#[derive(Debug)]
pub(super) struct Sift {
    mark: Vec<u8>,
    /// Might be the beginning of the marked line.
    held: Vec<u8>,
    /// The search has ended.
    over: bool,
    session: Option<SessionId>,
}

/// Maximum length of a session number with an optional carriage return and a newline.
const LONGEST_NUMBER: usize = 12;

impl Sift {
    pub(super) fn new(mark: &str) -> Self {
        Self { mark: mark.as_bytes().to_vec(), held: Vec::new(), over: false, session: None }
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// True if the mark was found, so that the shell has started.
    pub(super) fn has_begun(&self) -> bool {
        self.over
    }

    /// Returns the part that is output.
    pub(super) fn feed<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.over {
            return Cow::Borrowed(bytes);
        }
        self.held.extend_from_slice(bytes);
        let begin = find(&self.held, &self.mark);
        let Some(begin) = begin else {
            let undecided = longest_beginning(&self.held, &self.mark);
            let output = self.held.len() - undecided;
            return Cow::Owned(self.held.drain(..output).collect());
        };
        let number = &self.held[begin + self.mark.len()..];
        let end = number.iter().take(LONGEST_NUMBER).position(|b| *b == b'\n');
        if end.is_none() && number.len() < LONGEST_NUMBER {
            return Cow::Owned(self.held.drain(..begin).collect());
        }
        self.over = true;
        let mut output = std::mem::take(&mut self.held);
        if let Some(end) = end {
            let number = begin + self.mark.len();
            self.session = SessionId::parse(&output[number..number + end]);
            if self.session.is_some() {
                output.drain(begin..=number + end);
            }
        }
        Cow::Owned(output)
    }

    /// Returns the bytes that are still held back when the output ends.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        self.over = true;
        std::mem::take(&mut self.held)
    }
}

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    within.windows(what.len()).position(|window| window == what)
}

/// Length of the longest suffix of `text` that is a prefix of `what`.
fn longest_beginning(text: &[u8], what: &[u8]) -> usize {
    let most = text.len().min(what.len().saturating_sub(1));
    (1..=most).rev().find(|n| what.starts_with(&text[text.len() - n..])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    /// The output after feeding `pieces` in order, and the session.
    fn sifted(pieces: &[&[u8]]) -> (Vec<u8>, Option<u32>) {
        let mut sift = Sift::new("MARK-");
        let mut output = Vec::new();
        for piece in pieces {
            output.extend_from_slice(&sift.feed(piece));
        }
        output.extend(sift.rest());
        (output, sift.session().map(|s| s.0))
    }

    #[test]
    fn the_marked_line_is_taken_out_and_everything_else_passes() {
        let cases: [(&[u8], &[u8], Option<u32>); 9] = [
            (b"MARK-4711\n", b"", Some(4711)),
            (b"noisy profile\nMARK-4711\r\nrest", b"noisy profile\nrest", Some(4711)),
            (b"no newline MARK-12\nMARK-13\n", b"no newline MARK-13\n", Some(12)),
            (b"4711\n", b"4711\n", None),
            (b"MARK-\n", b"MARK-\n", None),
            (b"MARK-1\nx", b"MARK-1\nx", None),
            (b"MARK--1; reboot\n", b"MARK--1; reboot\n", None),
            (b"MARK-99999999999999999999\n", b"MARK-99999999999999999999\n", None),
            (b"MARK-12", b"MARK-12", None),
        ];
        for (input, output, session) in cases {
            let text = String::from_utf8_lossy(input);
            assert_eq!(sifted(&[input]), (output.to_vec(), session), "{text:?}");
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(sifted(&bytes), (output.to_vec(), session), "{text:?}, byte by byte");
        }
    }

    #[test]
    fn output_is_not_held_back_for_long() {
        let mut sift = Sift::new("MARK-");
        assert_eq!(sift.feed(b"a prompt> ").as_ref(), b"a prompt> ");
        assert_eq!(sift.feed(b"MA").as_ref(), b"");
        assert_eq!(sift.feed(b"Y").as_ref(), b"MAY");
        assert_eq!(sift.feed(b"MARK-123456789012345").as_ref(), b"MARK-123456789012345");
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_changes_nothing(
            before in "[MARK\\-x\n]{0,20}", after in "[MARK\\-1\n]{0,20}", cuts in proptest::collection::vec(1_usize..9, 0..20)
        ) {
            let all = format!("{before}\nMARK-77\n{after}").into_bytes();
            prop_assume!(find(before.as_bytes(), b"MARK-").is_none());
            let (mut pieces, mut rest) = (Vec::new(), all.as_slice());
            for cut in cuts {
                let (piece, remaining) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = remaining;
            }
            pieces.push(rest);
            prop_assert_eq!(sifted(&pieces), (format!("{before}\n{after}").into_bytes(), Some(77)));
        }

        #[test]
        fn a_quoted_text_reaches_the_command_as_it_is(text in "[ -~\n]{0,60}") {
            let out = Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quote(&text))).output().unwrap();
            prop_assert_eq!(String::from_utf8(out.stdout).unwrap(), text);
        }
    }

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
    fn victim(script: &str) -> (Child, SessionId) {
        let mut victim = Command::new("setsid")
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("setsid of util-linux starts the victim");
        let mut line = String::new();
        let stdout = victim.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let session = SessionId::parse(line.trim().as_bytes()).unwrap();
        (victim, session)
    }

    /// Sweeps as a guest whose `/bin/sh` is `sh`; returns the victim's exit status.
    fn swept(sh: &[&str], proc: &str, script: &str, grace: Duration) -> ExitStatus {
        let (mut victim, session) = victim(script);
        let command = sweep(session, grace, Duration::from_secs(20))
            .replace("exec /bin/sh", &format!("exec {}", sh.join(" ")))
            .replace("/proc/", proc);
        let mut sweeping = Command::new("/bin/sh").arg("-c").arg(command).spawn().unwrap();
        let end = victim.wait().unwrap();
        assert!(sweeping.wait().unwrap().success(), "{sh:?} {proc}");
        assert_eq!(living_of(session.0), Vec::<String>::new(), "{sh:?} {proc}");
        end
    }

    const SHELLS: [&[&str]; 3] = [&["sh"], &["bash"], &["busybox", "ash"]];

    #[test]
    fn a_sweep_kills_what_ignores_term_after_the_grace_in_every_shell_here() {
        let grace = Duration::from_millis(300);
        for sh in SHELLS {
            let begun = Instant::now();
            let script = "trap '' TERM; sleep 300 & echo $$; wait; wait; sleep 300";
            assert_eq!(swept(sh, "/proc/", script, grace).signal(), Some(9), "{sh:?}");
            assert!(begun.elapsed() >= grace, "{sh:?}");
            // A guest without `/proc`. Only one process, because `pkill` counts unreaped orphans.
            let script = "trap '' TERM; echo $$; exec sleep 300";
            assert_eq!(swept(sh, "/nowhere/", script, grace).signal(), Some(9), "{sh:?}, no /proc");
        }
    }

    #[test]
    fn a_sweep_lets_what_heeds_term_end_in_its_own_way() {
        for sh in SHELLS {
            for proc in ["/proc/", "/nowhere/"] {
                // A second TERM would kill it in the middle of its work.
                let script = "trap 'trap - TERM; while [ $((n+=1)) -lt 100000 ]; do :; done; exit 7' TERM; echo $$; \
                     while :; do :; done";
                let end = swept(sh, proc, script, Duration::from_mins(1));
                assert_eq!(end.code(), Some(7), "{sh:?} {proc}");
            }
        }
    }
}
