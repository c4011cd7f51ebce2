//! `greenroom.toml`: from text to checked settings.
//!
//! The tables are read key by key against the declared keys (keys/). All mistakes are collected and shown together, each
//! with its line. Values have no spans; `Config` keeps those apart, for mistakes and for messages that name a line.

mod check;
mod containers;
mod diagnostic;
mod keys;
mod pool;
mod reporting;
mod rule;
mod schedule;
mod syntax;
mod timing;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use check::ProviderFacts;
use diagnostic::Diagnostic;
pub use diagnostic::Diagnostics;
use greenroom_core::ids::PoolName;
use greenroom_core::policy::Timing;
use greenroom_keys::problem::{Place, Problem, Problems, join};
use greenroom_keys::table;
pub use keys::{TABLES as KEYS, default_state_dir};
pub use pool::{PoolConfig, ProviderTable};
pub use reporting::{MetricsAddress, Notify, Webhook};
pub use rule::{JobTraits, NoPool};
use rule::{NamedPools, Rules};
use syntax::Origins;
pub use timing::HostTiming;

/// All settings of the operator.
#[derive(Clone, PartialEq)]
pub struct Config {
    /// The state directory. Absolute.
    pub state_dir: PathBuf,
    /// Days for which old journal segments are kept; 0 keeps none.
    pub history_days: u32,
    /// Where keepers serve metrics, unless `keep --metrics` says otherwise.
    pub metrics: Option<MetricsAddress>,
    /// How operators get notices.
    pub notify: Option<Notify>,
    /// For passes over no particular pool; each pool's policy has its own copy.
    pub timing: Timing,
    pub host_timing: HostTiming,
    /// At least one.
    pub pools: BTreeMap<PoolName, PoolConfig>,
    rules: Rules,
    origins: Origins,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration")]
    Read(#[source] std::io::Error),
    #[error(transparent)]
    Invalid(#[from] Diagnostics),
}

/// Changes when the text changes; not comparable between versions of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigHash(u64);

impl Config {
    /// Reads a file once. The error contains its name.
    pub fn read(path: &Path) -> Result<(Self, ConfigHash), ConfigError> {
        let bytes = fs_err::read(path).map_err(ConfigError::Read)?;
        let name = path.display().to_string();
        let text = text_of(&bytes, &name)?;
        Ok((Self::parse(text, &name)?, Self::hash(text)))
    }

    /// Checks a text; messages call it `file_name`.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, Diagnostics> {
        let source: Arc<str> = Arc::from(text);
        let parsed = syntax::parse(text);
        let parsed = parsed.map_err(|found| Diagnostics::new(file_name, Arc::clone(&source), found))?;
        let (origins, values) = Origins::of(file_name, source, &parsed);
        let read = table::read(KEYS, "", &values, |top| {
            let timing = top.table("timing").value().map(timing::read).unwrap_or_default();
            let pools = pool::read_all(top, &timing.0);
            let named = named(&values);
            if named.0.is_empty() && !matches!(values.get("pool"), Some(value) if !value.is_table()) {
                top.report(no_pool());
            }
            let rules = rule::read(top, &named);
            let state_dir = top.text("state_dir").or_declared();
            let metrics = top.parsed("metrics", top.text("metrics"), |text| text.parse()).value().cloned();
            let notify = top.table("notify").value().map(reporting::notify);
            let days = top.count("history_days").or_declared();
            (PathBuf::from(state_dir), days, (metrics, notify), timing, pools, rules)
        });
        let (state_dir, history_days, (metrics, notify), (timing, host_timing), pools, rules) =
            read.map_err(|problems| origins.diagnostics(problems))?;
        Ok(Self { state_dir, history_days, metrics, notify, timing, host_timing, pools, rules, origins })
    }

    /// Distinguishes one text from another.
    pub fn hash(text: &str) -> ConfigHash {
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        ConfigHash(hasher.finish())
    }

    /// The pool that serves this job.
    pub fn choose(&self, job: &JobTraits<'_>) -> Result<&PoolConfig, NoPool> {
        let name = self.rules.choose(job)?;
        // Rules name only pools that exist: `parse` has checked.
        self.pools.get(name).ok_or_else(|| NoPool::Undefined(name.clone()))
    }

    /// Where a key is set, as `FILE:LINE`, for messages like "`max_instances` is set in …". The path is dotted:
    /// `pool.linux.max_instances`, `timing.reap_grace`; entries of a list by number from 0: `rule.0.pool`.
    /// `None`: it is not set, and the default applies.
    pub fn origin(&self, key: &str) -> Option<String> {
        self.origins.line(key)
    }

    /// Mistakes that the caller has found in a table of the file (a provider's), with their lines.
    pub fn diagnostics(&self, problems: impl Into<Problems>) -> Diagnostics {
        self.origins.diagnostics(problems.into())
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            state_dir,
            history_days,
            metrics: _,
            notify: _,
            timing: _,
            host_timing: _,
            pools,
            rules,
            origins: _,
        } = self;
        f.debug_struct("Config")
            .field("state_dir", state_dir)
            .field("history_days", history_days)
            .field("pools", pools)
            .field("rules", rules)
            .finish_non_exhaustive()
    }
}

fn text_of<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, Diagnostics> {
    std::str::from_utf8(bytes).map_err(|wrong| {
        let readable = String::from_utf8_lossy(&bytes[..wrong.valid_up_to()]);
        let byte = bytes.get(wrong.valid_up_to()).copied().unwrap_or_default();
        let (line, _) = diagnostic::line_and_column(&readable, readable.len());
        let title = format!("not a text file: byte 0x{byte:02x} in line {line} is not valid UTF-8");
        Diagnostics::new(name, Arc::from(""), vec![Diagnostic::new(title)])
    })
}

/// The pools by name, including those with mistakes: a rule that names one of these is itself correct.
fn named(values: &toml::Table) -> NamedPools {
    let tables = values.get("pool").and_then(toml::Value::as_table);
    let place = |name: &String| (name.clone(), Place::name_of(join("pool", name)));
    NamedPools(tables.into_iter().flat_map(toml::Table::keys).map(place).collect())
}

fn no_pool() -> Problem {
    Problem::new("no pool is defined").help(
        "add a pool, for example:\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"",
    )
}

#[cfg(test)]
mod example_tests;
#[cfg(test)]
mod tests;
