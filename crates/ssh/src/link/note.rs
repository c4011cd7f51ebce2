//! The note of a running stage, in its slot's lock file: how to stop the stage, and when that was last known to be true.

use std::fmt;
use std::time::Duration;

use greenroom_core::time::{BootId, Stamp};

use super::super::sift::Word;
use super::super::stop_handle::StopHandle;

/// Age from which a dead link's note is ignored: the session has ended with its job, and its number may have been
/// reused.
const STALE: Duration = Duration::from_mins(10);

/// Written as one line of `LENGTH` bytes: the handle, the boot, and the milliseconds since that boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) handle: StopHandle,
    boot: BootId,
    uptime_ms: u64,
}

impl Note {
    /// The same for each note, and for none: the next one covers it.
    pub(super) const LENGTH: usize = StopHandle::LONGEST + 1 + 20 + 1 + 20 + 1;

    pub(super) fn new(handle: StopHandle, now: Stamp) -> Self {
        Self { handle, boot: now.boot, uptime_ms: now.uptime_ms }
    }

    /// `None` if the line has no note.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let handle = StopHandle::parse(words.next()?.as_bytes())?;
        let boot = BootId(words.next()?.parse().ok()?);
        Some(Self { handle, boot, uptime_ms: words.next()?.parse().ok()? })
    }

    /// True if its stage may still be running. A reboot of the runner host ends all stages.
    pub(super) fn is_recent(&self, now: Stamp) -> bool {
        let age = Duration::from_millis(now.uptime_ms.saturating_sub(self.uptime_ms));
        self.boot == now.boot && age < STALE
    }

    /// The bytes of a note, or of none.
    pub(super) fn line(note: Option<&Self>) -> String {
        let words = note.map(ToString::to_string).unwrap_or_default();
        format!("{words:<width$}\n", width = Self::LENGTH - 1)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.handle, self.boot.0, self.uptime_ms)
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::ManagerId;

    use super::*;

    const MIN_MS: u64 = 60_000;

    fn at(boot: u64, uptime_ms: u64, wall_ms: i64) -> Stamp {
        Stamp { wall_ms, manager: ManagerId(0), boot: BootId(boot), uptime_ms }
    }

    fn note(now: Stamp) -> Note {
        Note::new(StopHandle::parse(b"4711").unwrap(), now)
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_each_line_covers_the_one_before() {
        let longest = Note::new(StopHandle::parse(b"4294967295").unwrap(), at(u64::MAX, u64::MAX, 0));
        for note in [note(at(1, 2, 3)), longest] {
            let line = Note::line(Some(&note));
            assert_eq!(line.len(), Note::LENGTH);
            assert_eq!(Note::parse(&line), Some(note));
        }
        assert_eq!(Note::line(None).len(), Note::LENGTH);
        for line in [Note::line(None).as_str(), "", "4711", "4711 1", "4711 1 x", "1 1 1"] {
            assert_eq!(Note::parse(line), None, "{line}");
        }
    }

    #[test]
    fn a_note_goes_stale_by_the_boot_clock_or_with_a_reboot() {
        let noted = note(at(1, MIN_MS, 0));
        for (now, recent) in [
            (at(1, MIN_MS, 0), true),
            (at(1, 10 * MIN_MS, i64::MAX), true),
            (at(1, 10 * MIN_MS, i64::MIN), true),
            (at(1, 11 * MIN_MS, 0), false),
            (at(1, 11 * MIN_MS, i64::MIN), false),
            (at(2, MIN_MS, 0), false),
            (at(2, 0, 0), false),
        ] {
            assert_eq!(noted.is_recent(now), recent, "{now:?}");
        }
    }
}
