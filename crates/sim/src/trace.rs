//! The trace: what happened, line by line.
//!
//! One line per step with its virtual time. Always hashed; kept as text only on request. Two runs of one seed must have
//! the same trace, byte for byte.

use std::fmt::{self, Write};

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    bytes: u64,
    lines: u64,
    text: Option<String>,
}

impl Trace {
    /// `keep` keeps the text.
    pub fn new(keep: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, bytes: 0, lines: 0, text: keep.then(String::new) }
    }

    /// Adds a line: when (milliseconds since the world began), who, and what.
    pub fn line(&mut self, now: u64, who: fmt::Arguments<'_>, what: fmt::Arguments<'_>) {
        self.lines += 1;
        let _infallible = writeln!(self, "{:>8}.{:03} {who}: {what}", now / 1000, now % 1000);
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The whole text, if it was kept.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Length and hash: equal for equal traces.
    pub fn digest(&self) -> (u64, u64) {
        (self.bytes, self.hash)
    }
}

impl Write for Trace {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.bytes += part.len() as u64;
        // FNV-1a over words of eight bytes: cheap, and every byte counts, as does its position in the part.
        let mut hash = self.hash;
        for chunk in part.as_bytes().chunks(8) {
            let mut word = [0_u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        self.hash = hash;
        if let Some(text) = &mut self.text {
            text.push_str(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_same_with_and_without_text_and_sees_every_line() {
        let traced = |keep, last: &str| {
            let mut trace = Trace::new(keep);
            trace.line(12_345, format_args!("keeper"), format_args!("lists"));
            trace.line(12_346, format_args!("keeper"), format_args!("{last}"));
            trace
        };
        assert_eq!(traced(true, "sleeps").digest(), traced(false, "sleeps").digest());
        assert_ne!(traced(true, "sleeps").digest(), traced(true, "sleept").digest());
        assert_eq!(traced(true, "ok").text(), Some("      12.345 keeper: lists\n      12.346 keeper: ok\n"));
        assert_eq!(traced(false, "ok").text(), None);
    }
}
