//! Budgets: lines of a file, of a function, and of the file in the middle.

use super::Finding;
use super::source::{Source, closing};

/// Lines of a file without its tests.
pub(crate) const LONGEST_FILE: usize = 600;
/// Lines of a function, signature and braces included.
pub(crate) const LONGEST_FUNCTION: usize = 100;

/// Lines that are not compiled for tests only.
pub(crate) fn own_lines(source: &Source) -> usize {
    let tests: usize = source
        .test_parts()
        .iter()
        .map(|part| source.line(part.end.saturating_sub(1)) - source.line(part.start) + 1)
        .sum();
    source.text.lines().count().saturating_sub(tests)
}

pub(crate) fn long_file(source: &Source) -> Option<Finding> {
    let lines = own_lines(source);
    let what = format!("{lines} lines without tests, at most {LONGEST_FILE} are allowed");
    (lines > LONGEST_FILE).then(|| Finding { file: source.path.clone(), line: LONGEST_FILE + 1, what })
}

pub(crate) fn long_functions(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, after) in source.items("fn") {
        let Some(open) = body(&source.code, after) else { continue };
        let line = source.line(after);
        let lines = source.line(closing(&source.code, open).saturating_sub(1)) - line + 1;
        if lines > LONGEST_FUNCTION {
            let what = format!("`{name}` has {lines} lines, at most {LONGEST_FUNCTION} are allowed");
            found.push(Finding { file: source.path.clone(), line, what });
        }
    }
    found
}

/// The position at which the body of a function opens; `None` for a declaration.
fn body(code: &str, after: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(after) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}
