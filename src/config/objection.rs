//! Mistakes in a pool's settings that depend on what its provider can do.

use greenroom_keys::problem::{Place, Problem, join};

use super::diagnostic::Diagnostics;
use super::{Config, PoolConfig, containers};

/// What a provider can do, as far as a pool's settings depend on it.
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
    let (name, kind) = (&pool.name, &pool.provider.kind);
    let problem = Problem::new(format!(
        "`[pool.{name}.containers]` does not fit provider `{kind}`: its instances have no engine"
    ));
    let help =
        "remove it; set `image_from_job` of the provider, or give each image a pool, which a rule chooses";
    Some(problem.at(Place::name_of(format!("pool.{name}.containers")), "here").help(help))
}
