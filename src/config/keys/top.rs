//! The keys at the top of the file.

use greenroom_keys::Applies::{Job, Start, Within};
use greenroom_keys::Takes::{Count, HostPath, Table, Tables, Text};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{KeyTable, key};

pub(in crate::config) const TOP: KeyTable = KeyTable {
    header: "the top of the file",
    about: "These keys stand before the first table.",
    keys: &[
        key("state_dir", HostPath, Value("\"/var/lib/greenroom\""), Start)
            .means("Directory for the state: journals, keys, attempts.")
            .interacts(
                "It must lie on a local file system, belong to the user that runs Greenroom, and have mode 0700. \
                 `--state-dir` and `GREENROOM_STATE_DIR` override it. Recorded instances stay behind in the \
                 earlier directory: drain all pools before a change, and restart the keeper after it.",
            ),
        key("history_days", Count(0), Value("30"), Start)
            .unit("days")
            .means("How long old journals are kept; 0 keeps none.")
            .interacts("`greenroom history` and `greenroom explain` reach back as far."),
        key("metrics", Text, Words("no metrics are served"), Start)
            .means("Where the keeper serves metrics: `\"unix:PATH\"` or `\"ADDRESS:PORT\"`.")
            .interacts(
                "`greenroom keep --metrics` overrides it. A TCP address has no access control: it serves every process \
                 that reaches it. See [metrics.md](metrics.md).",
            ),
        key("default_pool", Text, Words("the only pool, if there are no rules"), Job)
            .means("Name of the pool for jobs that no `[[rule]]` matches.")
            .interacts(
                "With rules and without this key, such a job fails. Several pools without rules require it. \
                 `--pool` in the runner's `config_args` and `prepare_args` overrides both.",
            ),
        key("pool", Table, Required, Within).means("The pools by name."),
        key("rule", Tables, Words("none"), Within).means("Which pool serves which jobs."),
        key("notify", Table, Words("no notices"), Within).means("How operators get notices."),
        key("timing", Table, Words("all defaults"), Within).means("Timeouts, intervals, retentions and back-off."),
    ],
};
