//! `$VAR` in the values of job variables, and Go's durations.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

/// Replaces `$NAME` and `${NAME}`; unknown names become empty, `$$` a dollar.
pub(super) fn expand(value: &OsStr, get: &dyn Fn(&str) -> Option<OsString>) -> OsString {
    let mut rest = value.as_bytes();
    let mut expanded = Vec::new();
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        expanded.extend_from_slice(&rest[..at]);
        let (name, used) = name_after_dollar(&rest[at + 1..]);
        match name {
            Some(name) if name != "$" => expanded.extend(get(name).unwrap_or_default().into_vec()),
            _ => expanded.push(b'$'),
        }
        rest = &rest[at + 1 + used..];
    }
    expanded.extend_from_slice(rest);
    OsString::from_vec(expanded)
}

/// The name, and its length after the dollar in bytes.
fn name_after_dollar(rest: &[u8]) -> (Option<&str>, usize) {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    match rest.first() {
        Some(b'$') => (Some("$"), 1),
        Some(b'{') => match rest.iter().position(|byte| *byte == b'}') {
            Some(end) => (text(&rest[1..end]), end + 1),
            None => (None, 0),
        },
        _ => {
            let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
            let length = rest.iter().take_while(is_name).count();
            (if length == 0 { None } else { text(&rest[..length]) }, length)
        }
    }
}

/// Reads `3s`, `1.5m`, `1h30m`, `250ms` as Go's `time.ParseDuration` does.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let length = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let unit = match &after[..length] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += Duration::try_from_secs_f64(number * unit).ok()?;
        rest = &after[length..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};
    use std::time::Duration;

    use super::{expand, go_duration};

    #[test]
    fn variables_are_expanded_once_and_unknown_ones_vanish() {
        let get = |name: &str| (name == "A").then(|| OsString::from("$B"));
        for (value, expected) in
            [("x$A", "x$B"), ("${A}y", "$By"), ("$B-", "-"), ("$$A", "$A"), ("5$", "5$"), ("$-", "$-")]
        {
            assert_eq!(expand(OsStr::new(value), &get), OsStr::new(expected), "{value}");
        }
    }

    #[test]
    fn durations_are_those_of_go() {
        assert_eq!(go_duration("3s"), Some(Duration::from_secs(3)));
        assert_eq!(go_duration("1h30m"), Some(Duration::from_mins(90)));
        assert_eq!(go_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(go_duration("3"), None);
        assert_eq!(go_duration("x"), None);
    }
}
