//! The settings of local instances, from a pool's provider table.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::faults::FailLaunch;
use super::keys::SERVERS;
use crate::provider::keys::{KeyError, Keys};

/// The SSH server of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerKind {
    Embedded,
    Openssh,
}

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) server: ServerKind,
    /// Path of sshd; `None`: searched for when an instance boots.
    pub(super) sshd: Option<PathBuf>,
    pub(super) allow_root: bool,
    /// From launch to the first answer. Default 0.
    pub(super) boot_delay: Duration,
    /// From the first answer to a sudden end; `None`: no such end.
    pub(super) die_after: Option<Duration>,
    /// From launch to the first appearance in a list. Default 0.
    pub(super) list_lag: Duration,
    /// Number of instances at which launches are refused; `None`: no limit.
    pub(super) no_capacity: Option<u32>,
    pub(super) fail_launch: Option<FailLaunch>,
}

impl Settings {
    pub(super) fn read(table: &toml::Table) -> Result<Self, KeyError> {
        let mut keys = Keys::of(table);
        let server = match keys.choice("server", SERVERS)? {
            Some("openssh") => ServerKind::Openssh,
            _ => ServerKind::Embedded,
        };
        let settings = Self {
            server,
            sshd: keys.text("sshd")?.map(absolute).transpose()?,
            allow_root: keys.flag("allow_root")?.unwrap_or(false),
            boot_delay: keys.duration("boot_delay")?.unwrap_or_default(),
            die_after: keys.duration("die_after")?,
            list_lag: keys.duration("list_lag")?.unwrap_or_default(),
            no_capacity: keys.count("no_capacity")?,
            fail_launch: keys.table("fail_launch")?.map(FailLaunch::read).transpose()?,
        };
        keys.finish()?;
        Ok(settings)
    }

    /// Jobs are plain processes of Greenroom's user, so root's jobs would control the runner host.
    pub(super) fn check_user(&self, is_root: bool) -> Result<(), KeyError> {
        if !is_root || self.allow_root {
            return Ok(());
        }
        let why = "is not `true`, and greenroom runs as root: the provider `local` does not isolate jobs, so \
                   every job would be root on the runner host. Run greenroom as another user, or set \
                   `allow_root = true` if that is acceptable";
        Err(KeyError::new("allow_root", why))
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

fn absolute(text: &str) -> Result<PathBuf, KeyError> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(KeyError::new(
        "sshd",
        format!("is {text:?}, expected an absolute path (sshd uses it to re-execute itself)"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::key_tables;

    fn read(text: &str) -> Result<Settings, String> {
        Settings::read(&text.parse().unwrap()).map_err(|error| error.to_string())
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
        key_tables::hold(super::super::keys::TABLES, least, Settings::read);
    }

    #[test]
    fn the_example_shows_every_key() {
        // A commented key has the form `# name = value`; prose does not.
        let is_key = |line: &str| {
            let name = line.split(" = ").next().unwrap_or_default();
            line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let lines = super::super::REGISTRATION.example.lines();
        let text: Vec<&str> =
            lines.map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line)).collect();
        let settings = read(&text.join("\n")).unwrap();
        assert_eq!(settings.injected_faults().len(), 5);
        assert!(settings.sshd.is_some());
        assert_eq!(read(super::super::REGISTRATION.example).unwrap(), read("").unwrap());
    }

    #[test]
    fn root_is_refused_with_the_reason_unless_allowed() {
        let refused = read("").unwrap().check_user(true).unwrap_err();
        assert_eq!(refused.key, "allow_root");
        assert!(refused.to_string().contains("every job would be root on the runner host"), "{refused}");
        assert_eq!(read("").unwrap().check_user(false), Ok(()));
        assert_eq!(read("allow_root = true").unwrap().check_user(true), Ok(()));
    }

    #[test]
    fn wrong_values_name_key_expectation_and_neighbour() {
        for (text, message) in [
            ("sshd = \"sshd\"", "`sshd` is \"sshd\", expected an absolute path"),
            ("server = \"opensshd\"", "did you mean \"openssh\"?"),
            ("boot_delay = \"-1s\"", "a duration cannot be negative"),
            ("list_lags = \"1s\"", "did you mean `list_lag`?"),
            ("fail_launch = { first = 1 }", "`fail_launch.class` is missing, expected \"no-capacity\" or"),
            ("fail_launch = { class = \"quota\" }", "`fail_launch.first` is missing"),
            ("fail_launch = { class = \"quota\", first = 1, last = 2 }", "`fail_launch.last` is not a key"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
