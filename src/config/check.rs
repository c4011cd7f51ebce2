//! Settings that are valid alone but contradict each other, or what their provider can do.
//!
//! Settings that are already reported are skipped, so that one mistake makes one diagnostic. Two defaults never
//! contradict each other.

use std::time::Duration;

use greenroom_core::policy::IdlePolicy;
use greenroom_core::time::Pretty;
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::Got;

use super::diagnostic::Diagnostics;
use super::{Config, PoolConfig, containers};

const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);

/// The keys of a pool that are checked together.
pub(super) struct PoolDraft {
    pub(super) max_instances: Got<u32>,
    pub(super) capacity_per_instance: Got<u32>,
    pub(super) max_use_count: Got<u32>,
    pub(super) max_lifetime: Got<Duration>,
    pub(super) idle: IdleDraft,
    pub(super) idle_stopped: Got<u32>,
    pub(super) builds_dir: Got<String>,
    pub(super) cache_dir: Got<String>,
}

/// The idle keys of a pool or of one of its policy entries.
pub(super) struct IdleDraft {
    pub(super) idle_count: Got<u32>,
    pub(super) idle_time: Got<Duration>,
    pub(super) scale_factor: Got<f64>,
    pub(super) scale_factor_limit: Got<u32>,
}

impl IdleDraft {
    /// The given values, or the declared defaults: of a pool.
    pub(super) fn or_declared(&self) -> IdlePolicy {
        IdlePolicy {
            idle_count: self.idle_count.or_declared(),
            idle_time: self.idle_time.or_declared(),
            scale_factor: self.scale_factor.or_declared(),
            scale_factor_limit: self.scale_factor_limit.or_declared(),
        }
    }

    /// Takes missing keys from `below`.
    pub(super) fn over(&self, below: &IdlePolicy) -> IdlePolicy {
        IdlePolicy {
            idle_count: self.idle_count.or(below.idle_count),
            idle_time: self.idle_time.or(below.idle_time),
            scale_factor: self.scale_factor.or(below.scale_factor),
            scale_factor_limit: self.scale_factor_limit.or(below.scale_factor_limit),
        }
    }
}

/// Checks a pool by itself. `table` takes the mistakes, here and below.
pub(super) fn pool(draft: &PoolDraft, table: &Table<'_>) {
    uses(draft, table);
    lifetime(draft, table);
    idle(draft, &draft.idle, table);
    stopped(draft, table);
    if let (Got::Good(builds, at), Got::Good(cache, other)) = (&draft.builds_dir, &draft.cache_dir)
        && builds == cache
    {
        let title = "`builds_dir` and `cache_dir` must be different directories";
        table.report(Problem::new(title).at(other.clone(), "the same directory").at(at.clone(), "as here"));
    }
}

/// An instance that is terminated before all its slots are used. If `max_use_count` is missing, its default depends on
/// the provider, so `Config::objection` checks that.
fn uses(draft: &PoolDraft, table: &Table<'_>) {
    if let (Got::Good(served, at), Got::Good(jobs, other)) =
        (&draft.max_use_count, &draft.capacity_per_instance)
        && *served != 0
        && served < jobs
    {
        let title = format!(
            "`max_use_count` = {served} is less than `capacity_per_instance` = {jobs}: no instance would \
             ever be full"
        );
        let problem = Problem::new(title).at(at.clone(), "jobs that an instance runs in its life");
        let problem = problem.at(other.clone(), "jobs that an instance runs concurrently");
        table.report(
            problem.help(format!("set `max_use_count` to {jobs}, to a multiple of it, or to 0 for no limit")),
        );
    }
}

/// An instance that ages before it can serve a job. 0 is no limit.
fn lifetime(draft: &PoolDraft, table: &Table<'_>) {
    if let Got::Good(limit, at) = &draft.max_lifetime
        && !limit.is_zero()
        && *limit < SHORTEST_LIFETIME
    {
        let title = format!("`max_lifetime` = {} is too short for any job", Pretty(*limit));
        let problem = Problem::new(title).at(at.clone(), "too short");
        table.report(problem.help("set it to at least 1s, or to 0 for no limit"));
    }
}

/// More stopped instances than the pool may have.
fn stopped(draft: &PoolDraft, table: &Table<'_>) {
    if let (Got::Good(wanted, at), Got::Good(most, limit_at)) = (&draft.idle_stopped, &draft.max_instances)
        && wanted > most
    {
        let title = format!("`idle_stopped` = {wanted} is more than `max_instances` = {most}");
        let problem = Problem::new(title).at(at.clone(), "stopped instances count, too");
        table.report(problem.at(limit_at.clone(), "the limit in any phase"));
    }
}

/// Checks the idle keys of a pool, or of an entry on top of it, against the pool's limits.
pub(super) fn idle(pool: &PoolDraft, entry: &IdleDraft, table: &Table<'_>) {
    let count = entry.idle_count.over(&pool.idle.idle_count);
    let factor = entry.scale_factor.over(&pool.idle.scale_factor);
    let limit = entry.scale_factor_limit.over(&pool.idle.scale_factor_limit);
    // An entry that inherits both sides was checked with the pool.
    let own = |got: &Got<u32>| got.value().is_some();
    if let Got::Good(wanted, at) = count
        && own(&entry.idle_count)
        && let Got::Good(most, limit_at) = &pool.max_instances
        && !pool.capacity_per_instance.is_bad()
    {
        let capacity = pool.capacity_per_instance.or_declared();
        let slots = u64::from(*most) * u64::from(capacity);
        if u64::from(*wanted) > slots {
            let title =
                format!("`idle_count` = {wanted} job slots can never be idle: this pool has at most {slots}");
            let label = format!("{most} × `capacity_per_instance` = {capacity} makes {slots}");
            table.report(Problem::new(title).at(at.clone(), "wanted").at(limit_at.clone(), label));
        }
    }
    if let (Got::Good(floor, at), Got::Good(ceiling, limit_at)) = (count, limit)
        && (own(&entry.idle_count) || own(&entry.scale_factor_limit))
        && factor.effective().is_some_and(|factor| *factor > 0.0)
        && *ceiling != 0
        && ceiling < floor
    {
        let title = format!("`scale_factor_limit` = {ceiling} is below `idle_count` = {floor}");
        let problem = Problem::new(title).at(limit_at.clone(), "the maximum of idle job slots");
        table
            .report(problem.at(at.clone(), "the minimum of idle job slots").help("set it to 0 for no limit"));
    }
}

/// Pairs of `[timing]` of which the first must not be longer than the second. Checks only keys that the file sets: a
/// test that shortens one key need not set the other.
const ORDERED: &[(&str, &str, &str)] = &[
    ("launch_backoff", "launch_backoff_max", "the first delay would exceed the maximum"),
    ("stockout_backoff", "stockout_backoff_max", "the first delay would exceed the maximum"),
    ("ready_timeout", "launch_timeout", "the launch would time out before its ready command does"),
    ("connect_timeout", "launch_timeout", "the launch would time out before the first connection does"),
    (
        "lease_renew_interval",
        "lease_free_timeout",
        "a running call would be considered dead between two renewals",
    ),
];

pub(super) fn timing(given: &[(&str, Got<Duration>)], table: &Table<'_>) {
    let find = |name: &str| given.iter().find(|(known, _)| *known == name).map(|(_, got)| got);
    for (short, long, why) in ORDERED {
        if let (Some(Got::Good(a, at)), Some(Got::Good(b, other))) = (find(short), find(long))
            && a > b
        {
            let title = format!("`{short}` = {} is longer than `{long}` = {}", Pretty(*a), Pretty(*b));
            table.report(Problem::new(title).at(at.clone(), *why).at(other.clone(), "shorter"));
        }
    }
}

/// The abilities of a provider, as far as a pool's settings depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderFacts {
    /// True if it launches and terminates instances; false for static hosts.
    pub disposable: bool,
    /// True if it may be able to suspend instances.
    pub suspends: bool,
    /// True if its instances can have a container engine.
    pub engines: bool,
    /// True for static hosts that stay with their trust domain.
    pub stays_bound: bool,
}

impl Config {
    /// The first mistake in a pool's settings that only its provider's facts show. To be called for each pool once its
    /// provider is known.
    pub fn objection(&self, pool: &PoolConfig, provider: ProviderFacts) -> Option<Diagnostics> {
        let ProviderFacts { disposable, suspends, engines, stays_bound } = provider;
        let found = (!disposable).then(|| rootful(pool)).flatten();
        let found = found.or_else(|| unused_capacity(pool, disposable));
        let found = found.or_else(|| (!suspends).then(|| vain_idle_stopped(pool)).flatten());
        let found = found.or_else(|| (!engines).then(|| vain_containers(pool)).flatten());
        let found = found.or_else(|| (!stays_bound).then(|| vain_keep_builds(pool, disposable)).flatten());
        found.map(|problem| self.diagnostics(problem))
    }
}

/// Settings of containers that need root, on static hosts.
fn rootful(pool: &PoolConfig) -> Option<Problem> {
    let (key, why) = pool.containers.as_ref().and_then(containers::beyond_static_hosts)?;
    let problem = Problem::new(format!("static hosts run containers without root: `{key}` {why}"));
    let key = Place::name_of(join(&format!("pool.{}.containers", pool.name), key));
    let help = "remove it, or use a provider that launches instances";
    Some(problem.at(key, "this pool has static hosts").help(help))
}

/// Slots that no job ever gets: an instance is terminated before all have been used.
fn unused_capacity(pool: &PoolConfig, disposable: bool) -> Option<Problem> {
    let jobs = pool.policy.capacity_per_instance;
    let served = pool.policy_where(disposable, None).max_use_count?;
    if served >= jobs {
        return None;
    }
    let title = format!(
        "`capacity_per_instance` = {jobs}, but an instance is terminated after {served} (the default of \
         `max_use_count`); set `max_use_count` to {jobs}, to a multiple of it, or to 0 for no limit"
    );
    let key = join(&format!("pool.{}", pool.name), "capacity_per_instance");
    Some(Problem::new(title).at(Place::name_of(key), "here"))
}

/// `idle_stopped` for a provider that never suspends instances.
fn vain_idle_stopped(pool: &PoolConfig) -> Option<Problem> {
    if pool.policy.idle_stopped == 0 {
        return None;
    }
    let kind = &pool.provider.kind;
    let problem =
        Problem::new(format!("`idle_stopped` is set, and provider `{kind}` cannot suspend instances"));
    let help = "remove it; `idle_count` keeps instances ready with every provider that launches them";
    let key = Place::name_of(join(&format!("pool.{}", pool.name), "idle_stopped"));
    Some(problem.at(key, "not possible here").help(help))
}

/// `keep_builds` where no host stays with the trust domain whose builds it has.
fn vain_keep_builds(pool: &PoolConfig, disposable: bool) -> Option<Problem> {
    if !pool.keep_builds {
        return None;
    }
    let (why, help) = if disposable {
        (
            "launched instances are not cleaned",
            "remove it; instances that serve several jobs keep their builds",
        )
    } else {
        (
            "cleaning releases its hosts from their trust domain",
            "set `clean_unbinds = false`, or remove `keep_builds`",
        )
    };
    let problem = Problem::new(format!("`keep_builds` has no effect in pool `{}`: {why}", pool.name));
    let key = Place::name_of(join(&format!("pool.{}", pool.name), "keep_builds"));
    Some(problem.at(key, "no effect here").help(help))
}

/// `containers` for a provider whose instances cannot have an engine, whichever it is.
fn vain_containers(pool: &PoolConfig) -> Option<Problem> {
    pool.containers.as_ref()?;
    let name = &pool.name;
    let kind = &pool.provider.kind;
    let problem = Problem::new(format!(
        "`[pool.{name}.containers]` does not fit provider `{kind}`: its instances have no engine"
    ));
    let help =
        "remove it; set `image_from_job` of the provider, or give each image a pool, which a rule chooses";
    Some(problem.at(Place::name_of(format!("pool.{name}.containers")), "here").help(help))
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;
    use crate::config::tests::{fails_with, good};

    #[test]
    fn limits_that_contradict_each_other_are_shown_together() {
        fails_with(
            "[pool.linux]\nmax_instances = 2\ncapacity_per_instance = 3\nmax_use_count = 2\nidle_count = 7\n\
             scale_factor = 0.5\nscale_factor_limit = 6\nprovider.kind = \"local\"\n",
            r"
error: `max_use_count` = 2 is less than `capacity_per_instance` = 3: no instance would ever be full
 --> greenroom.toml:4:17
  |
3 | capacity_per_instance = 3
  |                         - jobs that an instance runs concurrently
4 | max_use_count = 2
  |                 ^ jobs that an instance runs in its life
  |
  = help: set `max_use_count` to 3, to a multiple of it, or to 0 for no limit

error: `idle_count` = 7 job slots can never be idle: this pool has at most 6
 --> greenroom.toml:5:14
  |
2 | max_instances = 2
  |                 - 2 × `capacity_per_instance` = 3 makes 6
...
5 | idle_count = 7
  |              ^ wanted

error: `scale_factor_limit` = 6 is below `idle_count` = 7
 --> greenroom.toml:7:22
  |
5 | idle_count = 7
  |              - the minimum of idle job slots
6 | scale_factor = 0.5
7 | scale_factor_limit = 6
  |                      ^ the maximum of idle job slots
  |
  = help: set it to 0 for no limit
",
        );
    }

    #[test]
    fn a_policy_entry_is_judged_with_what_it_inherits() {
        fails_with(
            "[pool.linux]\nmax_instances = 2\nprovider.kind = \"local\"\n[[pool.linux.policy]]\n\
             periods = [\"* 9 * * *\"]\nidle_count = 3\n",
            r"
error: `idle_count` = 3 job slots can never be idle: this pool has at most 2
 --> greenroom.toml:6:14
  |
2 | max_instances = 2
  |                 - 2 × `capacity_per_instance` = 1 makes 2
...
6 | idle_count = 3
  |              ^ wanted
",
        );
    }

    /// A provider that launches pods, which have no engine.
    const ENGINELESS: ProviderFacts =
        ProviderFacts { disposable: true, suspends: false, engines: false, stays_bound: false };

    #[test]
    fn containers_of_either_engine_need_instances_that_can_have_one() {
        for engine in ["docker", "podman"] {
            let config = good(&format!(
                "[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n[pool.a.containers]\nengine = \"{engine}\"\n"
            ));
            let wrong = config.objection(&config.pools[&PoolName::new("a")], ENGINELESS).unwrap().to_string();
            let expected = "greenroom.toml:4:9: `[pool.a.containers]` does not fit provider `x`: its instances have no engine";
            assert!(wrong.starts_with(expected), "{wrong}");
        }
        let config = good("[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n");
        assert!(config.objection(&config.pools[&PoolName::new("a")], ENGINELESS).is_none());
    }

    #[test]
    fn capacity_that_the_default_of_uses_never_fills_is_objected_to_where_instances_are_thrown_away() {
        let objection = |line: &str, disposable| {
            let config = good(&format!(
                "[pool.a]\nmax_instances = 1\ncapacity_per_instance = 4\n{line}\nprovider.kind = \"x\"\n"
            ));
            let provider = ProviderFacts { disposable, suspends: false, engines: true, stays_bound: false };
            config.objection(&config.pools[&PoolName::new("a")], provider).map(|wrong| wrong.to_string())
        };
        let wrong = objection("#", true).unwrap();
        assert!(
            wrong.starts_with(
                "greenroom.toml:3:1: `capacity_per_instance` = 4, but an instance is terminated after 1 "
            ),
            "{wrong}"
        );
        assert_eq!(objection("#", false), None, "a static host serves any number");
        assert_eq!(objection("max_use_count = 4", true), None);
        assert_eq!(objection("max_use_count = 0", true), None);
    }

    #[test]
    fn times_that_contradict_each_other_are_shown_together() {
        fails_with(
            "[timing]\nlaunch_timeout = \"1m\"\nready_timeout = \"2m\"\npass_interval = \"0s\"\n\
             [pool.linux]\nmax_instances = 1\nprovider.kind = \"local\"\n",
            r#"
error: `ready_timeout` = 2m is longer than `launch_timeout` = 1m
 --> greenroom.toml:3:17
  |
2 | launch_timeout = "1m"
  |                  ---- shorter
3 | ready_timeout = "2m"
  |                 ^^^^ the launch would time out before its ready command does

error: `pass_interval` in `[timing]` must be a duration like "30s", "20m" or "1h 30m"
 --> greenroom.toml:4:17
  |
4 | pass_interval = "0s"
  |                 ^^^^ less than the minimum, 10 ms
"#,
        );
    }

    #[test]
    fn one_shortened_time_does_not_force_a_test_to_name_the_others() {
        let config =
            good("[timing]\nlaunch_timeout = \"50ms\"\n[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n");
        let timing = &config.pools[&PoolName::new("a")].policy.timing;
        assert_eq!(timing.launch_timeout, Duration::from_millis(50));
        assert_eq!(timing.ready_timeout, Duration::from_mins(2));
    }
}
