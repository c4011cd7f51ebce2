//! The configuration of a place: one pool, short timings.

use std::time::Duration;

use toml::{Table, Value};

use crate::place::{Place, SOON};

/// The content of `greenroom.toml`, with short timings throughout.
#[derive(Debug, Clone)]
pub struct Setting {
    top: Table,
    pool: Table,
    provider: Table,
    timing: Table,
    /// The longest time that anything in the place may take.
    pub patience: Duration,
}

/// Timings that are shorter than the defaults.
const TIMING: [(&str, &str); 22] = [
    ("absence_interval", "300ms"),
    ("reap_grace", "1s"),
    ("relaunch_after", "1s"),
    ("launch_timeout", "20s"),
    ("lease_free_timeout", "3s"),
    ("job_timeout_grace", "1h"),
    ("clean_grace", "1s"),
    ("surplus_min_time", "1s"),
    ("place_retention", "10s"),
    ("probe_interval", "20ms"),
    ("pass_interval", "300ms"),
    ("list_interval", "100ms"),
    ("launch_backoff", "100ms"),
    ("launch_backoff_max", "400ms"),
    ("connect_timeout", "10s"),
    ("ready_timeout", "20s"),
    ("stop_grace", "500ms"),
    ("loss_reason_timeout", "3s"),
    ("waiter_poll_interval", "200ms"),
    ("keeper_start_timeout", "10s"),
    ("lease_renew_interval", "500ms"),
    ("self_check_interval", "500ms"),
];

impl Default for Setting {
    fn default() -> Self {
        Self::new()
    }
}

impl Setting {
    /// Three instances, none kept ready, kept for an hour once they exist.
    pub fn new() -> Self {
        let text = |value: &str| Value::String(value.to_owned());
        let timing = TIMING.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect();
        let setting =
            Self { top: Table::new(), pool: Table::new(), provider: Table::new(), timing, patience: SOON };
        let is_root = rustix::process::getuid().is_root();
        let setting = setting.pool("max_instances", 3).pool("idle_count", 0).pool("idle_time", "1h");
        setting.pool("launches_per_minute", 10_000).provider("kind", "local").provider("allow_root", is_root)
    }

    /// A key of `[pool.pool]`.
    #[must_use]
    pub fn pool(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.pool.insert(key.to_owned(), value.into());
        self
    }

    /// A key of `[pool.pool.provider]`. `kind` comes first: another provider has other keys.
    #[must_use]
    pub fn provider(mut self, key: &str, value: impl Into<Value>) -> Self {
        if key == "kind" {
            self.provider.clear();
        }
        self.provider.insert(key.to_owned(), value.into());
        self
    }

    /// A key of `[timing]`.
    #[must_use]
    pub fn timing(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.timing.insert(key.to_owned(), value.into());
        self
    }

    /// The file as it is written, for a state directory.
    pub fn text(&self, state: &std::path::Path) -> String {
        let mut pool = self.pool.clone();
        pool.insert("provider".into(), Value::Table(self.provider.clone()));
        let mut all = self.top.clone();
        all.insert("state_dir".into(), Value::String(state.to_string_lossy().into_owned()));
        all.insert("pool".into(), Value::Table(Table::from_iter([("pool".to_owned(), Value::Table(pool))])));
        all.insert("timing".into(), Value::Table(self.timing.clone()));
        toml::to_string(&all).expect("tables of plain values can be written")
    }

    /// A place with this configuration. Nothing runs in it yet.
    pub fn open(self) -> Place {
        Place::new(self)
    }
}
