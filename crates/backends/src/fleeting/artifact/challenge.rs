//! How a registry demands credentials: the header `WWW-Authenticate`.

/// What a registry accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// An account and its password with each call.
    Basic,
    /// A token, from another server.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Reads one header; `None`: another scheme, or not valid.
pub(super) fn parse(header: &str) -> Option<Challenge> {
    let header = header.trim_start();
    let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest)?;
    let find = |name: &str| {
        let mut found = parameters.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.clone())
    };
    Some(Challenge::Bearer { realm: find("realm")?, service: find("service"), scope: find("scope") })
}

/// `name="value",name=value`; in quotes, a backslash takes the next character as it is.
fn parameters(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                after.find(',').map_or((after.to_owned(), ""), |end| (after[..end].to_owned(), &after[end..]))
            }
        };
        found.push((name.trim().to_owned(), value.trim().to_owned()));
        let after = after.trim_start();
        rest = if after.is_empty() { after } else { after.strip_prefix(',')?.trim_start() };
    }
    Some(found)
}

/// The value up to the closing quote, and what follows it.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_as_registries_write_it() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let [service, scope] = [service, scope].map(|text| text.map(str::to_owned));
            Some(Challenge::Bearer { realm: realm.to_owned(), service, scope })
        };
        for (header, expected) in [
            ("Basic realm=\"lab\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://gitlab.com/jwt/auth\",service=\"container_registry\",scope=\"repository:a/b:pull,push\"",
                bearer(
                    "https://gitlab.com/jwt/auth",
                    Some("container_registry"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            ("bearer  Realm = \"a\\\"b\" , service=plain", bearer("a\"b", Some("plain"), None)),
            ("Bearer service=\"x\"", None),
            ("Bearer realm=\"open", None),
            ("Bearer realm", None),
            ("Bearer realm=\"a\"b", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(parse(header), expected, "{header}");
        }
    }
}
