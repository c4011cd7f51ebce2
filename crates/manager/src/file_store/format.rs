//! Lines of the state's files: checksum, number, version.
//!
//! Every line is one JSON object that begins with `{"crc":"xxxxxxxx",`; the checksum covers all bytes after that up to
//! the end of the object. A line without its newline is incomplete and not valid.

use std::io::BufRead as _;

use greenroom_core::event::Event;
pub use greenroom_core::format::FORMAT;
use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use serde::{Deserialize, Serialize};

const OPENING: &[u8] = b"{\"crc\":\"";
const DIGITS: usize = 8;
/// Length of `{"crc":"xxxxxxxx",`.
const SEAL: usize = OPENING.len() + DIGITS + 2;

/// The first line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u32,
    pub(super) pool: PoolName,
    /// The number of the first record, if there is one.
    pub(super) first: u64,
}

/// One whole transaction.
#[derive(Debug, Deserialize)]
pub(super) struct JournalRecord {
    pub(super) n: u64,
    pub(super) events: Vec<Event>,
}

/// The only line of a snapshot, as it is read.
#[derive(Debug, Deserialize)]
pub(super) struct Snapshot {
    pub(super) format: u32,
    pub(super) pool: PoolName,
    pub(super) last: u64,
    #[serde(default)]
    pub(super) inapplicable_events: u64,
    pub(super) state: PoolState,
}

/// The field that the files of every version have.
#[derive(Debug, Deserialize)]
struct Version {
    format: u32,
}

#[derive(Serialize)]
struct RecordOut<'a> {
    n: u64,
    events: &'a [Event],
}

#[derive(Serialize)]
struct SnapshotOut<'a> {
    format: u32,
    pool: &'a PoolName,
    last: u64,
    inapplicable_events: u64,
    state: &'a PoolState,
}

pub(super) fn record(n: u64, events: &[Event]) -> serde_json::Result<Vec<u8>> {
    seal(&RecordOut { n, events })
}

pub(super) fn snapshot(
    pool: &PoolName,
    last: u64,
    inapplicable_events: u64,
    state: &PoolState,
) -> serde_json::Result<Vec<u8>> {
    seal(&SnapshotOut { format: FORMAT, pool, last, inapplicable_events, state })
}

/// Writes an object as a line with its checksum.
pub(super) fn seal(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = vec![0; SEAL - 1];
    serde_json::to_writer(&mut line, value)?;
    line[SEAL - 1] = b',';
    let crc = format!("{:08x}", crc32fast::hash(&line[SEAL..]));
    line[..OPENING.len()].copy_from_slice(OPENING);
    line[OPENING.len()..OPENING.len() + DIGITS].copy_from_slice(crc.as_bytes());
    line[OPENING.len() + DIGITS] = b'"';
    line.push(b'\n');
    Ok(line)
}

/// True if the line begins like those of [`seal`], whether or not it is sound.
pub(super) fn is_sealed(line: &[u8]) -> bool {
    line.starts_with(OPENING)
}

/// True if the line (without its newline) is as it was written.
pub(super) fn is_sound(line: &[u8]) -> bool {
    let Some((seal, body)) = line.split_at_checked(SEAL) else { return false };
    let (opening, rest) = seal.split_at(OPENING.len());
    let (digits, closing) = rest.split_at(DIGITS);
    opening == OPENING
        && closing == b"\","
        && body.ends_with(b"}")
        && digits == format!("{:08x}", crc32fast::hash(body)).as_bytes()
}

/// The number of a record, found without parsing it.
pub(super) fn number(line: &[u8]) -> Option<u64> {
    first_field(line, b"\"n\":")
}

/// The format that a line names, sound or not, so that files of newer versions are recognised. A line of this version has
/// it first, and is not parsed for it: that would take a quarter of the time of reading a snapshot.
pub(super) fn version(line: &[u8]) -> Option<u32> {
    let first = first_field(line, b"\"format\":").filter(|_| is_sealed(line));
    match first.and_then(|found| u32::try_from(found).ok()) {
        Some(found) => Some(found),
        None => serde_json::from_slice::<Version>(line).ok().map(|v| v.format),
    }
}

/// The number that follows the seal, if its field has this name.
fn first_field(line: &[u8], name: &[u8]) -> Option<u64> {
    let rest = line.get(SEAL..)?.strip_prefix(name)?;
    let end = rest.iter().position(|b| !b.is_ascii_digit())?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

/// Lines of a piece of a file; the last one may lack its newline.
pub(super) struct Lines<'a>(pub(super) &'a [u8]);

/// One line: its text without the newline, its length with it.
pub(super) struct Line<'a> {
    pub(super) text: &'a [u8],
    pub(super) length: u64,
    /// True if it ends with a newline and its checksum matches.
    pub(super) sound: bool,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        if self.0.is_empty() {
            return None;
        }
        // The C library's search is many times faster than a loop over bytes.
        let length = { self.0 }.skip_until(b'\n').unwrap_or(self.0.len());
        let (whole, rest) = self.0.split_at(length);
        self.0 = rest;
        let end = whole.strip_suffix(b"\n");
        let text = end.unwrap_or(whole);
        Some(Line { text, length: whole.len() as u64, sound: end.is_some() && is_sound(text) })
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::event::Change;
    use greenroom_core::time::{BootId, ManagerId, Stamp};
    use proptest::prelude::*;

    use super::*;

    fn events() -> Vec<Event> {
        let at =
            Stamp { wall_ms: 1_700_000_000_000, manager: ManagerId(1), boot: BootId(u64::MAX), uptime_ms: 5 };
        vec![Change::PoolDrained.at(at), Change::PoolResumed.at(at)]
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let line = record(7, &events()).unwrap();
        let text = line.strip_suffix(b"\n").unwrap();
        assert!(is_sound(text));
        assert_eq!(number(text), Some(7));
        let back: JournalRecord = serde_json::from_slice(text).unwrap();
        assert_eq!((back.n, back.events), (7, events()));
    }

    #[test]
    fn no_single_bit_flip_leaves_a_record_sound() {
        let line = record(7, &events()).unwrap();
        for bit in 0..line.len() * 8 {
            let mut flipped = line.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Lines(&flipped).all(|l| !l.sound), "bit {bit}");
        }
    }

    #[test]
    fn no_cut_leaves_a_record_sound() {
        let line = record(7, &events()).unwrap();
        for length in 0..line.len() {
            assert!(Lines(&line[..length]).all(|l| !l.sound), "length {length}");
        }
    }

    #[test]
    fn a_file_from_the_future_still_says_its_format() {
        assert_eq!(version(br#"{"crc":"00000000","format":9,"unheard":{}}"#), Some(9));
        assert_eq!(version(br#"{"of":"another","order":[],"format":10}"#), Some(10));
        assert_eq!(version(b"garbage"), None);
    }

    #[test]
    fn the_format_of_this_versions_lines_is_found_without_parsing_them() {
        let pool = PoolName::new("linux");
        let line = snapshot(&pool, 0, 0, &PoolState::default()).unwrap();
        assert_eq!(version(&line), Some(FORMAT));
        assert_eq!(version(&line[..line.len() - 9]), Some(FORMAT), "the rest is not read");
        let header = seal(&Header { format: FORMAT, pool, first: 1 }).unwrap();
        assert_eq!(version(&header[..header.len() - 9]), Some(FORMAT));
        assert_eq!(version(&header[1..]), None, "not a line of this version");
    }

    proptest! {
        #[test]
        fn lines_cover_their_bytes_exactly(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200)) {
            let total: u64 = Lines(&bytes).map(|l| l.length).sum();
            prop_assert_eq!(total, bytes.len() as u64);
        }
    }
}
