//! Budgets: lines of a file, of a function, and of the file in the middle.

use super::Finding;
use super::source::{Source, closing};

/// Lines of a file without its tests.
pub(crate) const LONGEST_FILE: usize = 600;
/// Lines of a function, signature and braces included.
pub(crate) const LONGEST_FUNCTION: usize = 100;
/// Half of the files are no longer than this, without their tests.
pub(crate) const MEDIAN_FILE: usize = 150;

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

/// Where the body of a function opens; `None` for a declaration.
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

pub(crate) fn high_median<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<Finding> {
    let mut sizes: Vec<(usize, &str)> =
        sources.map(|source| (own_lines(source), source.path.as_str())).collect();
    sizes.sort_unstable();
    match sizes.get(sizes.len() / 2) {
        Some((lines, path)) if *lines > MEDIAN_FILE => {
            let what = format!("the file in the middle has {lines} lines, at most {MEDIAN_FILE} are wanted");
            vec![Finding { file: (*path).to_owned(), line: 1, what }]
        }
        _ => Vec::new(),
    }
}
