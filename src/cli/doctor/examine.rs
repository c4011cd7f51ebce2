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

use super::clock::{self, ClockFacts};
use super::keeper::{self, KeeperFacts};
use super::pools::{self, PoolFacts};
use super::provider::{self, CheckedProvider};
use super::runner::{self, PoolNeeds, RunnerFacts};
use super::{Examination, config, containers, hosts, links, recorded, repair, reporting, state_dir};
use crate::cli::args::DoctorOptions;
use crate::cli::context::{self, PoolStore, StoreOptions};
use crate::cli::error::CliError;
use crate::cli::metrics::server::served_address;
use crate::cli::read_model::{self, KeeperStatus};
use crate::cli::reporting::Reporting;
use crate::cli::setup::ProviderContext;
use crate::cli::when::When;
use crate::config::{Config, MetricsAddress, PoolConfig, default_state_dir};

/// A lock is held for milliseconds; doctor need not wait as long as a job.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// The paths to check.
#[derive(Debug)]
pub(super) struct CheckPaths<'a> {
    pub(super) config: &'a Path,
    /// The state directory that overrides the configuration's.
    pub(super) state_dir: Option<&'a Path>,
    /// The path of `greenroom`.
    pub(super) program: &'a Path,
    pub(super) unit_dirs: &'a [&'a Path],
    pub(super) has_systemd: bool,
}

/// One pool's recorded part.
#[derive(Debug)]
struct RecordedPool {
    name: PoolName,
    state: PoolState,
    report: Option<Report>,
}

/// Does the requested repairs, then the checks.
pub(super) async fn examine(
    paths: &CheckPaths<'_>,
    options: &DoctorOptions,
) -> Result<Examination, CliError> {
    let mut examined = Examination::default();
    let (config, found) = config::check(paths.config);
    examined.add("configuration", found);
    let configured = config.as_ref().map(|config| config.state_dir.as_path());
    let state_path = paths.state_dir.or(configured).unwrap_or(default_state_dir());
    let state_path = std::path::absolute(state_path)?;
    let (state, found) = state_dir::open(&state_path);
    // A repair that is impossible is an error, not a finding: the operator has asked for it.
    let wants_change = options.repair || options.take_over || options.new_owner;
    if wants_change && state.is_none() {
        let why = found.first().map_or("it does not exist".to_owned(), |finding| finding.message.clone());
        return Err(CliError::system(format!("cannot repair `{}`: {why}", state_path.display())));
    }
    // `init` examines a new installation before any call has made the state directory.
    let is_expected = |finding: &Finding| finding.code == super::code::STATE_DIR_MISSING.name;
    let found = found.into_iter().filter(|finding| !options.new_installation || !is_expected(finding));
    examined.add("state directory", found);
    if let Some(state) = &state {
        examined.add("state directory", state_dir::check_file_system(state.root()));
    }
    // Without a clock, the checks that need the time are left out; the check of the clocks reports why.
    let machine = SystemClock::new(ManagerId::default());
    let around = machine.as_ref().ok().map(|clock| ProviderContext {
        state_dir: state_path.clone(),
        program: paths.program.to_owned(),
        clock: Rc::new(*clock),
    });
    // The policies come before the records, which are compared with them.
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
            paths,
            config: config.as_ref(),
            policies: &policies,
            when: When::local(clock.now()),
        };
        seen = checks.at_state(state, options, &mut examined).await?;
    }
    // The calls come after the records: a provider is asked for room beside what is recorded.
    if !built.is_empty() {
        examined.add("providers", examine_providers(&built, &policies, &seen).await);
    }
    let facts = ClockFacts {
        now: machine.as_ref().map(Clock::now).map_err(Clone::clone),
        installed_ms: installed(paths.program),
        newest: newest(&seen),
    };
    examined.add("clocks", clock::check(&facts));
    if let Some(config) = &config {
        for address in addresses(config, &state_path) {
            let pools = config.pools.values().filter(|pool| built.contains_key(&pool.name));
            examined.add("metrics", reporting::check_metrics(&address, pools));
        }
        if let Some(notify) = &config.notify {
            let notices = crate::cli::notify::read(&state_path);
            let failed =
                machine.as_ref().ok().and_then(|clock| reporting::failed_delivery(&notices, clock.now()));
            examined.add("notices", reporting::check_notify(notify).chain(failed));
        }
    }
    for pool in config.iter().flat_map(|config| config.pools.values()) {
        if let Some(settings) = &pool.containers {
            examined.add("containers", containers::check(pool, settings));
        }
    }
    let needs = config.as_ref().map(needs).unwrap_or_default();
    if config.is_some() {
        let facts = RunnerFacts { path: &options.runner_config, config: paths.config, pools: &needs };
        examined.add("runner", runner::check(&facts));
    }
    Ok(examined)
}

/// The addresses of metrics: the configured one, and the one at which a keeper serves them now.
fn addresses(config: &Config, state_path: &Path) -> Vec<MetricsAddress> {
    let served = served_address(state_path).and_then(|text| text.parse().ok());
    let mut all: Vec<MetricsAddress> = config.metrics.clone().into_iter().chain(served).collect();
    all.dedup();
    all
}

fn has_hosts(pool: &PoolConfig) -> bool {
    crate::provider::find(&pool.provider.kind).is_ok_and(|known| !known.launches())
}

type Policies = BTreeMap<PoolName, Policy>;
type BuiltProviders = BTreeMap<PoolName, Rc<dyn Provider>>;

/// The findings about each pool's provider, its policy, and the providers that can be called.
fn providers(
    config: Option<&Config>,
    around: &ProviderContext,
    examined: &mut Examination,
) -> (Policies, BuiltProviders) {
    let mut policies = Policies::new();
    let mut built = BuiltProviders::new();
    for (config, pool) in
        config.iter().flat_map(|config| config.pools.values().map(move |pool| (config, pool)))
    {
        let CheckedProvider { policy, found, provider } = provider::check(config, pool, around);
        examined.add("providers", found);
        policies.insert(pool.name.clone(), policy);
        built.extend(provider.map(|provider| (pool.name.clone(), provider)));
    }
    (policies, built)
}

/// The checks of providers that need calls, concurrently.
async fn examine_providers(
    built: &BuiltProviders,
    policies: &Policies,
    seen: &[RecordedPool],
) -> Vec<Finding> {
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

/// The checks of the recorded state, with the facts that they share.
struct RecordedChecks<'a> {
    paths: &'a CheckPaths<'a>,
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
    ) -> Result<Vec<RecordedPool>, CliError> {
        let root = state.root().to_owned();
        let nothing: [&str; 0] = [];
        // Doctor starts no keeper.
        let command = KeeperCommand::new(self.paths.program, nothing, Vec::new);
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
        // The repairs come first: they change the owner, and make state readable that the checks below need.
        repair::repair(options, &host, &stores, examined).await?;
        // A directory without an owner has no identity; the check of the directory reports a lost one.
        let owner = root.join("owner").exists();
        examined.add(
            "state directory",
            owner.then_some(host.identity().await).as_ref().and_then(state_dir::identity),
        );
        let mut seen = Vec::new();
        for (name, store) in &stores {
            // Before the state: an instance that is recorded meanwhile has no link yet.
            let survey = read_model::links(&root, name).await;
            let pool = self.at_pool(name, &**store, &host, examined).await;
            examined.add("links", links::check(name, pool.as_ref().map(|pool| &pool.state), &survey));
            if let Some(line) = links::line(name, &survey) {
                examined.saw(line);
            }
            seen.extend(pool);
        }
        let keeper = KeeperStatus::read(&host).await;
        let reporting = Reporting::read(&root, &keeper);
        reporting.lines(self.when.now()).into_iter().for_each(|line| examined.saw(line));
        if let Some(wanted) = self.config.and_then(|config| config.metrics.as_ref()) {
            examined.add("metrics", reporting::missing_metrics(wanted, reporting.serves_metrics(), &keeper));
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
    ) -> Option<RecordedPool> {
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
        Some(RecordedPool { name: name.clone(), state, report })
    }

    /// Configured pools without state, and the keeper of all pools.
    fn at_rest(&self, seen: &[RecordedPool], keeper: KeeperStatus, examined: &mut Examination) {
        let known: BTreeSet<&PoolName> = seen.iter().map(|pool| &pool.name).collect();
        let state = PoolState::default();
        let attempts = BTreeMap::new();
        for (pool, policy) in self.policies.iter().filter(|(name, _)| !known.contains(name)) {
            let configured = Some(policy);
            let state = &state;
            let attempts = &attempts;
            let facts = PoolFacts { pool, configured, config_read: true, state, report: None, attempts };
            examined.add("pools", pools::check(&facts, &self.when));
        }
        let under_way =
            |pool: &RecordedPool| pool.state.instances.values().filter(|i| Instance::is_under_way(i)).count();
        let next = |pool: &RecordedPool| Some((pool.name.clone(), pool.report.as_ref()?.next?));
        let units = keeper::units(self.paths.unit_dirs);
        let keeping = KeeperFacts {
            keeper,
            waiting: seen.iter().map(|pool| pool.state.waiting.len()).sum(),
            under_way: seen.iter().map(under_way).sum(),
            next_passes: seen.iter().filter_map(next).collect(),
            has_systemd: self.paths.has_systemd,
            enabled: keeper::is_enabled(&units, self.paths.unit_dirs),
            units,
        };
        examined.add("keeper", keeper::check(&keeping, &self.when));
    }
}

/// The stores of pools that have state; none is made.
async fn pool_stores(root: &Path) -> Result<Vec<PoolStore>, StoreError> {
    let stores =
        context::open_stores(root, StoreOptions { lock_timeout: LOCK_WAIT, ..StoreOptions::default() })?;
    stores.pools().await?.into_iter().map(|pool| Ok((pool.clone(), stores.store(&pool)?))).collect()
}

/// The last pass, launch, request or grant of any pool.
fn newest(seen: &[RecordedPool]) -> Option<Stamp> {
    let of_pool = |pool: &RecordedPool| {
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
        slots: pool.slots(),
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
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use greenroom_ports::finding::Severity;

    use super::*;
    use crate::cli::fixture::{EventFixture, pool};

    struct Bench {
        home: tempfile::TempDir,
        program: PathBuf,
    }

    impl Bench {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let program = home.path().join("greenroom");
            fs::write(&program, "").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let bench = Self { home, program };
            let config = "[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"\nallow_root = true\n";
            bench.write("greenroom.toml", config);
            let exec = |name: &str| {
                let program = bench.program.display();
                format!("{name}_exec = \"{program}\"\n{name}_args = [\"{name}\"]\n")
            };
            let execs: String = ["config", "prepare", "run", "cleanup"].map(exec).concat();
            let runner = format!(
                "concurrent = 4\n[[runners]]\nexecutor = \"custom\"\nlimit = 4\n[runners.custom]\n{execs}graceful_kill_timeout = 60\n"
            );
            bench.write("config.toml", &runner);
            bench.write("greenroom.service", "ExecStart=/usr/bin/greenroom keep\n");
            fs::create_dir(bench.path("multi-user.target.wants")).unwrap();
            bench.write("multi-user.target.wants/greenroom.service", "");
            bench
        }

        fn path(&self, name: &str) -> PathBuf {
            self.home.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }

        /// Makes the state directory, with one instance in it.
        async fn used(self) -> Self {
            StateDir::open(&self.path("state")).unwrap();
            let stores = context::open_stores(&self.path("state"), StoreOptions::default()).unwrap();
            let store = stores.store(&pool()).unwrap();
            let policy = Policy { max_instances: 4, ..Policy::default() };
            let now = SystemClock::new(ManagerId::default()).unwrap().now();
            for event in EventFixture::of(policy).ready(1, 1.0).events.clone() {
                let event = event.change.at(now);
                store.transact(&mut |_| vec![event.clone()]).await.unwrap();
            }
            self
        }

        async fn examine(&self, options: impl FnOnce(&mut DoctorOptions)) -> Result<Examination, CliError> {
            let config = self.path("greenroom.toml");
            let state = self.path("state");
            let paths = CheckPaths {
                config: &config,
                state_dir: Some(&state),
                program: &self.program,
                unit_dirs: &[self.home.path()],
                has_systemd: true,
            };
            let mut given = DoctorOptions {
                pin: None,
                clean_script: None,
                boot: None,
                pool: None,
                yes: false,
                runner_config: self.path("config.toml"),
                repair: false,
                new_installation: false,
                take_over: false,
                new_owner: false,
                json: false,
            };
            options(&mut given);
            examine(&paths, &given).await
        }

        /// The codes of the findings, without those that depend on where tests run.
        async fn codes(&self) -> Vec<&'static str> {
            let examined = self.examine(|_| ()).await.unwrap();
            let of_place = ["state-dir-ephemeral", "state-dir-space"];
            codes(&examined).into_iter().filter(|code| !of_place.contains(code)).collect()
        }
    }

    #[tokio::test]
    async fn a_sound_set_up_has_no_finding_but_its_providers_own() {
        let bench = Bench::new().used().await;
        assert_eq!(bench.codes().await, ["local-no-isolation"]);
        let examined = bench.examine(|_| ()).await.unwrap();
        let expected = [
            "configuration",
            "state directory",
            "providers",
            "pools",
            "attempts",
            "links",
            "keeper",
            "clocks",
            "runner",
        ];
        assert_eq!(examined.checked, expected);
        assert!(!examined.is_bad());
    }

    #[tokio::test]
    async fn a_first_look_makes_nothing() {
        let bench = Bench::new();
        assert_eq!(bench.codes().await, ["state-dir-missing", "local-no-isolation"]);
        assert!(!bench.path("state").exists());
    }

    #[tokio::test]
    async fn a_wrong_configuration_does_not_keep_from_looking_further() {
        let bench = Bench::new().used().await;
        bench.write("greenroom.toml", "[pool.linux]\nmax_instances = \"four\"\n");
        let journal = bench.path("state/pools/linux/journal.jsonl");
        let text = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();
        assert_eq!(bench.codes().await, ["config-invalid", "state-damaged"]);
        assert!(bench.examine(|_| ()).await.unwrap().is_bad());
    }

    #[tokio::test]
    async fn repair_mends_and_then_looks() {
        let bench = Bench::new().used().await;
        let journal = bench.path("state/pools/linux/journal.jsonl");
        let text = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, text.replacen("launch-answered", "launch-ansWered", 1)).unwrap();
        let examined = bench.examine(|o| o.repair = true).await.unwrap();
        assert_eq!(examined.repaired.len(), 1);
        let found = codes(&examined);
        assert!(found.contains(&"state-backup-files") && !found.contains(&"state-damaged"), "{found:?}");
        // The launch whose answer was lost with the damage is in progress again, and no keeper is running.
        assert_eq!(found[0], "keeper-missing");
    }

    #[tokio::test]
    async fn what_cannot_be_mended_is_an_error_of_its_own() {
        let bench = Bench::new();
        let error = bench.examine(|o| o.new_owner = true).await.unwrap_err().for_operator();
        assert!(error.contains("cannot repair") && error.contains("does not exist"), "{error}");
    }

    #[tokio::test]
    async fn a_lost_owner_is_found_and_made_anew_on_demand() {
        let bench = Bench::new().used().await;
        fs::write(bench.path("state/generations"), "0123abcd\n").unwrap();
        fs::remove_file(bench.path("state/owner")).unwrap();
        assert!(bench.codes().await.contains(&"owner-missing"));
        let examined = bench.examine(|o| o.new_owner = true).await.unwrap();
        assert_eq!(examined.repaired.len(), 1);
        assert!(!bench.codes().await.contains(&"owner-missing"));
    }

    #[tokio::test]
    async fn the_text_of_an_examination_shows_no_key() {
        let bench = Bench::new().used().await;
        let examined = bench.examine(|_| ()).await.unwrap();
        for shown in [examined.text(80), examined.json().to_string()] {
            assert!(!shown.contains("SECRET"), "{shown}");
        }
        assert!(examined.findings.iter().all(|f| f.severity < Severity::Error));
    }
}
