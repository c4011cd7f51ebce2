//! Every key there is, as data.
//!
//! What is not in this table is refused; what is in it must be read, must stand in examples/config.toml, and its
//! default must be the true one (tests hold all three).

use std::fmt;

/// A kind of table in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    Top,
    Timing,
    Pool,
    Policy,
    Provider,
    Rule,
}

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// A whole number, this or more.
    Count(u32),
    /// A number, 0 or more.
    Factor,
    /// A duration, so many milliseconds or more.
    Duration(u64),
    Text,
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of strings, not empty.
    Texts,
    /// A pattern or a list of patterns.
    Globs,
    /// An absolute path on this machine.
    HostPath,
    /// An absolute path on the instance.
    GuestPath,
    /// A table with keys of its own.
    Table,
    /// A list of such tables.
    Tables,
}

/// One key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub section: Section,
    pub name: &'static str,
    pub takes: Takes,
    /// As it would stand in the file; `None`: required, or nothing where it is not given.
    pub default: Option<&'static str>,
}

/// The words of `reuse`, in the order of `core::policy::Reuse`.
pub(super) const REUSE: &[&str] = &["project", "namespace", "any"];
/// The words of `shell`, in the order of `Shell`.
pub(super) const SHELLS: &[&str] = &["bash", "sh", "pwsh", "powershell"];

const fn key(section: Section, name: &'static str, takes: Takes, default: &'static str) -> Key {
    Key { section, name, takes, default: Some(default) }
}

const fn bare(section: Section, name: &'static str, takes: Takes) -> Key {
    Key { section, name, takes, default: None }
}

use Section::{Policy, Pool, Provider, Rule, Timing, Top};
use Takes::{Count, Duration, Factor, Flag, Globs, GuestPath, HostPath, Table, Tables, Text, Texts, Word};

/// All of them, section by section, in the order in which they are explained.
pub const KEYS: &[Key] = &[
    key(Top, "state_dir", HostPath, "\"/var/lib/greenroom\""),
    key(Top, "history_days", Count(0), "30"),
    bare(Top, "default_pool", Text),
    bare(Top, "timing", Table),
    bare(Top, "pool", Table),
    bare(Top, "rule", Tables),
    bare(Pool, "provider", Table),
    bare(Pool, "max_instances", Count(1)),
    key(Pool, "capacity_per_instance", Count(1), "1"),
    key(Pool, "max_use_count", Count(0), "1"),
    key(Pool, "idle_count", Count(0), "0"),
    key(Pool, "idle_time", Duration(0), "\"20m\""),
    key(Pool, "scale_factor", Factor, "0.0"),
    key(Pool, "scale_factor_limit", Count(0), "0"),
    key(Pool, "max_launching", Count(1), "10"),
    key(Pool, "launches_per_minute", Count(1), "60"),
    bare(Pool, "max_lifetime", Duration(1000)),
    key(Pool, "reuse", Word(REUSE), "\"project\""),
    key(Pool, "clean_unbinds", Flag, "true"),
    bare(Pool, "acquire_timeout", Duration(0)),
    key(Pool, "shell", Word(SHELLS), "\"bash\""),
    key(Pool, "builds_dir", GuestPath, "\"/builds\""),
    key(Pool, "cache_dir", GuestPath, "\"/cache\""),
    bare(Pool, "ready_command", Text),
    bare(Pool, "clean_command", Text),
    bare(Pool, "policy", Tables),
    bare(Policy, "periods", Texts),
    key(Policy, "timezone", Text, "\"UTC\""),
    bare(Policy, "idle_count", Count(0)),
    bare(Policy, "idle_time", Duration(0)),
    bare(Policy, "scale_factor", Factor),
    bare(Policy, "scale_factor_limit", Count(0)),
    bare(Provider, "kind", Text),
    bare(Rule, "project", Globs),
    bare(Rule, "namespace", Globs),
    bare(Rule, "ref", Globs),
    bare(Rule, "protected", Flag),
    bare(Rule, "job", Globs),
    bare(Rule, "image", Globs),
    bare(Rule, "pool", Text),
    key(Timing, "acquire_timeout", Duration(0), "\"30m\""),
    key(Timing, "launch_timeout", Duration(1), "\"10m\""),
    key(Timing, "relaunch_after", Duration(1), "\"30s\""),
    key(Timing, "absence_interval", Duration(0), "\"30s\""),
    key(Timing, "reap_grace", Duration(0), "\"5m\""),
    key(Timing, "place_retention", Duration(0), "\"5m\""),
    key(Timing, "lease_free_timeout", Duration(1), "\"10m\""),
    key(Timing, "job_timeout_grace", Duration(0), "\"15m\""),
    key(Timing, "attempt_retention", Duration(0), "\"1d\""),
    key(Timing, "clean_grace", Duration(0), "\"60s\""),
    key(Timing, "surplus_min_time", Duration(0), "\"60s\""),
    key(Timing, "probe_interval", Duration(10), "\"1s\""),
    key(Timing, "pass_interval", Duration(10), "\"10s\""),
    key(Timing, "list_interval", Duration(0), "\"5s\""),
    key(Timing, "launch_backoff", Duration(0), "\"5s\""),
    key(Timing, "launch_backoff_max", Duration(0), "\"5m\""),
    key(Timing, "breaker_failures", Count(1), "5"),
    key(Timing, "stockout_backoff", Duration(0), "\"2m\""),
    key(Timing, "stockout_backoff_max", Duration(0), "\"30m\""),
    key(Timing, "quota_backoff", Duration(0), "\"15m\""),
    key(Timing, "connect_timeout", Duration(1), "\"10s\""),
    key(Timing, "ready_timeout", Duration(1), "\"2m\""),
    key(Timing, "clean_timeout", Duration(1), "\"10m\""),
    key(Timing, "health_interval", Duration(1), "\"1m\""),
    key(Timing, "stop_grace", Duration(0), "\"10s\""),
    key(Timing, "loss_reason_timeout", Duration(0), "\"10s\""),
    key(Timing, "waiter_poll_interval", Duration(10), "\"1s\""),
    key(Timing, "lock_timeout", Duration(1), "\"10s\""),
    key(Timing, "lease_lock_timeout", Duration(1), "\"10s\""),
    key(Timing, "lease_renew_interval", Duration(10), "\"1m\""),
    key(Timing, "keeper_start_timeout", Duration(1), "\"3s\""),
    key(Timing, "self_check_interval", Duration(10), "\"5s\""),
    key(Timing, "half_made_retention", Duration(0), "\"1h\""),
    key(Timing, "unprepared_retention", Duration(0), "\"1d\""),
];

impl Key {
    /// How the table behind this key is opened, if it is one.
    pub(super) fn opened_as(&self) -> Option<&'static str> {
        let section = match (self.takes, self.name) {
            (Takes::Table, "timing") => Section::Timing,
            (Takes::Table, "pool") => Section::Pool,
            (Takes::Table, "provider") => Section::Provider,
            (Takes::Tables, "rule") => Section::Rule,
            (Takes::Tables, "policy") => Section::Policy,
            _ => return None,
        };
        Some(section.header())
    }
}

impl Section {
    /// The keys of this kind of table.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.section == self)
    }

    /// How such a table is opened in the file.
    pub fn header(self) -> &'static str {
        match self {
            Self::Top => "the top of the file",
            Self::Timing => "[timing]",
            Self::Pool => "[pool.NAME]",
            Self::Policy => "[[pool.NAME.policy]]",
            Self::Provider => "[pool.NAME.provider]",
            Self::Rule => "[[rule]]",
        }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(least) => write!(f, "a whole number, {least} or more"),
            Self::Factor => f.write_str("a number, 0 or more"),
            Self::Duration(_) => f.write_str("a duration like \"30s\", \"20m\" or \"1h 30m\""),
            Self::Text => f.write_str("a string"),
            Self::Flag => f.write_str("true or false"),
            Self::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                write!(f, "one of {}", quoted.join(", "))
            }
            Self::Texts => f.write_str("a list of strings"),
            Self::Globs => f.write_str("a pattern or a list of patterns"),
            Self::HostPath => f.write_str("an absolute path"),
            Self::GuestPath => f.write_str("an absolute path on the instance"),
            Self::Table => f.write_str("a table"),
            Self::Tables => f.write_str("a list of tables"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_twice_in_a_section() {
        for (index, key) in KEYS.iter().enumerate() {
            let again = KEYS[index + 1..].iter().any(|k| k.section == key.section && k.name == key.name);
            assert!(!again, "{:?} {}", key.section, key.name);
        }
    }
}
