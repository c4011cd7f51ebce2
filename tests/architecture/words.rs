//! Forbidden texts. The patterns are written in two halves, so that this file does not match itself.

use super::Finding;
use super::source::{Source, line};

/// Reports a file whose first line does not describe it.
pub(crate) fn no_first_line(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().next().unwrap_or_default();
    let is_described = first.strip_prefix("//! ").is_some_and(|text| !text.trim().is_empty());
    let what = "the first line must be `//! what this file is`".to_owned();
    if is_described { Vec::new() } else { vec![Finding { file: source.path.clone(), line: 1, what }] }
}

/// Lints silenced without a reason, and unfinished work.
pub(crate) fn leftovers(source: &Source) -> Vec<Finding> {
    let in_code = [
        (concat!("#[al", "low("), "use `#[expect(…, reason = \"…\")]`"),
        (concat!("#![al", "low("), "use `#![expect(…, reason = \"…\")]`"),
        (concat!("db", "g!("), "left over"),
        (concat!("to", "do!("), "not finished"),
        (concat!("unimple", "mented!("), "not finished"),
    ];
    let anywhere = [(concat!("FIX", "ME"), "not finished"), (concat!("X", "XX"), "not finished")];
    let mut found = Vec::new();
    let tries = in_code
        .iter()
        .map(|try_| (&source.code, try_))
        .chain(anywhere.iter().map(|try_| (&source.text, try_)));
    for (text, (pattern, why)) in tries {
        for at in places(text, pattern) {
            let what = format!("`{pattern}`: {why}");
            found.push(Finding { file: source.path.clone(), line: source.line(at), what });
        }
    }
    found
}

/// Paths of one machine, hosts of package registries, and phrases about the origin of the text.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/home/", "ubuntu"), "a path of one machine"),
    (concat!("index.", "crates.io"), "the host of a package registry"),
    (concat!("static.", "crates.io"), "the host of a package registry"),
    (concat!("proxy.", "golang.org"), "the host of a package registry"),
    (concat!("registry.", "npmjs.org"), "the host of a package registry"),
    (concat!("registry.", "yarnpkg.com"), "the host of a package registry"),
    (concat!("py", "pi.org"), "the host of a package registry"),
    (concat!("files.", "pythonhosted.org"), "the host of a package registry"),
    (concat!("deb.", "debian.org"), "the host of a package registry"),
    (concat!("arti", "factory"), "the host of a package registry"),
    (concat!("code", "artifact"), "the host of a package registry"),
    (concat!("jfr", "og"), "the host of a package registry"),
    (concat!("clau", "de"), "a word on what wrote the text"),
    (concat!("anth", "ropic"), "a word on what wrote the text"),
    (concat!("open", "ai"), "a word on what wrote the text"),
    (concat!("chat", "gpt"), "a word on what wrote the text"),
    (concat!("co", "pilot"), "a word on what wrote the text"),
    (concat!("ll", "m"), "a word on what wrote the text"),
    (concat!("language", " model"), "a word on what wrote the text"),
    (concat!("ai", "-generated"), "a word on what wrote the text"),
    (concat!("ai", " assistant"), "a word on what wrote the text"),
    (concat!("co-auth", "ored-by"), "a word on what wrote the text"),
    (concat!("generated", " with"), "a word on what wrote the text"),
];

/// Every forbidden word of a text, of any kind of file.
pub(crate) fn forbidden(path: &str, text: &str) -> Vec<Finding> {
    let lower = text.to_ascii_lowercase();
    let mut found = Vec::new();
    for (pattern, why) in FORBIDDEN {
        for at in places(&lower, pattern) {
            let what = format!("`{pattern}`: {why}");
            found.push(Finding { file: path.to_owned(), line: line(&lower, at), what });
        }
    }
    found
}

/// Packages of another registry than the public one, which would tie the build to a private network.
pub(crate) fn strange_sources(lock: &str) -> Vec<Finding> {
    let public = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let strange =
        lock.lines().enumerate().filter(|(_, line)| line.starts_with("source = ") && *line != public);
    strange
        .map(|(at, line)| Finding { file: "Cargo.lock".to_owned(), line: at + 1, what: line.to_owned() })
        .collect()
}

/// The positions where a pattern stands by itself: one that begins or ends like a word does not begin or end inside a
/// word.
fn places(text: &str, pattern: &str) -> Vec<usize> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let inside = |edge: Option<char>, next: Option<char>| {
        edge.is_some_and(word) && next.is_some_and(word)
// A folder of that name inside a relative path is no path of one machine.
            || edge == Some('/') && next.is_some_and(|c| word(c) || matches!(c, '.' | '-' | '}' | '~'))
    };
    let hits = text.match_indices(pattern).map(|(at, _)| at);
    hits.filter(|at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + pattern.len()..].chars().next();
        let open_end = pattern.ends_with('/');
        !inside(pattern.chars().next(), before) && (open_end || !inside(pattern.chars().next_back(), after))
    })
    .collect()
}

/// Kinds of providers that the program's code names as text. Only a provider's own folder and the list of providers may.
pub(crate) fn kinds(source: &Source, kinds: &[&str]) -> Vec<Finding> {
    let tests = source.test_parts();
    let mut found = Vec::new();
    for kind in kinds {
        for at in places(&source.text, &format!("\"{kind}\"")) {
            let line_start = source.text[..at].rfind('\n').map_or(0, |end| end + 1);
            let before = source.text[line_start..at].trim_start();
            let is_code = !before.starts_with("//") && !before.ends_with("feature = ");
            if is_code && !tests.iter().any(|part| part.contains(&at)) {
                let what = format!("`{kind}` is named outside the provider");
                found.push(Finding { file: source.path.clone(), line: source.line(at), what });
            }
        }
    }
    found
}
