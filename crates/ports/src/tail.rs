//! The last part of an output, for messages.

use std::collections::VecDeque;
use std::io;

use async_trait::async_trait;
use greenroom_core::text::clean_text;

use super::connector::{Output, Stream};

/// Bytes that are kept of a command's output.
const KEPT: usize = 8 << 10;

/// The last 8 KiB of both streams, in order of arrival.
#[derive(Debug, Default)]
pub struct Tail {
    kept: VecDeque<u8>,
    cut: bool,
}

impl Tail {
    /// The cleaned text, from the start of a line if the output was truncated.
    pub fn text(mut self) -> String {
        let kept = self.kept.make_contiguous();
        let begin = match kept.iter().position(|b| *b == b'\n') {
            Some(newline) if self.cut => newline + 1,
            _ => 0,
        };
        clean_text(&kept[begin..])
    }

    fn push(&mut self, bytes: &[u8]) {
        self.cut |= self.kept.len() + bytes.len() > KEPT;
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        let surplus = (self.kept.len() + bytes.len()).saturating_sub(KEPT);
        self.kept.drain(..surplus);
        self.kept.extend(bytes);
    }
}

#[async_trait(?Send)]
impl Output for Tail {
    async fn write(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        self.push(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_output_is_kept_whole_and_a_long_one_from_a_line_start() {
        let mut tail = Tail::default();
        tail.push(b"one\n\x1b[1mtwo\x1b[0m");
        assert_eq!(tail.text(), "one\ntwo");
        let mut tail = Tail::default();
        for n in 0..5000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        let text = tail.text();
        assert!(
            text.starts_with("line ") && text.ends_with("line 4999\n") && text.len() > KEPT - 20,
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn the_last_part_is_kept_however_it_comes(pieces in proptest::collection::vec(0_usize..12_000, 0..6)) {
            let mut tail = Tail::default();
            let mut all = Vec::new();
            for (n, length) in pieces.into_iter().enumerate() {
                let piece = vec![b'a' + u8::try_from(n).unwrap(); length];
                tail.push(&piece);
                all.extend(piece);
            }
            let last = &all[all.len().saturating_sub(KEPT)..];
            prop_assert_eq!(tail.cut, all.len() > KEPT);
            prop_assert_eq!(tail.kept.make_contiguous(), last);
        }
    }
}
