//! Finds the paths that a file names: `a::b::c`, and each branch of a `use` tree.

use super::source::{Source, crate_of, is_word};

/// A path as written, and where.
pub(crate) struct Path {
    pub(crate) at: usize,
    pub(crate) parts: Vec<String>,
}

/// Every path of at least two parts.
pub(crate) fn paths(source: &Source) -> Vec<Path> {
    let mut reader = Reader { code: &source.code, at: 0, found: Vec::new() };
    reader.whole_file();
    reader.found
}

/// A path from the program's root, with `crate`, `self` and `super` resolved; `None` if it leads out of the program. A crate
/// of the workspace is a layer below that root.
pub(crate) fn absolute(source: &Source, path: &Path) -> Option<Vec<String>> {
    let mut here = module_of(&source.path);
    for inline in source.inline_modules() {
        if inline.body.contains(&path.at) {
            here.push(inline.name);
        }
    }
    let mut parts = path.parts.as_slice();
    match parts[0].as_str() {
        "crate" => {
            here = crate_of(&source.path).map(str::to_owned).into_iter().collect();
            parts = &parts[1..];
        }
        "greenroom" if !source.path.starts_with("src/") || source.path.starts_with("src/bin/") => {
            (here, parts) = (Vec::new(), &parts[1..]);
        }
        name if name.starts_with("greenroom_") => {
            (here, parts) = (vec![name["greenroom_".len()..].to_owned()], &parts[1..]);
        }
        "self" => parts = &parts[1..],
        "super" => {}
        _ => return None,
    }
    while parts.first().is_some_and(|part| part == "super") {
        here.pop();
        parts = &parts[1..];
    }
    here.extend(parts.iter().cloned());
    Some(here)
}

/// `src/a/b.rs`, `src/a/b/mod.rs` and `crates/a/src/b.rs` are all `a::b`.
pub(crate) fn module_of(path: &str) -> Vec<String> {
    let layer = crate_of(path);
    let inside = layer.map_or(path, |name| &path["crates/".len() + name.len() + 1..]);
    let inside = inside.strip_prefix("src/").unwrap_or(inside).trim_end_matches(".rs");
    let mut parts: Vec<String> = layer.into_iter().chain(inside.split('/')).map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

struct Reader<'a> {
    code: &'a str,
    at: usize,
    found: Vec<Path>,
}

impl Reader<'_> {
    fn whole_file(&mut self) {
        while self.at < self.code.len() {
            let Some(c) = self.code[self.at..].chars().next() else { return };
            if !is_word(c) {
                self.at += c.len_utf8();
                continue;
            }
            let start = self.at;
            let word = self.word();
            let before = self.code[..start].trim_end();
            // A field, a method, the tail of `<T>::name`, or a lifetime begins no path.
            if before.ends_with(['.', '\'']) || before.ends_with(">::") {
                continue;
            }
            self.tail(start, &mut vec![word]);
        }
    }

    fn word(&mut self) -> String {
        let word: String = self.code[self.at..].chars().take_while(|c| is_word(*c)).collect();
        self.at += word.len();
        word
    }

    fn blanks(&mut self) {
        let rest = &self.code[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn takes(&mut self, token: &str) -> bool {
        let taken = self.code[self.at..].starts_with(token);
        if taken {
            self.at += token.len();
        }
        taken
    }

    /// Reads the rest of a path after the parts so far; leaves `parts` as it was.
    fn tail(&mut self, start: usize, parts: &mut Vec<String>) {
        let held = parts.len();
        loop {
            let end = self.at;
            self.blanks();
            if !self.takes("::") {
                self.at = end;
                break;
            }
            self.blanks();
            if self.takes("{") {
                self.branches(parts);
                parts.truncate(held);
                return;
            }
            if self.takes("*") {
                parts.push("*".to_owned());
                break;
            }
            let word = self.word();
            if word.is_empty() {
                break;
            }
            parts.push(word);
        }
        if parts.len() > 1 {
            self.found.push(Path { at: start, parts: parts.clone() });
        }
        parts.truncate(held);
    }

    /// The inside of `{…}` in a `use` tree.
    fn branches(&mut self, parts: &mut Vec<String>) {
        loop {
            self.blanks();
            if self.at >= self.code.len() || self.takes("}") {
                return;
            }
            let start = self.at;
            let word = if self.takes("*") { "*".to_owned() } else { self.word() };
            if word.is_empty() {
                self.at += self.code[self.at..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            if word == "as" {
                self.blanks();
                self.word();
                continue;
            }
            let held = parts.len();
            if word != "self" {
                parts.push(word);
            }
            self.tail(start, parts);
            parts.truncate(held);
        }
    }
}
