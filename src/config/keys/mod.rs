//! Every key of the configuration but the providers', as data.
//!
//! A key that is missing in these tables is refused. Each key in them is read, is documented in docs/configuration.md,
//! and has its true default; tests check all three.

mod containers;
mod notify;
mod pool;
mod rule;
mod timing;
mod top;

pub(super) use containers::{CONTAINERS, ENGINE, MODE, UMASK};
use greenroom_keys::KeyTable;
pub(super) use notify::NOTIFY;
pub(super) use pool::{POLICY, POOL, PROVIDER};
pub(super) use rule::RULE;
pub(super) use timing::TIMING;
pub(super) use top::TOP;

/// The values of `reuse`, in the order of `core::policy::Reuse`.
pub(super) const REUSE: &[&str] = &["project", "namespace", "any"];

/// All kinds of tables but the providers', in the order of the documentation.
pub const TABLES: &[KeyTable] = &[TOP, POOL, POLICY, PROVIDER, CONTAINERS, RULE, NOTIFY, TIMING];

#[cfg(test)]
mod tests {
    use greenroom_keys::table::opened_by;
    use greenroom_keys::unknown;

    use super::*;

    #[test]
    fn no_key_stands_twice_in_a_table() {
        for table in TABLES {
            for (index, key) in table.keys.iter().enumerate() {
                let again = table.keys[index + 1..].iter().any(|other| other.name == key.name);
                assert!(!again, "{} {}", table.header, key.name);
            }
        }
    }

    #[test]
    fn each_key_that_is_a_table_says_how_it_is_opened() {
        for (table, key) in TABLES.iter().flat_map(|table| table.keys.iter().map(move |key| (table, key))) {
            let opened = opened_by(TABLES, table, key);
            assert_eq!(opened.is_some(), key.opens_table(), "{} {}", table.header, key.name);
        }
    }

    #[test]
    fn help_names_what_was_probably_meant() {
        for (table, name, help) in [
            (POOL, "idle_cuont", "did you mean `idle_count`?"),
            (POOL, "IdleCount", "did you mean `idle_count`?"),
            (POOL, "max-instances", "did you mean `max_instances`?"),
            (POOL, "MaxBuilds", "the name of this key is `max_use_count`"),
            (POOL, "periods", "`periods` is a key of `[[pool.NAME.policy]]`"),
            (POOL, "state_dir", "move `state_dir` to the top of the file, before the first table"),
            (RULE, "branch", "the name of this key is `ref`"),
            (POLICY, "max_instances", "`max_instances` is a key of `[pool.NAME]`"),
            (RULE, "projetc", "did you mean `project`?"),
            (CONTAINERS, "allowed_images", "the name of this key is `images`"),
            (CONTAINERS, "allowed_services", "the name of this key is `services`"),
            (CONTAINERS, "services_privileged", "the name of this key is `privileged`"),
            (CONTAINERS, "wait_for_services_timeout", "the name of this key is `wait_for_services`"),
            (CONTAINERS, "image", "the name of this key is `default_image`"),
            (CONTAINERS, "allowed_pull_policy", "did you mean `allowed_pull_policies`?"),
            (POOL, "image", "`image` is a key of `[[rule]]`"),
            (POOL, "pull_policy", "`pull_policy` is a key of `[pool.NAME.containers]`"),
        ] {
            assert_eq!(unknown::help(TABLES, &table, name), help, "{name}");
        }
        assert!(unknown::help(TABLES, &RULE, "zzz").starts_with("known keys: `project`, `namespace`"));
    }
}
