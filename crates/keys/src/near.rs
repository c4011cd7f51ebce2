//! Suggestions for misspelled names.

/// Less similar names are not suggested: 0 is no letter in common, 1 is the same name.
const SIMILAR: f64 = 0.75;

/// The most similar of the known names, and the first of several; `None` if none is similar at all.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = plain(name);
    let scored = known.into_iter().map(|other| (strsim::jaro_winkler(&name, other), other));
    let (score, nearest) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (score > SIMILAR).then_some(nearest)
}

/// What to write instead of an unknown name: the nearest one, or any of the known ones.
pub fn nearest_or_all<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => name_one_of(known),
    }
}

/// The known names, where nothing was named.
pub fn name_one_of<'a>(known: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    format!("name one of {}", names.join(", "))
}

/// `IdleCount`, `idle-count` and `idle_count` are one name.
pub fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len() + 4);
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && after_lower {
            plain.push('_');
        }
        after_lower = c.is_lowercase() || c.is_ascii_digit();
        if c == '-' {
            plain.push('_');
        } else {
            plain.extend(c.to_lowercase());
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        for (name, known, expected) in [
            ("linus", ["windows", "linux"], Some("linux")),
            ("4712", ["4711", "9000"], Some("4711")),
            ("linux", ["windows", "macos"], None),
            ("IdleCount", ["idle_time", "idle_count"], Some("idle_count")),
            ("max-instances", ["max_instances", "max_lifetime"], Some("max_instances")),
            ("linux-2", ["linux-1", "linux-3"], Some("linux-1")),
            ("zzz", ["project", "ref"], None),
            ("", ["a", "b"], None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(nearest("linux", []), None);
    }

    #[test]
    fn without_a_near_name_all_are_listed() {
        let known = ["arm", "linux"].into_iter();
        assert_eq!(nearest_or_all("linus", known.clone()), "did you mean `linux`?");
        assert_eq!(nearest_or_all("windows", known), "name one of `arm`, `linux`");
    }
}
