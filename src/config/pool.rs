//! `[pool.NAME]`: one pool's settings.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::settings::ContainerSettings;
use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::ids::PoolName;
use greenroom_core::images::WarmPolicy;
use greenroom_core::policy::{IdlePolicy, Lifetime, Policy, Reuse, ScheduledIdle, Timing};
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;

use super::check::{self, IdleDraft, PoolDraft};
use super::containers::{self, ContainerContext};
use super::schedule::schedule;

/// One pool, as the operator configured it.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    pub name: PoolName,
    /// With `max_use_count` from the file, or 1, and `max_lifetime` from the file, or no limit; see `policy_where`.
    pub policy: Policy,
    /// True if the file sets `max_use_count`.
    pub uses_given: bool,
    /// True if the file sets `max_lifetime`; 0 means no limit.
    pub lifetime_given: bool,
    /// `None`: the file does not set it, and the way of cleaning decides.
    pub clean_unbinds: Option<bool>,
    /// True if a static host that stays with its trust domain keeps the builds of its jobs.
    pub keep_builds: bool,
    /// The interpreter of the job's scripts on the instance.
    pub shell: Shell,
    /// Whether stages have the environment of a login shell; `None`: the provider decides.
    pub login_shell: Option<bool>,
    /// True if standard error of scripts stays apart from standard output.
    pub separate_stderr: bool,
    /// The directory of jobs' sources on the instance. Absolute there.
    pub builds_dir: String,
    /// The directory of jobs' local caches on the instance. Absolute there.
    pub cache_dir: String,
    /// True if the file sets either of the two.
    pub dirs_given: bool,
    /// Run on a fresh instance before a job gets it; must exit 0.
    pub ready_command: Option<String>,
    /// Run on an instance between jobs; must exit 0.
    pub recheck_command: Option<String>,
    /// Run on a static host between jobs; must exit 0.
    pub clean_command: Option<String>,
    /// True if the job log ends with a table of the job's parts.
    pub summary: bool,
    /// `None`: jobs run on the instance itself.
    pub containers: Option<ContainerSettings>,
    pub provider: ProviderTable,
}

impl PoolConfig {
    /// True if jobs run in containers of Podman, which images for `qemu` may have.
    pub fn needs_podman(&self) -> bool {
        self.containers.as_ref().is_some_and(|settings| settings.engine == ContainerEngine::Podman)
    }

    /// The number of its job slots: `max_instances` × `capacity_per_instance`.
    pub fn slots(&self) -> u64 {
        u64::from(self.policy.max_instances) * u64::from(self.policy.capacity_per_instance)
    }

    /// The shell of stages. Without the operator's word, it is that of a login on static hosts only, as with GitLab's own
    /// executors.
    pub fn stage_shell(&self, has_static_hosts: bool) -> StageShell {
        StageShell {
            shell: self.shell,
            login_shell: self.login_shell.unwrap_or(has_static_hosts),
            separate_stderr: self.separate_stderr,
        }
    }

    /// The policy for a provider whose instances are `disposable` or not. If they are not, and the file does not set a
    /// limit, an instance serves any number of jobs. `lifetime` is the provider's default of `max_lifetime`.
    pub fn policy_where(&self, disposable: bool, lifetime: Option<Duration>) -> Policy {
        let mut policy = self.policy.clone();
        if !disposable && !self.uses_given {
            policy.max_use_count = None;
        }
        if !self.lifetime_given {
            (policy.max_lifetime, policy.extends_lifetime) = (lifetime.map(Lifetime), lifetime.is_some());
        }
        policy
    }
}

/// A provider's own table. The provider reads it; `Config::diagnostics` finds the lines of its mistakes.
#[derive(Clone, PartialEq)]
pub struct ProviderTable {
    /// The provider's name.
    pub kind: String,
    /// Everything in the table but `kind`.
    pub table: toml::Table,
    /// The path of this table in the file: `pool.linux.provider`.
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
pub(super) fn read_all(top: &Table<'_>, timing: &Timing) -> BTreeMap<PoolName, PoolConfig> {
    let mut pools = BTreeMap::new();
    for (text, value) in top.names("pool").into_value().into_iter().flatten() {
        let path = join(&top.path("pool"), text);
        let Some(values) = value.as_table() else {
            let problem = Problem::new(format!("`{text}` is not a pool"));
            let problem = problem.at(Place::value_of(path), "not a table");
            top.report(problem.help("define a pool as a table: `[pool.NAME]`"));
            continue;
        };
        let name = PoolName::parse(text).unwrap_or_else(|problem| {
            let title = format!("`{text}` cannot be the name of a pool");
            top.report(Problem::new(title).at(Place::name_of(path), problem.rule));
            PoolName::new(text)
        });
        if let Some(pool) = read(&top.named_table("pool", text, values), name, timing) {
            pools.insert(pool.name.clone(), pool);
        }
    }
    pools
}

fn read(table: &Table<'_>, name: PoolName, timing: &Timing) -> Option<PoolConfig> {
    let draft = PoolDraft {
        max_instances: table.required(
            "max_instances",
            table.count("max_instances"),
            "set the maximum number of instances, whatever their phase",
        ),
        capacity_per_instance: table.count("capacity_per_instance"),
        max_use_count: table.count("max_use_count"),
        max_lifetime: table.duration("max_lifetime"),
        idle: idle(table),
        idle_stopped: table.count("idle_stopped"),
        builds_dir: table.text("builds_dir"),
        cache_dir: table.text("cache_dir"),
    };
    check::pool(&draft, table);
    let idle_policy = draft.idle.or_declared();
    let mut timing = timing.clone();
    timing.acquire_timeout = table.duration("acquire_timeout").or(timing.acquire_timeout);
    let reuse = match table.word("reuse").or_declared() {
        "namespace" => Reuse::Namespace,
        "any" => Reuse::Any,
        _ => Reuse::Project,
    };
    let shell_key = table.word("shell");
    let shell = shell_key.or_declared();
    let uses = draft.max_use_count.value().copied();
    let lifetime = draft.max_lifetime.value().copied();
    let clean_unbinds = table.flag("clean_unbinds").into_value();
    let mut policy = Policy {
        max_instances: draft.max_instances.or_default(),
        capacity_per_instance: draft.capacity_per_instance.or_declared(),
        max_use_count: Some(draft.max_use_count.or_declared()).filter(|count| *count > 0),
        max_launching: table.count("max_launching").or_declared(),
        launches_per_minute: table.count("launches_per_minute").or_declared(),
        max_lifetime: lifetime.filter(|limit| !limit.is_zero()).map(Lifetime),
        extends_lifetime: false,
        reuse,
        clean_unbinds: clean_unbinds.unwrap_or(false),
        schedules: schedules(table, &draft, &idle_policy),
        idle_stopped: draft.idle_stopped.or_declared(),
        idle: idle_policy,
        timing,
        warm: WarmPolicy::default(),
    };
    let builds_dir = draft.builds_dir.or_declared();
    let cache_dir = draft.cache_dir.or_declared();
    let around = ContainerContext { policy: &policy, shell: &shell_key, dirs: [&builds_dir, &cache_dir] };
    let containers = containers::read(table, &around);
    policy.warm = containers.as_ref().map(ContainerSettings::warm).unwrap_or_default();
    Some(PoolConfig {
        containers,
        name,
        policy,
        dirs_given: table.has("builds_dir") || table.has("cache_dir"),
        uses_given: uses.is_some(),
        lifetime_given: lifetime.is_some(),
        clean_unbinds,
        keep_builds: table.flag("keep_builds").or_declared(),
        shell: Shell::ALL.into_iter().find(|known| known.as_str() == shell).unwrap_or(Shell::Bash),
        login_shell: table.flag("login_shell").into_value(),
        separate_stderr: table.flag("separate_stderr").or_declared(),
        builds_dir,
        cache_dir,
        ready_command: table.text("ready_command").into_value(),
        recheck_command: table.text("recheck_command").into_value(),
        clean_command: table.text("clean_command").into_value(),
        summary: table.flag("summary").or_declared(),
        provider: provider(table)?,
    })
}

fn idle(table: &Table<'_>) -> IdleDraft {
    IdleDraft {
        idle_count: table.count("idle_count"),
        idle_time: table.duration("idle_time"),
        scale_factor: table.factor("scale_factor"),
        scale_factor_limit: table.count("scale_factor_limit"),
    }
}

fn schedules(table: &Table<'_>, pool: &PoolDraft, below: &IdlePolicy) -> Vec<ScheduledIdle> {
    let mut schedules = Vec::new();
    for entry in table.tables("policy").or_default() {
        let draft = idle(&entry);
        check::idle(pool, &draft, table);
        if let Some(when) = schedule(&entry) {
            schedules.push(ScheduledIdle { when, idle: draft.over(below) });
        }
    }
    schedules
}

fn provider(pool: &Table<'_>) -> Option<ProviderTable> {
    let path = pool.path("provider");
    if !pool.has("provider") {
        let help = format!("name the provider of its instances, for example:\n[{path}]\nkind = \"local\"");
        let problem = Problem::new(format!("`{}` has no provider", pool.header()));
        pool.report(problem.at(pool.place(), "this pool").help(help));
        return None;
    }
    let table = pool.open_table("provider").into_value()?;
    let help = "name the provider, for example `kind = \"local\"`";
    let kind = table.required("kind", table.text("kind"), help).into_value()?;
    let mut table = table.values().clone();
    table.remove("kind");
    Some(ProviderTable { kind, table, path })
}
