//! Cuts a stream of bytes into lines of limited length.

/// A longer line is cut.
pub(super) const LONGEST: usize = 64 << 10;

/// What a stream has delivered of its last line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Calls `line` for each line that the bytes complete.
    pub(super) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let mut part = part;
            while self.begun.len() + part.len() > LONGEST {
                let (now, later) = part.split_at(LONGEST - self.begun.len());
                self.begun.extend_from_slice(now);
                self.end(&mut line);
                part = later;
            }
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end(&mut line);
            }
        }
    }

    /// The stream's end ends its last line, too.
    pub(super) fn end(&mut self, mut line: impl FnMut(&[u8])) {
        let text = self.begun.trim_ascii_end();
        if !text.is_empty() {
            line(text);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        for part in parts {
            lines.push(part, |line| all.push(line.to_vec()));
        }
        lines.end(|line| all.push(line.to_vec()));
        all
    }

    #[test]
    fn lines_are_whole_however_the_stream_is_cut() {
        assert_eq!(cut(&[b"on", b"e\r\n\ntwo\nth", b"ree"]), [&b"one"[..], b"two", b"three"]);
        assert_eq!(cut(&[b"", b"\n\n"]), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_not_kept() {
        let long = vec![b'x'; LONGEST * 2 + 10];
        let lengths: Vec<usize> = cut(&[&long[..100], &long[100..]]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [LONGEST, LONGEST, 10]);
    }
}
