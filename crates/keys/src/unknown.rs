//! Help for a key that does not belong in its table.

use super::KeyTable;
use super::near::{nearest, plain};

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

/// One line of help. `tables` has every kind of table of the same reader.
pub fn help(tables: &[KeyTable], table: &KeyTable, name: &str) -> String {
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
