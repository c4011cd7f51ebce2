//! A JSON text without its longest strings: a script of any size, or a variable of any size, takes no memory.

use std::io::{self, Read};

/// Strings are cut to about this many bytes, as written in JSON, where a character takes up to six.
pub(super) const LONGEST: usize = 1 << 20;
/// Values within values. `serde_json` allows as many, but not where it skips a value.
const DEEPEST: usize = 128;

/// Reads JSON. What it passes on is JSON if the original is.
#[derive(Debug)]
pub(super) struct Clipped<R> {
    inner: R,
    depth: usize,
    place: Place,
}

/// Where the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    /// In a string of which so many bytes have passed.
    Text(usize),
    /// Behind a backslash.
    Escape(usize),
    /// Behind `\u`: so many digits are missing, and the value of those before.
    Digits(usize, u8, u16),
    /// Behind the first half of a pair of `\u`, which cannot stand alone.
    Half(usize),
    /// In the part of a string that is left out.
    Cut,
    CutEscape,
}

impl<R: Read> Clipped<R> {
    pub(super) const fn new(inner: R) -> Self {
        Self { inner, depth: 0, place: Place::Outside }
    }

    /// True if the byte is passed on.
    fn step(&mut self, byte: u8) -> io::Result<bool> {
        self.place = match (self.place, byte) {
            (Place::Outside, b'"') => Place::Text(0),
            (Place::Outside, b'[' | b'{') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
                Place::Outside
            }
            (Place::Outside, b']' | b'}') => {
                self.depth = self.depth.saturating_sub(1);
                Place::Outside
            }
            (Place::Outside, _) | (Place::Text(_) | Place::Half(_) | Place::Cut, b'"') => Place::Outside,
            // A character of several bytes is not cut.
            (Place::Text(length), byte) if length >= LONGEST && !(0x80..0xc0).contains(&byte) => {
                self.place = if byte == b'\\' { Place::CutEscape } else { Place::Cut };
                return Ok(false);
            }
            (Place::Text(length) | Place::Half(length), b'\\') => Place::Escape(length + 1),
            (Place::Escape(length), b'u') => Place::Digits(length + 1, 4, 0),
            (Place::Text(length) | Place::Half(length) | Place::Escape(length), _) => Place::Text(length + 1),
            (Place::Digits(length, missing, value), byte) => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                let value = value << 4 | u16::try_from(digit).unwrap_or_default();
                match missing {
                    1 if (0xd800..0xdc00).contains(&value) => Place::Half(length + 1),
                    1 => Place::Text(length + 1),
                    _ => Place::Digits(length + 1, missing - 1, value),
                }
            }
            (Place::Cut, b'\\') => {
                self.place = Place::CutEscape;
                return Ok(false);
            }
            (Place::Cut | Place::CutEscape, _) => {
                self.place = Place::Cut;
                return Ok(false);
            }
        };
        Ok(true)
    }
}

impl<R: Read> Read for Clipped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.inner.read(buffer)?;
            if read == 0 {
                return Ok(0);
            }
            let mut kept = 0;
            for at in 0..read {
                let byte = buffer[at];
                if self.step(byte)? {
                    buffer[kept] = byte;
                    kept += 1;
                }
            }
            if kept > 0 {
                return Ok(kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn clipped(text: &[u8]) -> io::Result<Vec<u8>> {
        let mut passed = Vec::new();
        Clipped::new(text).read_to_end(&mut passed).map(|_| passed)
    }

    #[test]
    fn a_long_string_is_cut_and_what_follows_is_not() {
        let long = 4 * LONGEST;
        for unit in ["x", "ä", "𝄞", "\n", "\\", "\"", "\u{1}"] {
            let text = unit.repeat(long / unit.len());
            let value = json!({ "script": [text], "after": "x\"\\" });
            let passed = clipped(value.to_string().as_bytes()).unwrap();
            assert!(passed.len() < LONGEST + 100, "{unit:?}: {}", passed.len());
            let read: Value = serde_json::from_slice(&passed).unwrap();
            assert_eq!(read["after"], value["after"], "{unit:?}");
            let cut = read["script"][0].as_str().unwrap();
            assert!(text.starts_with(cut) && cut.len() >= LONGEST / 6 - 1, "{unit:?}: {}", cut.len());
        }
    }

    #[test]
    fn escaped_pairs_are_not_torn() {
        for ahead in 0..12 {
            let text = format!("{}{}", "x".repeat(LONGEST - ahead), "\\ud834\\udd1e".repeat(40));
            let passed = clipped(format!("[\"{text}\", 1]").as_bytes()).unwrap();
            let read: Value = serde_json::from_slice(&passed).unwrap();
            assert_eq!(read[1], 1);
        }
    }

    #[test]
    fn nesting_without_end_is_an_error() {
        let depth = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(clipped(depth(DEEPEST).as_bytes()).is_ok());
        assert!(clipped(depth(DEEPEST + 1).as_bytes()).is_err());
        let brackets = json!(["[".repeat(10 * DEEPEST)]).to_string();
        assert_eq!(clipped(brackets.as_bytes()).unwrap(), brackets.as_bytes());
    }

    proptest! {
        #[test]
        fn what_has_no_long_string_passes_unchanged(text in r#"[\[\]{}"\\u0-9a-dä ]{0,60}"#) {
            prop_assert_eq!(clipped(text.as_bytes()).unwrap(), text.as_bytes());
        }
    }
}
