//! Suggestions for misspelled keys.

use super::keys::{self, Section};
use crate::keys::near::{nearest, plain};

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
];

/// One line of help for a key that does not belong in its table.
pub(super) fn key_help(section: Section, name: &str) -> String {
    let plain = plain(name);
    let own = || section.keys().map(|key| key.name);
    let elsewhere =
        ELSEWHERE.iter().find(|(foreign, own_name)| *foreign == plain && own().any(|key| key == *own_name));
    if let Some((_, own_name)) = elsewhere {
        return format!("the name of this key is `{own_name}`");
    }
    if let Some(key) = own().find(|key| *key == plain) {
        return format!("did you mean `{key}`?");
    }
    if let Some((place, _)) = keys::all().find(|(place, key)| key.name == plain && *place != section) {
        return match place {
            Section::Top => format!("move `{plain}` to the top of the file, before the first table"),
            place => format!("`{plain}` is a key of `{}`", place.header()),
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
    fn help_names_what_was_probably_meant() {
        for (section, name, help) in [
            (Section::Pool, "idle_cuont", "did you mean `idle_count`?"),
            (Section::Pool, "IdleCount", "did you mean `idle_count`?"),
            (Section::Pool, "max-instances", "did you mean `max_instances`?"),
            (Section::Pool, "MaxBuilds", "the name of this key is `max_use_count`"),
            (Section::Pool, "periods", "`periods` is a key of `[[pool.NAME.policy]]`"),
            (Section::Pool, "state_dir", "move `state_dir` to the top of the file, before the first table"),
            (Section::Rule, "branch", "the name of this key is `ref`"),
            (Section::Policy, "max_instances", "`max_instances` is a key of `[pool.NAME]`"),
            (Section::Rule, "projetc", "did you mean `project`?"),
        ] {
            assert_eq!(key_help(section, name), help, "{name}");
        }
        assert!(key_help(Section::Rule, "zzz").starts_with("known keys: `project`, `namespace`"));
    }
}
