//! The keys of provider `local`, and the settings that a pool's table gives them.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Launch, Pass, Within};
use greenroom_keys::ValueType::{self, Flag, HostPath, Range, Word};
use greenroom_keys::problem::Problems;
use greenroom_keys::{KeyTable, key, table};
use serde::{Deserialize, Serialize};

use super::launch::{CLASSES, FailLaunch};

/// The values of `server`.
const SERVERS: &[&str] = &["embedded", "openssh"];

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are processes of the runner host: for a first try, for rehearsals and for tests. There \
                is no isolation: every job runs as the user that runs Greenroom, and sees the runner host, its \
                files and other jobs. The keys from `boot_delay` on inject faults; all are off by default.",
        keys: &[
            key("allow_root", Flag, Value("false"), Pass)
                .doc("Whether jobs may run as root, if Greenroom does.")
                .notes("Required where Greenroom runs as root."),
            key("server", Word(SERVERS), Value("\"embedded\""), Launch).doc(
                "SSH server of an instance: Greenroom's own, or OpenSSH's `sshd -i` for each connection.",
            ),
            key("sshd", HostPath, Described("searched for in the usual directories"), Launch)
                .doc("Path of sshd.")
                .notes("Only with `server = \"openssh\"`."),
            key("boot_delay", ValueType::Duration(0), Value("\"0s\""), Launch)
                .doc("Time from the launch of an instance to its first answer."),
            key("die_after", ValueType::Duration(0), Described("never"), Launch)
                .doc("Time from the first answer of an instance to its sudden end."),
            key("list_lag", ValueType::Duration(0), Value("\"0s\""), Launch)
                .doc("Time from the launch of an instance to its first appearance in lists."),
            key("no_capacity", Range(0, u32::MAX), Described("no limit"), Pass)
                .unit("instances")
                .doc("Number of instances at which launches are refused with no capacity; 0 refuses all.")
                .notes("It has no effect above `max_instances`."),
            key("fail_launch", ValueType::Table, Described("no failures"), Within)
                .doc("Makes the first launches fail."),
        ],
    },
    KeyTable {
        header: "[pool.NAME.provider.fail_launch]",
        about: "The first launches of the pool fail. The provider counts across processes, and starts again when \
                this table changes.",
        keys: &[
            key("class", Word(CLASSES), Required, Pass).doc("Class of the error.").notes(
                "With `\"unknown\"` the launch succeeds, and only its answer is lost: see `relaunch_after`.",
            ),
            key("first", Range(0, u32::MAX), Required, Pass)
                .unit("launches")
                .doc("Number of launches that fail."),
        ],
    },
];

/// The SSH server of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerKind {
    Embedded,
    Openssh,
}

/// A pool's provider table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) server: ServerKind,
    /// Path of sshd; `None`: searched for when an instance boots.
    pub(super) sshd: Option<PathBuf>,
    /// The time from launch to the first answer. Default 0.
    pub(super) boot_delay: Duration,
    /// The time from the first answer to a sudden end; `None`: no such end.
    pub(super) die_after: Option<Duration>,
    /// The time from launch to the first appearance in a list. Default 0.
    pub(super) list_lag: Duration,
    /// Number of instances at which launches are refused; `None`: no limit.
    pub(super) no_capacity: Option<u32>,
    pub(super) fail_launch: Option<FailLaunch>,
}

impl Settings {
    /// Jobs are plain processes of Greenroom's user: those of root would control the runner host, so that has to be
    /// allowed.
    pub(super) fn read(pool: &PoolName, values: &toml::Table, is_root: bool) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, |table| {
            let allow_root = table.flag("allow_root");
            if is_root && !allow_root.is_bad() && !allow_root.or_declared() {
                let why = "is not `true`, and greenroom runs as root: the provider `local` does not isolate jobs, so \
                           every job would be root on the runner host. Run greenroom as another user, or set \
                           `allow_root = true` if that is acceptable";
                table.refuse("allow_root", why);
            }
            Self {
                server: match table.word("server").or_declared() {
                    "openssh" => ServerKind::Openssh,
                    _ => ServerKind::Embedded,
                },
                sshd: table.text("sshd").into_value().map(PathBuf::from),
                boot_delay: table.duration("boot_delay").or_declared(),
                die_after: table.duration("die_after").into_value(),
                list_lag: table.duration("list_lag").or_declared(),
                no_capacity: table.count("no_capacity").into_value(),
                fail_launch: table.table("fail_launch").value().map(FailLaunch::read),
            }
        })
    }

    /// The keys of the enabled faults.
    pub(super) fn injected_faults(&self) -> Vec<&'static str> {
        let on = [
            ("boot_delay", !self.boot_delay.is_zero()),
            ("die_after", self.die_after.is_some()),
            ("list_lag", !self.list_lag.is_zero()),
            ("no_capacity", self.no_capacity.is_some()),
            ("fail_launch", self.fail_launch.is_some()),
        ];
        on.into_iter().filter_map(|(key, on)| on.then_some(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    fn settings(values: &toml::Table, is_root: bool) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values, is_root)
    }

    fn read(text: &str) -> Result<Settings, String> {
        settings(&text.parse().unwrap(), false).map_err(|problems| problems.to_string())
    }

    #[test]
    fn an_empty_table_behaves_well() {
        let settings = read("").unwrap();
        assert_eq!(settings.server, ServerKind::Embedded);
        assert!(settings.injected_faults().is_empty());
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        let least = "fail_launch = { class = \"quota\", first = 1 }";
        key_tables::hold(TABLES, least, |values| settings(values, false));
    }

    #[test]
    fn the_example_shows_every_key() {
        // A commented key has the form `# name = value`; prose does not.
        let is_key = |line: &str| {
            let name = line.split(" = ").next().unwrap_or_default();
            line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let lines = crate::local::REGISTRATION.example.lines();
        let text: Vec<&str> =
            lines.map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line)).collect();
        let settings = read(&text.join("\n")).unwrap();
        assert_eq!(settings.injected_faults().len(), 5);
        assert!(settings.sshd.is_some());
        assert_eq!(read(crate::local::REGISTRATION.example).unwrap(), read("").unwrap());
    }

    #[test]
    fn root_is_refused_with_the_reason_unless_allowed() {
        let as_root = |text: &str| settings(&text.parse().unwrap(), true);
        for (text, path) in
            [("", "pool.linux.provider"), ("allow_root = false", "pool.linux.provider.allow_root")]
        {
            let refused = as_root(text).unwrap_err();
            assert_eq!(refused.0[0].marks[0].0.path, path);
            let message = refused.to_string();
            assert!(
                message.starts_with("`allow_root` is not `true`, and greenroom runs as root"),
                "{message}"
            );
            assert!(message.contains("every job would be root on the runner host"), "{message}");
        }
        assert!(read("").is_ok());
        assert_eq!(as_root("allow_root = true").unwrap(), read("").unwrap());
    }

    #[test]
    fn all_mistakes_are_found_together() {
        let wrong = "server = 1\nboot_delay = 5\nlist_lags = \"1s\"\nfail_launch = { class = \"quot\" }";
        let problems = settings(&wrong.parse().unwrap(), true).unwrap_err();
        let found: Vec<String> = problems.0.iter().map(|problem| problem.marks[0].0.path.clone()).collect();
        let wanted = ["list_lags", "", "server", "boot_delay", "fail_launch.class", "fail_launch"];
        let path = |key: &str| format!("pool.linux.provider.{key}").trim_end_matches('.').to_owned();
        assert_eq!(found, wanted.map(path));
    }

    #[test]
    fn wrong_values_name_key_expectation_and_neighbour() {
        for (text, message) in [
            ("sshd = \"sshd\"", "`sshd` in `[pool.linux.provider]` must be an absolute path"),
            ("server = \"opensshd\"", "must be one of \"embedded\", \"openssh\" (did you mean \"openssh\"?)"),
            (
                "boot_delay = \"-1s\"",
                "`boot_delay` in `[pool.linux.provider]` must be a duration like \"30s\"",
            ),
            (
                "list_lags = \"1s\"",
                "`list_lags` is not a key of `[pool.linux.provider]` (did you mean `list_lag`?)",
            ),
            (
                "fail_launch = { first = 1 }",
                "`class` is missing in `[pool.linux.provider.fail_launch]` (set it to one of \"no-capacity\", ",
            ),
            (
                "fail_launch = { class = \"quota\" }",
                "`first` is missing in `[pool.linux.provider.fail_launch]` (set it to the number of launches that fail)",
            ),
            (
                "fail_launch = { class = \"quota\", first = 1, last = 2 }",
                "`last` is not a key of `[pool.linux.provider.fail_launch]`",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
