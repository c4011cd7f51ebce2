//! Makes data and foreign text fit for messages and shells; a [`Secret`] is shown in neither.

use std::error::Error;
use std::fmt;

const MIB: u64 = 1 << 20;

/// An amount of data, as messages show it.
pub fn size(bytes: u64) -> String {
    if bytes < MIB { format!("{} KiB", bytes.div_ceil(1024)) } else { format!("{} MiB", bytes / MIB) }
}

/// A moment in a table, to the minute.
pub fn minute(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%MZ").to_string()
}

/// The sentences of an error and its causes, without those that an earlier sentence contains: transparent wrappers repeat what they
/// wrap, and some messages quote their causes.
pub fn sentences(error: &dyn Error) -> Vec<String> {
    let mut sentences = vec![error.to_string()];
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let sentence = cause.to_string();
        if sentences.iter().all(|known| !known.contains(&sentence)) {
            sentences.push(sentence);
        }
    }
    sentences
}

/// An error with its causes in one line, as [`sentences`] has them.
pub fn with_causes(error: &dyn Error) -> String {
    sentences(error).join(": ")
}

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.concat()
}

/// Removes from a guest's text whatever could act on a terminal or on a log instead of being read: control characters
/// (newline and tab stay), whole escape sequences, marks that change the direction of writing. Bytes that are not UTF-8
/// become `U+FFFD`. A carriage return ends a line.
pub fn clean_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' => clean.push(c),
            '\r' => {
                if rest.peek() != Some(&'\n') && !clean.is_empty() && !clean.ends_with('\n') {
                    clean.push('\n');
                }
            }
            '\u{1b}' => skip_escape(&mut rest),
            '\u{9b}' => skip_until_final(&mut rest),
            c if c.is_control() || turns_direction(c) => {}
            c => clean.push(c),
        }
    }
    clean
}

/// A guest's text as [`clean_text`] leaves it, on one line of at most `limit` characters: runs of white space become one space, and
/// `…` stands for what was cut off.
pub fn clean_line(bytes: &[u8], limit: usize) -> String {
    let text = clean_text(bytes);
    let words = text.split_whitespace().enumerate();
    let mut chars = words.flat_map(|(n, word)| (n > 0).then_some(' ').into_iter().chain(word.chars()));
    let mut line: String = chars.by_ref().take(limit).collect();
    if chars.next().is_some() {
        line.pop();
        line.truncate(line.trim_end().len());
        line.push('…');
    }
    line
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Behind an escape character: a control sequence, a string up to its terminator, or a short escape.
fn skip_escape(rest: &mut Rest<'_>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_until_final(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            rest.next();
            skip_string(rest);
        }
        Some(' '..='/') => {
            while rest.next_if(|c| (' '..='/').contains(c)).is_some() {}
            rest.next_if(|c| ('0'..='~').contains(c));
        }
        Some('0'..='~') => {
            rest.next();
        }
        _ => {}
    }
}

/// Parameters and intermediates, then one final character. Anything else ends the sequence.
fn skip_until_final(rest: &mut Rest<'_>) {
    while rest.next_if(|c| (' '..='?').contains(c)).is_some() {}
    rest.next_if(|c| ('@'..='~').contains(c));
}

/// Up to BEL or string terminator. A line's end stops it too, so that an unfinished sequence cannot remove the rest of
/// a log.
fn skip_string(rest: &mut Rest<'_>) {
    while let Some(c) = rest.next_if(|c| *c != '\n') {
        if c == '\u{7}' || c == '\u{9c}' {
            return;
        }
        if c == '\u{1b}' {
            rest.next_if_eq(&'\\');
            return;
        }
    }
}

fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as one word of a shell's command, whatever is in it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A value that is shown as `***`. It is accessible only through [`expose`](Self::expose), which is easy to search for.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }

    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("disk full")]
        Disk,
        #[error("cannot write `x`: {0}")]
        Quoting(#[source] Box<Failed>),
        #[error("cannot boot `vm`")]
        Boot(#[source] Box<Failed>),
        #[error(transparent)]
        Wrapper(Box<Failed>),
    }

    #[test]
    fn a_cause_that_a_sentence_contains_is_not_said_again() {
        let quoting = || Box::new(Failed::Quoting(Box::new(Failed::Disk)));
        for (error, expected) in [
            (Failed::Disk, "disk full"),
            (Failed::Boot(Box::new(Failed::Disk)), "cannot boot `vm`: disk full"),
            (Failed::Boot(quoting()), "cannot boot `vm`: cannot write `x`: disk full"),
            (Failed::Wrapper(quoting()), "cannot write `x`: disk full"),
        ] {
            assert_eq!(with_causes(&error), expected);
        }
    }

    #[test]
    fn an_amount_of_data_has_one_unit() {
        for (bytes, shown) in
            [(0, "0 KiB"), (1, "1 KiB"), (MIB - 1024, "1023 KiB"), (MIB, "1 MiB"), (5 * MIB, "5 MiB")]
        {
            assert_eq!(size(bytes), shown);
        }
    }

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in ["", "ok\n", "a\tb\n\nc", "größer ≤ 3 ✓", "日本語"] {
            assert_eq!(clean_text(text.as_bytes()), text);
        }
    }

    #[test]
    fn whatever_acts_on_a_terminal_is_taken_out_whole() {
        for (dirty, clean) in [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07text", "text"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b(Bx\x1b=y\x1bMz", "xyz"),
            ("\u{9b}2Jx", "x"),
            ("10%\r50%\r100%\r\n", "10%\n50%\n100%\n"),
            ("\rsection_start:1:x\r\x1b[0Khead", "section_start:1:x\nhead"),
            ("a\0b\x08\x7fc", "abc"),
            ("user\u{202e}gpj.exe", "usergpj.exe"),
            ("\x1b]unfinished\nnext", "\nnext"),
        ] {
            assert_eq!(clean_text(dirty.as_bytes()), clean, "{dirty:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_not_lost() {
        assert_eq!(clean_text(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
    }

    #[test]
    fn a_line_is_one_line_and_never_longer_than_asked() {
        assert_eq!(clean_line(b" one\r\n  two\t three ", 40), "one two three");
        assert_eq!(clean_line(b"one two three", 9), "one two…");
        assert_eq!(clean_line(b"abcdefghij", 5), "abcd…");
    }

    proptest! {
        #[test]
        fn nothing_that_acts_survives(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let clean = clean_text(&bytes);
            prop_assert!(clean.chars().all(|c| !turns_direction(c) && (!c.is_control() || matches!(c, '\n' | '\t'))));
            prop_assert_eq!(clean_text(clean.as_bytes()), clean.clone());
        }

        #[test]
        fn a_line_keeps_its_limit(bytes in proptest::collection::vec(any::<u8>(), 0..200), limit in 1_usize..60) {
            let line = clean_line(&bytes, limit);
            prop_assert!(line.chars().count() <= limit, "{} > {limit}: {line:?}", line.chars().count());
            prop_assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn a_secret_shows_stars_whatever_is_inside() {
        let secret = Secret::new(vec!["hunter2"]);
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "*** Some(***)");
        assert_eq!(secret.expose()[0], "hunter2");
    }
}
