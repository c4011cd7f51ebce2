//! `[pool.NAME]`: one pool's settings.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;

use crate::core::execution::Shell;
use crate::core::ids::PoolName;
use crate::core::policy::{IdlePolicy, Lifetime, Policy, Reuse, ScheduledIdle, Timing};
use crate::core::schedule::{Schedule, ScheduleText};

use super::check::{self, IdleDraft, PoolDraft};
use super::diagnostic::{Diagnostic, Span};
use super::keys::Section;
use super::table::{Got, Sink, Table};

/// One pool, as the operator configured it.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    pub name: PoolName,
    /// With `max_use_count` from the file, or 1; see `policy_where`.
    pub policy: Policy,
    /// True if the file sets `max_use_count`.
    pub uses_given: bool,
    /// The interpreter of the job's scripts on the instance.
    pub shell: Shell,
    /// The directory of jobs' sources on the instance. Absolute there.
    pub builds_dir: String,
    /// The directory of jobs' local caches on the instance. Absolute there.
    pub cache_dir: String,
    /// True if the file sets either of the two.
    pub dirs_given: bool,
    /// Run on a fresh instance before a job gets it; must exit 0.
    pub ready_command: Option<String>,
    /// Run on a static host between jobs; must exit 0.
    pub clean_command: Option<String>,
    pub provider: ProviderTable,
}

impl PoolConfig {
    /// The policy for a provider whose instances are `disposable` or not. If they are not, and the file does not set a
    /// limit, an instance serves any number of jobs.
    pub fn policy_where(&self, disposable: bool) -> Policy {
        let mut policy = self.policy.clone();
        if !disposable && !self.uses_given {
            policy.max_use_count = None;
        }
        policy
    }
}

/// A provider's own table. The provider reads it, and points at lines with `Config::complain`.
#[derive(Clone, PartialEq)]
pub struct ProviderTable {
    /// The provider's name.
    pub kind: String,
    /// Everything in the table but `kind`.
    pub table: toml::Table,
    /// The path of this table in the file, for `Config::origin` and `Config::complain`: `pool.linux.provider`.
    pub path: String,
}

impl fmt::Debug for ProviderTable {
    /// Keys only: values may be passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.table.keys().map(String::as_str).collect();
        write!(f, "ProviderTable {{ kind: {:?}, {} }}", self.kind, keys.join(": ***, "))
    }
}

/// Reads every pool.
pub(super) fn read_all(top: &Table<'_>, timing: &Timing, sink: &mut Sink) -> BTreeMap<PoolName, PoolConfig> {
    let mut pools = BTreeMap::new();
    let Got::Good(tables, _) = top.table("pool", sink) else { return pools };
    for (key, value) in tables {
        let text: &str = key.get_ref();
        let Some(values) = value.get_ref().as_table() else {
            let title = format!("`{text}` is not a pool");
            let help = "define a pool as a table: `[pool.NAME]`";
            sink.push(Diagnostic::new(title).at(value.span(), "not a table").help(help));
            continue;
        };
        let name = match PoolName::parse(text) {
            Ok(name) => name,
            Err(problem) => {
                let title = format!("`{text}` cannot be the name of a pool");
                sink.push(Diagnostic::new(title).at(key.span(), problem.rule));
                PoolName::new(text)
            }
        };
        let header = format!("[pool.{text}]");
        let table = Table::open(Section::Pool, header, value.span(), values, sink);
        if let Some(pool) = read(&table, name, timing, sink) {
            pools.insert(pool.name.clone(), pool);
        }
    }
    pools
}

fn read(table: &Table<'_>, name: PoolName, timing: &Timing, sink: &mut Sink) -> Option<PoolConfig> {
    let default = Policy::default();
    let draft = PoolDraft {
        max_instances: table.count("max_instances", sink),
        capacity_per_instance: table.count("capacity_per_instance", sink),
        max_use_count: table.count("max_use_count", sink),
        idle: idle(table, sink),
        builds_dir: table.guest_path("builds_dir", sink),
        cache_dir: table.guest_path("cache_dir", sink),
    };
    if !table.has("max_instances") {
        table.missing("max_instances", sink, "set the maximum number of instances, whatever their phase");
    }
    check::pool(&draft, sink);
    let idle_policy = draft.idle.over(&default.idle);
    let mut timing = timing.clone();
    timing.acquire_timeout = table.duration("acquire_timeout", sink).or(timing.acquire_timeout);
    let reuse = [Reuse::Project, Reuse::Namespace, Reuse::Any];
    let uses = draft.max_use_count.value().copied();
    let policy = Policy {
        max_instances: draft.max_instances.or(default.max_instances),
        capacity_per_instance: draft.capacity_per_instance.or(default.capacity_per_instance),
        max_use_count: uses.map_or(default.max_use_count, |count| (count > 0).then_some(count)),
        max_launching: table.count("max_launching", sink).or(default.max_launching),
        launches_per_minute: table.count("launches_per_minute", sink).or(default.launches_per_minute),
        max_lifetime: table.duration("max_lifetime", sink).value().map(|age| Lifetime(*age)),
        reuse: table.word("reuse", sink).value().map_or(default.reuse, |index| reuse[*index]),
        clean_unbinds: table.flag("clean_unbinds", sink).or(default.clean_unbinds),
        schedules: schedules(table, &draft, &idle_policy, sink),
        idle: idle_policy,
        timing,
    };
    Some(PoolConfig {
        name,
        policy,
        dirs_given: table.has("builds_dir") || table.has("cache_dir"),
        uses_given: uses.is_some(),
        shell: table.word("shell", sink).value().map_or(Shell::Bash, |index| Shell::ALL[*index]),
        builds_dir: draft.builds_dir.or("/builds".to_owned()),
        cache_dir: draft.cache_dir.or("/cache".to_owned()),
        ready_command: table.text("ready_command", sink).value().cloned(),
        clean_command: table.text("clean_command", sink).value().cloned(),
        provider: provider(table, sink)?,
    })
}

fn idle(table: &Table<'_>, sink: &mut Sink) -> IdleDraft {
    IdleDraft {
        idle_count: table.count("idle_count", sink),
        idle_time: table.duration("idle_time", sink),
        scale_factor: table.factor("scale_factor", sink),
        scale_factor_limit: table.count("scale_factor_limit", sink),
    }
}

fn schedules(table: &Table<'_>, pool: &PoolDraft, below: &IdlePolicy, sink: &mut Sink) -> Vec<ScheduledIdle> {
    let mut schedules = Vec::new();
    let header = format!("[{}.policy]]", table.header.trim_end_matches(']'));
    for (span, values) in table.tables("policy", sink) {
        let entry = Table::open(Section::Policy, header.clone(), span, values, sink);
        let draft = idle(&entry, sink);
        check::idle(pool, &draft, sink);
        if let Some(when) = schedule(&entry, sink) {
            schedules.push(ScheduledIdle { when, idle: draft.over(below) });
        }
    }
    schedules
}

fn schedule(entry: &Table<'_>, sink: &mut Sink) -> Option<Schedule> {
    let zone = entry.text("timezone", sink);
    if !entry.has("periods") {
        let help = "set `periods`, such as `[\"* 9-17 * * mon-fri\"]` (minute, hour, day, month, weekday)";
        entry.missing("periods", sink, help);
    }
    let periods = entry.texts("periods", sink);
    let mut timezone = zone.or("UTC".to_owned());
    let mut readable = !zone.is_bad();
    if let Some(span) = zone.span() {
        // Checked separately, so that a wrong time zone is not reported as a wrong period.
        let text = ScheduleText { periods: vec!["* * * * *".to_owned()], timezone: timezone.clone() };
        if Schedule::parse(text).is_err() {
            let title = format!("unknown time zone `{timezone}`");
            let help = "use a name of the IANA time zone database, such as \"Europe/Berlin\" or \"UTC\"";
            sink.push(Diagnostic::new(title).at(span, "unknown").help(help));
            "UTC".clone_into(&mut timezone);
            readable = false;
        }
    }
    let periods = periods.value()?;
    for period in periods {
        let text = ScheduleText { periods: vec![period.get_ref().clone()], timezone: timezone.clone() };
        if let Err(wrong) = Schedule::parse(text) {
            let title = format!("the period `{}` is invalid", wrong.period);
            // The parser adds a caret of its own under its last line.
            let problem = wrong.problem.lines().next_back().unwrap_or_default();
            let problem = problem.trim_start_matches([' ', '^']).to_owned();
            let help = "use five fields (minute, hour, day, month, weekday), such as \"* 9-17 * * mon-fri\"";
            sink.push(Diagnostic::new(title).at(period.span(), problem).help(help));
            readable = false;
        }
    }
    let periods = periods.iter().cloned().map(Spanned::into_inner).collect();
    readable.then(|| Schedule::parse(ScheduleText { periods, timezone }).ok()).flatten()
}

fn provider(pool: &Table<'_>, sink: &mut Sink) -> Option<ProviderTable> {
    let path = format!("{}.provider", pool.header.trim_matches(['[', ']']));
    if !pool.has("provider") {
        let help = format!("name the provider of its instances, for example:\n[{path}]\nkind = \"local\"");
        let title = format!("`{}` has no provider", pool.header);
        sink.push(Diagnostic::new(title).at(pool.span.clone(), "this pool").help(help));
        return None;
    }
    let Got::Good(values, span) = pool.table("provider", sink) else { return None };
    let table = Table::open(Section::Provider, format!("[{path}]"), span.clone(), values, sink);
    if !table.has("kind") {
        table.missing("kind", sink, "name the provider, for example `kind = \"local\"`");
        return None;
    }
    let kind = table.text("kind", sink).value()?.clone();
    let mut table = unparsed(values, &span, sink)?;
    table.remove("kind");
    Some(ProviderTable { kind, table, path })
}

fn unparsed(values: &toml::de::DeTable<'_>, span: &Span, sink: &mut Sink) -> Option<toml::Table> {
    let whole = Spanned::new(span.clone(), values.clone());
    match <toml::Table as serde::Deserialize>::deserialize(toml::de::Deserializer::from(whole)) {
        Ok(table) => Some(table),
        Err(error) => {
            let title = format!("this value cannot be used: {}", error.message());
            sink.push(Diagnostic::new(title).at(error.span().unwrap_or(span.clone()), "here"));
            None
        }
    }
}
