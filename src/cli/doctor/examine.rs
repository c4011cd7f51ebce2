//! Runs all checks, as far as the findings permit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::ids::PoolName;
use greenroom_core::instance::Instance;
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::{ManagerId, Stamp};
use greenroom_manager::runner_host::{KeeperCommand, LocalHost, Role, Signals, StateDir, SystemClock};
use greenroom_ports::attempts::Attempts as _;
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Finding;
use greenroom_ports::host_keys::Unconnected;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::provider::{Demand, Provider};
use greenroom_ports::reports::Reports as _;
use greenroom_ports::store::{OperatorStore, StoreError};
use greenroom_ssh::link::Survey;

use super::clock::ClockFacts;
use super::keeper::KeeperFacts;
use super::pools::PoolFacts;
use super::provider::Checked;
use super::runner::{PoolNeeds, RunnerFacts};
use super::{
    Examination, clock, config, containers, hosts, keeper, links, metrics, notify, place, pools, provider,
    recorded, repair, runner, trial,
};
use crate::cli::args::DoctorOptions;
use crate::cli::context;
use crate::cli::error::CliError;
use crate::cli::metrics::server::ADDRESS_FILE;
use crate::cli::pool::reader::LINKS_WITHIN;
use crate::cli::pool::status::KeeperStatus;
use crate::cli::reporting::Reporting;
use crate::cli::setup::ProviderContext;
use crate::cli::stores::{self, PoolStore, StoreOptions};
use crate::cli::when::When;
use crate::config::{Config, MetricsAddress, PoolConfig};

/// The state directory, unless the command line or the configuration names another.
const STATE_DIR: &str = "/var/lib/greenroom";
/// A lock is held for milliseconds; doctor need not wait as long as a job.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// The paths to check.
#[derive(Debug)]
pub(super) struct CheckPaths<'a> {
    pub(super) config: &'a Path,
    /// Overrides the configuration's.
    pub(super) state_dir: Option<&'a Path>,
    /// The path of `greenroom`.
    pub(super) program: &'a Path,
    pub(super) unit_dirs: &'a [&'a Path],
    pub(super) has_systemd: bool,
}

/// One pool's recorded part.
#[derive(Debug)]
struct Pool {
    name: PoolName,
    state: PoolState,
    report: Option<Report>,
}

/// Does the requested repairs, then the checks.
pub(super) async fn examine(
    ground: &CheckPaths<'_>,
    options: &DoctorOptions,
) -> Result<Examination, CliError> {
    let mut examined = Examination::default();
    let (config, found) = config::check(ground.config);
    examined.add("configuration", found);
    let configured = config.as_ref().map(|config| config.state_dir.as_path());
    let state_path = ground.state_dir.or(configured).unwrap_or(Path::new(STATE_DIR));
    let state_path = std::path::absolute(state_path)?;
    let (state, found) = place::open(&state_path);
    let wants_change = options.repair || options.take_over || options.new_owner;
    if wants_change && state.is_none() {
        let why = found.first().map_or("it does not exist".to_owned(), |finding| finding.message.clone());
        return Err(CliError::system(format!("cannot repair `{}`: {why}", state_path.display())));
    }
    let is_expected = |finding: &Finding| finding.code == super::code::STATE_DIR_MISSING.name;
    let found = found.into_iter().filter(|finding| !options.new_installation || !is_expected(finding));
    examined.add("state directory", found);
    if let Some(state) = &state {
        examined.add("state directory", trial::check(state.root()));
    }
    let machine = SystemClock::new(ManagerId::default());
    let around = machine.as_ref().ok().map(|clock| ProviderContext {
        state_dir: state_path.clone(),
        program: ground.program.to_owned(),
        clock: Rc::new(*clock),
    });
    let (policies, built) = match &around {
        Some(around) => providers(config.as_ref(), around, &mut examined),
        None => Default::default(),
    };
    if let (Some(config), Some(around)) = (&config, &around) {
        for pool in config.pools.values().filter(|pool| has_hosts(pool)) {
            let ssh = context::ssh(&state_path);
            let context = around.of(pool, Rc::new(Unconnected));
            examined.add("hosts", hosts::check(pool, &context, &ssh).await);
        }
    }
    let mut seen = Vec::new();
    if let (Some(state), Ok(clock)) = (state, &machine) {
        let checks = RecordedChecks {
            ground,
            config: config.as_ref(),
            policies: &policies,
            when: When::local(clock.now()),
        };
        seen = checks.at_state(state, options, &mut examined).await?;
    }
    if !built.is_empty() {
        examined.add("providers", examine_providers(&built, &policies, &seen).await);
    }
    let facts = ClockFacts {
        now: machine.as_ref().map(Clock::now).map_err(ToString::to_string),
        installed_ms: installed(ground.program),
        newest: newest(&seen),
    };
    examined.add("clocks", clock::check(&facts));
    if let Some(config) = &config {
        for address in addresses(config, &state_path) {
            let pools = config.pools.values().filter(|pool| built.contains_key(&pool.name));
            examined.add("metrics", metrics::check(&address, pools));
        }
        if let Some(notify) = &config.notify {
            let notices = crate::cli::notify::read(&state_path);
            let failed = machine.as_ref().ok().and_then(|clock| notify::deliveries(&notices, clock.now()));
            examined.add("notices", notify::check(notify).chain(failed));
        }
    }
    for pool in config.iter().flat_map(|config| config.pools.values()) {
        if let Some(settings) = &pool.containers {
            examined.add("containers", containers::check(pool, settings));
        }
    }
    let needs = config.as_ref().map(needs).unwrap_or_default();
    if config.is_some() {
        let facts = RunnerFacts { path: &options.runner_config, config: ground.config, pools: &needs };
        examined.add("runner", runner::check(&facts));
    }
    Ok(examined)
}

/// Where metrics are served: as configured, and where a keeper serves them now.
fn addresses(config: &Config, state_path: &Path) -> Vec<MetricsAddress> {
    let served = std::fs::read_to_string(state_path.join(ADDRESS_FILE)).ok();
    let served = served.and_then(|text| text.trim().parse().ok());
    let mut all: Vec<MetricsAddress> = config.metrics.clone().into_iter().chain(served).collect();
    all.dedup();
    all
}

fn has_hosts(pool: &PoolConfig) -> bool {
    crate::provider::find(&pool.provider.kind).is_ok_and(|known| !known.launches())
}

type Policies = BTreeMap<PoolName, Policy>;
type Built = BTreeMap<PoolName, Rc<dyn Provider>>;

/// The findings about each pool's provider, its policy, and the providers that can be called.
fn providers(
    config: Option<&Config>,
    around: &ProviderContext,
    examined: &mut Examination,
) -> (Policies, Built) {
    let (mut policies, mut built) = (Policies::new(), Built::new());
    for (config, pool) in
        config.iter().flat_map(|config| config.pools.values().map(move |pool| (config, pool)))
    {
        let Checked { policy, found, provider } = provider::check(config, pool, around);
        examined.add("providers", found);
        policies.insert(pool.name.clone(), policy);
        built.extend(provider.map(|provider| (pool.name.clone(), provider)));
    }
    (policies, built)
}

/// The checks of providers that need calls, concurrently.
async fn examine_providers(built: &Built, policies: &Policies, seen: &[Pool]) -> Vec<Finding> {
    let examinations =
        built.iter().filter_map(|(name, provider)| Some((name, provider, policies.get(name)?)));
    let examinations = examinations.map(async |(name, provider, policy)| {
        let recorded = seen.iter().find(|pool| pool.name == *name).map_or(0, |pool| pool.state.alive());
        let max_lifetime = policy.max_lifetime.map(|limit| limit.0);
        let idle_stopped = policy.idle_stopped;
        let demand = Demand { max_instances: policy.max_instances, recorded, max_lifetime, idle_stopped };
        provider::examine(name, &**provider, &demand, provider::CALLS_WITHIN).await
    });
    join_all(examinations).await.concat()
}

/// What the checks of the recorded state share.
struct RecordedChecks<'a> {
    ground: &'a CheckPaths<'a>,
    config: Option<&'a Config>,
    policies: &'a BTreeMap<PoolName, Policy>,
    when: When,
}

impl RecordedChecks<'_> {
    /// Does the requested repairs, then checks everything in the state directory.
    async fn at_state(
        &self,
        state: StateDir,
        options: &DoctorOptions,
        examined: &mut Examination,
    ) -> Result<Vec<Pool>, CliError> {
        let root = state.root().to_owned();
        let nothing: [&str; 0] = [];
        // Doctor starts no keeper.
        let command = KeeperCommand::new(self.ground.program, nothing, Vec::new);
        let host = LocalHost::open(state, Role::Operator, command, Signals::default_actions())?;
        let stores = match pool_stores(&root).await {
            Ok(stores) => stores,
            Err(error) => {
                examined.add(
                    "pools",
                    [super::code::STATE_UNREADABLE.found(error.to_string(), "correct this first")],
                );
                Vec::new()
            }
        };
        repair::repair(options, &host, &stores, examined).await?;
        let owner = root.join("owner").exists();
        examined.add(
            "state directory",
            owner.then_some(host.identity().await).as_ref().and_then(place::identity),
        );
        let mut seen = Vec::new();
        for (name, store) in &stores {
            // Before the state: an instance that is recorded meanwhile has no link yet.
            let survey = Survey::query(&context::links_dir(&root, name), LINKS_WITHIN).await;
            let pool = self.at_pool(name, &**store, &host, examined).await;
            examined.add("links", links::check(name, pool.as_ref().map(|pool| &pool.state), &survey));
            if let Some(line) = links::line(name, &survey) {
                examined.saw(line);
            }
            seen.extend(pool);
        }
        let keeper = match host.keeper_lives().await {
            Ok(true) => KeeperStatus::Runs,
            Ok(false) => KeeperStatus::Absent,
            Err(error) => KeeperStatus::Unknown(error.to_string()),
        };
        let reporting = Reporting::read(&root, &keeper);
        reporting.lines(self.when.now()).into_iter().for_each(|line| examined.saw(line));
        if let Some(wanted) = self.config.and_then(|config| config.metrics.as_ref()) {
            examined.add("metrics", metrics::missing(wanted, reporting.serves_metrics(), &keeper));
        }
        self.at_rest(&seen, keeper, examined);
        Ok(seen)
    }

    async fn at_pool(
        &self,
        name: &PoolName,
        store: &dyn OperatorStore,
        host: &LocalHost,
        examined: &mut Examination,
    ) -> Option<Pool> {
        let (state, found) = recorded::check(store, name).await;
        examined.add("pools", found);
        let unreadable =
            |error: String| super::code::STATE_UNREADABLE.found(error, "run doctor as the user that owns it");
        let report = host.read_report(name).await.unwrap_or_else(|error| {
            examined.add("pools", [unreadable(error.to_string())]);
            None
        });
        let attempts = host.attempts_of(name).await.unwrap_or_else(|error| {
            examined.add("attempts", [unreadable(error.to_string())]);
            BTreeMap::new()
        });
        let state = state?;
        let facts = PoolFacts {
            pool: name,
            configured: self.policies.get(name),
            config_read: self.config.is_some(),
            state: &state,
            report: report.as_ref(),
            attempts: &attempts,
        };
        examined.add("attempts", []);
        examined.add("pools", pools::check(&facts, &self.when));
        Some(Pool { name: name.clone(), state, report })
    }

    /// Configured pools without state, and the keeper of all pools.
    fn at_rest(&self, seen: &[Pool], keeper: KeeperStatus, examined: &mut Examination) {
        let known: BTreeSet<&PoolName> = seen.iter().map(|pool| &pool.name).collect();
        let (state, attempts) = (PoolState::default(), BTreeMap::new());
        for (pool, policy) in self.policies.iter().filter(|(name, _)| !known.contains(name)) {
            let (configured, state, attempts) = (Some(policy), &state, &attempts);
            let facts = PoolFacts { pool, configured, config_read: true, state, report: None, attempts };
            examined.add("pools", pools::check(&facts, &self.when));
        }
        let under_way =
            |pool: &Pool| pool.state.instances.values().filter(|i| Instance::is_under_way(i)).count();
        let next = |pool: &Pool| Some((pool.name.clone(), pool.report.as_ref()?.next?));
        let units = keeper::units(self.ground.unit_dirs);
        let keeping = KeeperFacts {
            keeper,
            waiting: seen.iter().map(|pool| pool.state.waiting.len()).sum(),
            under_way: seen.iter().map(under_way).sum(),
            next_passes: seen.iter().filter_map(next).collect(),
            has_systemd: self.ground.has_systemd,
            enabled: keeper::is_enabled(&units, self.ground.unit_dirs),
            units,
        };
        examined.add("keeper", keeper::check(&keeping, &self.when));
    }
}

/// The stores of pools that have state; none is made.
async fn pool_stores(root: &Path) -> Result<Vec<PoolStore>, StoreError> {
    let stores = stores::open(root, StoreOptions { lock_timeout: LOCK_WAIT, ..StoreOptions::default() })?;
    stores.pools().await?.into_iter().map(|pool| Ok((pool.clone(), stores.store(&pool)?))).collect()
}

/// The last pass, launch, request or grant of any pool.
fn newest(seen: &[Pool]) -> Option<Stamp> {
    let of_pool = |pool: &Pool| {
        let state = &pool.state;
        let instances: Vec<Stamp> = state.instances.values().map(|i| i.since).collect();
        let requests: Vec<Stamp> = state.waiting.values().map(|r| r.requested_at).collect();
        pool.report.iter().map(|r| r.at).chain(instances).chain(requests).collect::<Vec<Stamp>>()
    };
    seen.iter().flat_map(of_pool).max_by_key(|stamp| stamp.wall_ms)
}

fn installed(program: &Path) -> Option<i64> {
    let modified = std::fs::metadata(program).ok()?.modified().ok()?;
    let age = modified.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
    i64::try_from(age.as_millis()).ok()
}

fn needs(config: &Config) -> BTreeMap<PoolName, PoolNeeds> {
    let of_pool = |pool: &crate::config::PoolConfig| PoolNeeds {
        slots: u64::from(pool.policy.max_instances) * u64::from(pool.policy.capacity_per_instance),
        shell: pool.shell.as_str(),
        acquire_timeout: pool.policy.timing.acquire_timeout,
        stop_grace: pool.policy.timing.stop_grace,
        pull_timeout: pool.containers.as_ref().map(|containers| containers.pull_timeout),
    };
    config.pools.iter().map(|(name, pool)| (name.clone(), of_pool(pool))).collect()
}

/// The codes of all findings, for tests of the whole.
#[cfg(test)]
pub(super) fn codes(examined: &Examination) -> Vec<&'static str> {
    examined.findings.iter().map(|finding| finding.code).collect()
}

#[cfg(test)]
mod tests;
