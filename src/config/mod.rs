//! `greenroom.toml`: from text to checked settings.
//!
//! The text is read key by key against the tables of all keys (keys/). All mistakes are collected and shown together,
//! each with its line. `Config` has no spans; it keeps them apart for messages that name where a limit is set.

mod check;
mod diagnostic;
mod glob;
mod keys;
mod near;
mod origin;
mod pool;
mod rule;
mod syntax;
mod table;
mod timing;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::core::ids::PoolName;
use crate::core::policy::Timing;

use diagnostic::Diagnostic;
use origin::Origins;
use rule::{Named, Rules};
use table::{Got, Table};

pub use diagnostic::Diagnostics;
pub use keys::Section;
pub use pool::{PoolConfig, ProviderTable};
pub use rule::{JobTraits, PoolChoice};
pub use timing::HostTiming;

/// All settings of the operator.
#[derive(Clone, PartialEq)]
pub struct Config {
    /// The state directory. Absolute. Default `/var/lib/greenroom`.
    pub state_dir: PathBuf,
    /// Days for which old journal segments are kept. Default 30; 0 keeps none.
    pub history_days: u32,
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
        let invalid = |found| Diagnostics::new(file_name, Arc::clone(&source), found);
        let values = syntax::parse(text).map_err(invalid)?;
        let mut sink = Vec::new();
        let top = Table::open(Section::Top, String::new(), 0..0, &values, &mut sink);
        let state_dir = top.host_path("state_dir", &mut sink).or("/var/lib/greenroom".to_owned());
        let history_days = top.count("history_days", &mut sink).or(30);
        let (timing, host_timing) = match top.table("timing", &mut sink) {
            Got::Good(values, span) => {
                let table = Table::open(Section::Timing, "[timing]".to_owned(), span, values, &mut sink);
                timing::read(&table, &mut sink)
            }
            Got::Absent | Got::Bad => Default::default(),
        };
        let pools = pool::read_all(&top, &timing, &mut sink);
        let named = named(&values);
        if named.0.is_empty() && !matches!(values.get("pool"), Some(value) if !value.get_ref().is_table()) {
            sink.push(no_pool());
        }
        let rules = rule::read(&top, &named, &mut sink);
        let origins = Origins::of(file_name, Arc::clone(&source), &values);
        if !sink.is_empty() {
            return Err(invalid(sink));
        }
        let state_dir = PathBuf::from(state_dir);
        Ok(Self { state_dir, history_days, timing, host_timing, pools, rules, origins })
    }

    /// Distinguishes one text from another.
    pub fn hash(text: &str) -> ConfigHash {
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        ConfigHash(hasher.finish())
    }

    /// The pool that serves this job.
    pub fn choose(&self, job: &JobTraits<'_>) -> PoolChoice<'_> {
        match self.rules.choose(job) {
            Ok(name) => match self.pools.get(name) {
                Some(pool) => PoolChoice::Pool(pool),
                // Rules name only pools that exist: `parse` has checked.
                None => PoolChoice::Impossible(format!("there is no pool `{name}`")),
            },
            Err(sentence) => PoolChoice::Impossible(sentence),
        }
    }

    /// Where a key is set, as `FILE:LINE`, for messages like "`max_instances` is set in …". The path is dotted:
    /// `pool.linux.max_instances`, `timing.reap_grace`; entries of a list by number from 0: `rule.0.pool`.
    /// `None`: it is not set, and the default applies.
    pub fn origin(&self, key: &str) -> Option<String> {
        self.origins.line(key)
    }

    /// The mistake in a pool's settings that depends on whether its provider's instances are disposable. To be called
    /// for each pool once its provider exists.
    pub fn objection(&self, pool: &PoolConfig, disposable: bool) -> Option<Diagnostics> {
        let jobs = pool.policy.capacity_per_instance;
        let served = pool.policy_where(disposable).max_use_count?;
        if served >= jobs {
            return None;
        }
        let problem = format!(
            "`capacity_per_instance` = {jobs}, but an instance is terminated after {served} (the default of \
             `max_use_count`); set `max_use_count` to {jobs}, to a multiple of it, or to 0 for no limit"
        );
        Some(self.complain(&format!("pool.{}.capacity_per_instance", pool.name), problem))
    }

    /// A diagnostic for a key that the caller reads (a provider's table), at its line, or at the nearest table around
    /// it if the key is not set.
    pub fn complain(&self, key: &str, problem: impl Into<String>) -> Diagnostics {
        self.origins.complain(key, problem.into())
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state_dir, history_days, timing: _, host_timing: _, pools, rules, origins: _ } = self;
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
fn named(values: &toml::de::DeTable<'_>) -> Named {
    let tables = values.get("pool").and_then(|value| value.get_ref().as_table());
    Named(tables.into_iter().flatten().map(|(key, _)| (key.get_ref().to_string(), key.span())).collect())
}

fn no_pool() -> Diagnostic {
    Diagnostic::new("no pool is defined").help(
        "add a pool, for example:\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"",
    )
}

#[cfg(test)]
mod example_tests;
#[cfg(test)]
mod tests;
