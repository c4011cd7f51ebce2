//! The tail of an instance's console.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use fs_err as fs;

/// Maximum size of the tail, in bytes.
pub const TAIL: u64 = 64 * 1024;

/// The last 64 KiB of a file, from the beginning of a line. Bytes that are not UTF-8 become `�`.
pub fn tail(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    // The file may be growing: later output is left for the next call.
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    match text.split_once('\n') {
        Some((_, whole)) if begin > 0 => Ok(whole.to_owned()),
        _ => Ok(text.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("console.log");
        fs::write(&file, b"one\ntwo\xff").unwrap();
        assert!(tail(&file).unwrap().starts_with("one\ntwo"));
        fs::write(&file, "0123456789abcde\n".repeat(10_000)).unwrap();
        let kept = tail(&file).unwrap();
        assert_eq!(kept.len() as u64, TAIL - 16);
        assert!(kept.starts_with("0123"));
        assert!(tail(&dir.path().join("none")).is_err());
    }
}
