//! Suggestions for misspelled names, and help for a key that does not belong in its table.

use crate::KeyTable;

/// Less similar names are not suggested: 0 is no letter in common, 1 is the same name.
const SIMILAR: f64 = 0.75;

/// The most similar of the known names, and the first of several; `None` if none is similar at all.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = plain(name);
    let scored = known.into_iter().map(|other| (strsim::jaro_winkler(&name, other), other));
    let (score, nearest) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (score > SIMILAR).then_some(nearest)
}

/// Returns what to write instead of an unknown name: the nearest one, or any of the known ones.
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

/// Keys of other programs' configuration files with the same meaning.
const ELSEWHERE: &[(&str, &str)] = &[
    ("capacity", "capacity_per_instance"),
    ("concurrent", "max_instances"),
    ("limit", "max_instances"),
    ("max_builds", "max_use_count"),
    ("idle_nodes", "idle_count"),
    ("idle_scale_factor", "scale_factor"),
    ("max_idle_time", "idle_time"),
    ("max_growth_rate", "launches_per_minute"),
    ("autoscaling", "policy"),
    ("branch", "ref"),
    ("allowed_images", "images"),
    ("allowed_privileged_images", "privileged"),
    ("allowed_privileged_services", "privileged"),
    ("allowed_services", "services"),
    ("image", "default_image"),
    ("services_privileged", "privileged"),
    ("wait_for_services_timeout", "wait_for_services"),
];

/// One line of help_for_unknown. `tables` has every kind of table of the same reader.
pub fn help_for_unknown(tables: &[KeyTable], table: &KeyTable, name: &str) -> String {
    let plain = plain(name);
    let own = || table.keys.iter().map(|key| key.name);
    let elsewhere =
        ELSEWHERE.iter().find(|(foreign, own_name)| *foreign == plain && own().any(|key| key == *own_name));
    if let Some((_, own_name)) = elsewhere {
        return format!("the name of this key is `{own_name}`");
    }
    if let Some(key) = own().find(|key| *key == plain) {
        return format!("did you mean `{key}`?");
    }
    let has = |other: &&KeyTable| other.keys.iter().any(|key| key.name == plain);
    if let Some(other) = tables.iter().find(has) {
        return match other.path() {
            "" => format!("move `{plain}` to the top of the file, before the first table"),
            _ => format!("`{plain}` is a key of `{}`", other.header),
        };
    }
    if let Some(key) = nearest(&plain, own()) {
        return format!("did you mean `{key}`?");
    }
    let keys: Vec<String> = own().map(|key| format!("`{key}`")).collect();
    format!("known keys: {}; docs/configuration.md describes them", keys.join(", "))
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
