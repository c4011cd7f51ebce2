//! The difference of two texts of the runner's file, without what may be a secret.

use similar::{ChangeTag, TextDiff};

/// Lines around a change.
const CONTEXT: usize = 3;
/// Keys of the runner's file whose values are no secrets.
const KNOWN: &[&str] =
    &["concurrent", "check_interval", "name", "url", "executor", "limit", "shell", "builds_dir", "cache_dir"];

/// The changes in the form of `diff -u`, without its header. Values of other keys show as `…`: they may be tokens.
pub(super) fn unified(before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    let mut text = String::new();
    for hunk in diff.grouped_ops(CONTEXT) {
        if !text.is_empty() {
            text += "…\n";
        }
        for change in hunk.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = change.value().trim_end_matches(['\n', '\r']);
            let shown = shown(line);
            let sign = match change.tag() {
                ChangeTag::Equal => " ",
                ChangeTag::Delete => "-",
                ChangeTag::Insert => "+",
            };
            text.extend([sign, &shown, "\n"]);
        }
    }
    text
}

fn shown(line: &str) -> String {
    let trimmed = line.trim_start();
    let is_header = trimmed.starts_with('[') && !trimmed.contains(['=', '"', '\'']);
    if trimmed.is_empty() || is_header {
        return line.trim_end().to_owned();
    }
    let blank = &line[..line.len() - trimmed.len()];
    match trimmed.split_once('=') {
        Some((key, _)) if is_plain(key.trim_end()) => without_comment(line),
        Some((key, _)) if !key.contains(['#', '"', '\'']) => format!("{blank}{key}= …"),
        _ => format!("{blank}…"),
    }
}

fn is_plain(key: &str) -> bool {
    KNOWN.contains(&key) || ["_exec", "_args", "_timeout"].iter().any(|end| key.ends_with(end))
}

/// A line up to its comment. A `#` in a string only makes it shorter.
fn without_comment(line: &str) -> String {
    match line.split_once(" #") {
        Some((before, _)) => format!("{} # …", before.trim_end()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_shown_and_no_secret_beside_them() {
        let before = "a = 1\n\n[[runners]]\n  name = \"x\" # glrt-1\n  token = \"glrt-2\"\n  # glrt-3\n  environment = [\n    \
                      \"KEY=glrt-4\",\n  ]\n  limit = 1\n  id = 7\n";
        let after = before.replace("limit = 1", "limit = 4");
        assert_eq!(
            unified(before, &after),
            "   environment = …\n     …\n   …\n-  limit = 1\n+  limit = 4\n   id = …\n"
        );
        let longer = before.replace("\"x\" # glrt-1", "\"y\" # glrt-1");
        let text = unified(before, &longer);
        assert!(text.contains("+  name = \"y\" # …\n") && text.contains("   token = …\n   …\n"), "{text}");
        assert!(!text.contains("glrt"), "{text}");
        assert_eq!(unified(before, before), "");
    }
}
