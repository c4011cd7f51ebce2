//! One Rust file, with comments and strings blanked out.

use std::ops::Range;

/// The attribute of what a crate has for the tests of other crates.
const SAMPLES: &str = "#[cfg(feature = \"samples\")]";

/// A file and the properties of it that need no parser.
pub(crate) struct Source {
    /// The path from the package's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with every comment, string and character blanked, byte for byte.
    pub(crate) code: String,
}

/// A module that is written in its parent's file.
pub(crate) struct Inline {
    pub(crate) name: String,
    pub(crate) body: Range<usize>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), code: blank(text) }
    }

    /// True if the file is part of the program, rather than of its tests.
    pub(crate) fn is_ours(&self) -> bool {
        self.path.starts_with("src/") || crate_of(&self.path).is_some()
    }

    /// The line of a byte offset, from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        line(&self.text, offset)
    }

    /// The bytes of everything that is compiled for tests only, attribute included.
    pub(crate) fn test_parts(&self) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for marker in ["#[cfg(test)]", "#[cfg(all(test", SAMPLES] {
            // The feature's name is blank in the code.
            let text = if marker == SAMPLES { &self.text } else { &self.code };
            for (start, _) in text.match_indices(marker) {
                let end = item_end(&self.code, start + marker.len());
                if !parts.iter().any(|part| part.contains(&start)) {
                    parts.push(start..end);
                }
            }
        }
        parts
    }

    /// Modules with a body in this file, outer ones first.
    pub(crate) fn inline_modules(&self) -> Vec<Inline> {
        let mut found = Vec::new();
        for (name, after) in self.items("mod") {
            let rest = &self.code[after..];
            if let Some(open) = rest.find(['{', ';']).filter(|at| rest.as_bytes()[*at] == b'{') {
                found.push(Inline { name, body: after + open..closing(&self.code, after + open) });
            }
        }
        found
    }

    /// Names declared by a keyword, each with the offset behind the name.
    pub(crate) fn items(&self, keyword: &str) -> Vec<(String, usize)> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices(keyword) {
            let before = self.code[..at].chars().next_back();
            let rest = &self.code[at + keyword.len()..];
            let name: String = rest.trim_start().chars().take_while(|c| is_word(*c)).collect();
            let apart = rest.starts_with(char::is_whitespace) && !before.is_some_and(is_word);
            if apart && !name.is_empty() {
                let skipped = rest.len() - rest.trim_start().len();
                found.push((name.clone(), at + keyword.len() + skipped + name.len()));
            }
        }
        found
    }
}

/// The layer that is a crate of its own: `core` for the files in `crates/core/src`.
pub(crate) fn crate_of(path: &str) -> Option<&str> {
    let (name, inside) = path.strip_prefix("crates/")?.split_once('/')?;
    inside.starts_with("src/").then_some(name)
}

/// The line of a byte offset, from 1. An offset inside a character counts with its beginning.
pub(crate) fn line(text: &str, offset: usize) -> usize {
    text[..text.floor_char_boundary(offset)].matches('\n').count() + 1
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The end of the item that begins at or after `from`: behind its `;` or its closing brace.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return closing(code, at),
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Behind the brace that closes the one at `open`.
pub(crate) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let Some(end) = literal_end(bytes, at).map(|end| end.min(bytes.len())) else {
            at += 1;
            continue;
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Only what lies inside literals and comments can be other than ASCII in a way that matters here.
    String::from_utf8(code)
        .unwrap_or_else(|_| text.chars().map(|c| if c.is_ascii() { c } else { '_' }).collect())
}

/// The end of the comment, string or character that begins at `at`, if one does.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let starts_word = at == 0 || !(bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    if rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return Some(at + comment_length(rest));
    }
    if rest[0] == b'"' {
        return Some(at + 1 + quoted_length(&rest[1..]));
    }
    if starts_word && matches!(rest[0], b'r' | b'b' | b'c') {
        let prefix = rest.iter().take(2).take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
        let hashes = rest[prefix..].iter().take_while(|byte| **byte == b'#').count();
        let raw = rest[..prefix].contains(&b'r');
        let quote = rest.get(prefix + hashes) == Some(&b'"');
        if quote && raw {
            let body = prefix + hashes + 1;
            let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
            let length = rest[body..].windows(close.len()).position(|window| window == close);
            return Some(at + body + length.map_or(rest.len(), |length| length + close.len()));
        }
        if quote && hashes == 0 {
            return Some(at + prefix + 1 + quoted_length(&rest[prefix + 1..]));
        }
    }
    (rest[0] == b'\'').then(|| character_length(rest)).flatten().map(|length| at + length)
}

fn comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Length of a string's inside with its closing quote.
fn quoted_length(inside: &[u8]) -> usize {
    let mut at = 0;
    while at < inside.len() {
        match inside[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    inside.len()
}

/// Length of a character literal; `None` for a lifetime.
fn character_length(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        let close = rest[2..].iter().skip(1).position(|byte| *byte == b'\'')?;
        return Some(close + 4);
    }
    let text = std::str::from_utf8(&rest[1..rest.len().min(6)]);
    let valid = text.map_or_else(|error| error.valid_up_to(), str::len);
    let first = std::str::from_utf8(&rest[1..=valid]).ok()?.chars().next()?;
    (rest.get(1 + first.len_utf8()) == Some(&b'\'')).then(|| first.len_utf8() + 2)
}
