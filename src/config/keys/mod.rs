//! Every key of the configuration but the providers', as data.
//!
//! A key that is missing in these tables is refused. Each key in them is read, is documented in docs/configuration.md,
//! and has its true default; tests check all three.

use std::path::Path;

mod containers;
mod pool;
mod timing;

use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Job, Start, Within};
use greenroom_keys::ValueType::{Count, Duration, Flag, Globs, HostPath, Table, Tables, Text, Texts};
use greenroom_keys::{KeySpec, KeyTable, key};

pub(super) use containers::{CONTAINERS, MODE, UMASK};
pub(super) use pool::{POLICY, POOL, PROVIDER};
pub(super) use timing::TIMING;

/// The values of `reuse`, in the order of `core::policy::Reuse`.
pub(super) const REUSE: &[&str] = &["project", "namespace", "any"];

/// All kinds of tables but the providers', in the order of the documentation.
pub const TABLES: &[KeyTable] = &[TOP, POOL, POLICY, PROVIDER, CONTAINERS, RULE, NOTIFY, TIMING];

pub(in crate::config) const TOP: KeyTable = KeyTable {
    header: "the top of the file",
    about: "These keys stand before the first table.",
    keys: &[
        key("state_dir", HostPath, Value("\"/var/lib/greenroom\""), Start)
            .doc("Directory for the state: journals, keys, attempts.")
            .notes(
                "It must lie on a local file system, belong to the user that runs Greenroom, and have mode 0700. \
                 `--state-dir` and `GREENROOM_STATE_DIR` override it. Recorded instances stay behind in the \
                 earlier directory: drain all pools before a change, and restart the keeper after it.",
            ),
        key("history_days", Count(0), Value("30"), Start)
            .unit("days")
            .doc("How long old journals are kept; 0 keeps none.")
            .notes("`greenroom history` and `greenroom explain` reach back as far."),
        key("metrics", Text, Described("no metrics are served"), Start)
            .doc("Where the keeper serves metrics: `\"unix:PATH\"` or `\"ADDRESS:PORT\"`.")
            .notes(
                "`greenroom keep --metrics` overrides it. A TCP address has no access control: it serves every process \
                 that reaches it. See [metrics.md](metrics.md).",
            ),
        key("default_pool", Text, Described("the only pool, if there are no rules"), Job)
            .doc("Name of the pool for jobs that no `[[rule]]` matches.")
            .notes(
                "With rules and without this key, such a job fails. Several pools without rules require it. \
                 `--pool` in the runner's `config_args` and `prepare_args` overrides both.",
            ),
        key("pool", Table, Required, Within).doc("The pools by name."),
        key("rule", Tables, Described("none"), Within).doc("Which pool serves which jobs."),
        key("notify", Table, Described("no notices"), Within).doc("How operators get notices."),
        key("timing", Table, Described("all defaults"), Within).doc("Timeouts, intervals, retentions and back-off."),
    ],
};

pub(in crate::config) const RULE: KeyTable = KeyTable {
    header: "[[rule]]",
    about: "Each entry assigns jobs to a pool. The first rule that matches decides; every key of a rule must \
            match; a rule without conditions matches every job, so it comes last. Only GitLab's own data about a \
            job counts, never a variable.\n\nA pattern covers the whole name: `*` matches any characters but `/`, \
            `**` any characters, `?` one character. A list matches if one of its patterns does.\n\n`project`, \
            `namespace` and `protected` are facts. Users who may push a branch choose `ref`, `job` and `image`: \
            these keys route jobs, they do not protect a pool.",
    keys: &[
        key("project", Globs, Described("any project"), Job).doc("Full path of the project."),
        key("namespace", Globs, Described("any namespace"), Job).doc("Path of the project without its last part."),
        key("ref", Globs, Described("any ref"), Job).doc("Branch or tag of the job."),
        key("protected", Flag, Described("both"), Job)
            .doc("Whether GitLab says that the branch or tag is protected.")
            .notes("A ref that GitLab does not call protected counts as `false`."),
        key("job", Globs, Described("any job"), Job).doc("Name of the job."),
        key("image", Globs, Described("any image"), Job)
            .doc("Name after `image:` in `.gitlab-ci.yml`; `\"\"` stands for a job without an image.")
            .notes(
                "As soon as one rule has this key, a job with an image that no rule matches fails, even with a \
                 `default_pool`.",
            ),
        key("pool", Text, Required, Job).doc("Name of the pool for the jobs that match."),
    ],
};

pub(in crate::config) const NOTIFY: KeyTable = KeyTable {
    header: "[notify]",
    about: "Notices for operators: the circuit breaker opened, an orphan was found, a host went out of service, the keeper crashes \
            repeatedly. [notices.md](notices.md) describes the payload.",
    keys: &[
        key("command", Texts, Described("none"), Start)
            .doc("Program and arguments that get each notice as JSON on standard input.")
            .notes("The program has 30 seconds; exit status 0 means that the notice is delivered."),
        key("webhook", Text, Described("none"), Start)
            .doc("`https://` or `http://` URL that each notice is posted to as JSON.")
            .notes("HTTPS needs `greenroom-backends` in the directory of `greenroom`, and uses the system's certificates or those \
                        of `SSL_CERT_FILE`."),
        key("min_interval", Duration(1), Value("\"10m\""), Start)
            .doc("Shortest time between two notices about the same condition, which ends in between."),
    ],
};

/// The state directory of a configuration that does not set it.
pub fn default_state_dir() -> &'static Path {
    let declared = TOP.keys.iter().find(|key| key.name == "state_dir").and_then(KeySpec::default_text);
    Path::new(declared.unwrap_or_default().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use greenroom_keys::near;
    use greenroom_keys::table::opened_by;

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
            assert_eq!(near::help_for_unknown(TABLES, &table, name), help, "{name}");
        }
        assert!(
            near::help_for_unknown(TABLES, &RULE, "zzz").starts_with("known keys: `project`, `namespace`")
        );
    }
}
