//! Finds a random mark in the guest's output, with the word after it.

use std::borrow::Cow;

/// The word that follows a mark, up to the end of its line.
pub(super) trait Marker: Sized {
    /// The length of the longest word.
    const LONGEST: usize;

    /// `None`: the text is not such a word.
    fn parse(word: &[u8]) -> Option<Self>;
}

/// Removes the line with the mark from the guest's standard error and passes on the rest.
#[derive(Debug)]
pub(super) struct MarkerScan<M> {
    mark: Vec<u8>,
    /// Might be the beginning of the marked line.
    held: Vec<u8>,
    /// The search has ended.
    over: bool,
    /// Bytes of the output that was returned last which came before the line.
    before: usize,
    marker: Option<M>,
}

impl<M: Marker> MarkerScan<M> {
    /// Maximum length of a word with an optional carriage return and a newline.
    const LONGEST_WORD: usize = M::LONGEST + 2;

    pub(super) fn new(mark: &str) -> Self {
        Self { mark: mark.as_bytes().to_vec(), held: Vec::new(), over: false, before: 0, marker: None }
    }

    /// The word, once the guest has given it.
    pub(super) fn marker(&self) -> Option<&M> {
        self.marker.as_ref()
    }

    /// True if the mark was found, so that the shell has started.
    pub(super) fn has_begun(&self) -> bool {
        self.over
    }

    /// Bytes before the line, in the output that [`feed`](Self::feed) returned when it found the line.
    pub(super) fn before(&self) -> usize {
        self.before
    }

    /// Returns the part that is output.
    pub(super) fn feed<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.over || (self.held.is_empty() && !bytes.contains(&self.mark[0])) {
            return Cow::Borrowed(bytes);
        }
        self.held.extend_from_slice(bytes);
        let begin = find(&self.held, &self.mark);
        let Some(begin) = begin else {
            let undecided = longest_beginning(&self.held, &self.mark);
            let output = self.held.len() - undecided;
            return Cow::Owned(self.held.drain(..output).collect());
        };
        let word = &self.held[begin + self.mark.len()..];
        let end = word.iter().take(Self::LONGEST_WORD).position(|b| *b == b'\n');
        if end.is_none() && word.len() < Self::LONGEST_WORD {
            return Cow::Owned(self.held.drain(..begin).collect());
        }
        (self.over, self.before) = (true, begin);
        let mut output = std::mem::take(&mut self.held);
        if let Some(end) = end {
            let word = begin + self.mark.len();
            self.marker = M::parse(&output[word..word + end]);
            if self.marker.is_some() {
                output.drain(begin..=word + end);
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
    use proptest::prelude::*;

    use super::*;

    /// A number above 1.
    #[derive(Debug)]
    struct Number(String);

    impl Marker for Number {
        const LONGEST: usize = 10;

        fn parse(word: &[u8]) -> Option<Self> {
            let word = std::str::from_utf8(word.strip_suffix(b"\r").unwrap_or(word)).ok()?;
            word.parse::<u32>().is_ok_and(|n| n > 1).then(|| Self(word.to_owned()))
        }
    }

    /// The output after feeding `pieces` in order, and the handle.
    fn scanned(pieces: &[&[u8]]) -> (Vec<u8>, Option<String>) {
        let mut scan = MarkerScan::<Number>::new("MARK-");
        let mut output = Vec::new();
        for piece in pieces {
            output.extend_from_slice(&scan.feed(piece));
        }
        output.extend(scan.rest());
        (output, scan.marker().map(|word| word.0.clone()))
    }

    #[test]
    fn the_marked_line_is_taken_out_and_everything_else_passes() {
        let cases: [(&[u8], &[u8], Option<&str>); 9] = [
            (b"MARK-4711\n", b"", Some("4711")),
            (b"noisy profile\nMARK-4711\r\nrest", b"noisy profile\nrest", Some("4711")),
            (b"no newline MARK-12\nMARK-13\n", b"no newline MARK-13\n", Some("12")),
            (b"4711\n", b"4711\n", None),
            (b"MARK-\n", b"MARK-\n", None),
            (b"MARK-1\nx", b"MARK-1\nx", None),
            (b"MARK--1; reboot\n", b"MARK--1; reboot\n", None),
            (b"MARK-99999999999999999999\n", b"MARK-99999999999999999999\n", None),
            (b"MARK-12", b"MARK-12", None),
        ];
        for (input, output, handle) in cases {
            let handle = handle.map(str::to_owned);
            let text = String::from_utf8_lossy(input);
            assert_eq!(scanned(&[input]), (output.to_vec(), handle.clone()), "{text:?}");
            let bytes: Vec<&[u8]> = input.chunks(1).collect();
            assert_eq!(scanned(&bytes), (output.to_vec(), handle), "{text:?}, byte by byte");
        }
    }

    #[test]
    fn output_is_not_held_back_for_long() {
        let mut scan = MarkerScan::<Number>::new("MARK-");
        assert_eq!(scan.feed(b"a prompt> ").as_ref(), b"a prompt> ");
        assert_eq!(scan.feed(b"MA").as_ref(), b"");
        assert_eq!(scan.feed(b"Y").as_ref(), b"MAY");
        let long = format!("MARK-{}", "1".repeat(Number::LONGEST + 2));
        assert_eq!(scan.feed(long.as_bytes()).as_ref(), long.as_bytes());
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_changes_nothing(
            before in "[MARK\\-x\n]{0,20}", after in "[MARK\\-1\n]{0,20}", cuts in proptest::collection::vec(1_usize..9, 0..20)
        ) {
            let all = format!("{before}\nMARK-77\n{after}").into_bytes();
            prop_assume!(find(before.as_bytes(), b"MARK-").is_none());
            let mut pieces = Vec::new();
            let mut rest = all.as_slice();
            for cut in cuts {
                let (piece, remaining) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = remaining;
            }
            pieces.push(rest);
            prop_assert_eq!(scanned(&pieces), (format!("{before}\n{after}").into_bytes(), Some("77".to_owned())));
        }
    }
}
