//! One pool's part of the configuration, read again when the file has changed.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::PoolName;
use greenroom_core::text::with_causes;
use greenroom_keys::problem::{Place, Problems};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_keys::HostKeys;
use greenroom_ports::setup::{CLOUD_INIT, Cleaning, PoolSetup, Pulls, Recheck, Setup};
use greenroom_providers::registration::{BuildContext, Calls, CleanDirs, Registration, StaticHostCalls};

use super::containers::PoolPulls;
use super::context::FileMark;
use super::error::CliError;
use super::job::builds_root;
use super::program::calls;
use crate::config::{Config, ConfigError, Diagnostics, PoolConfig, ProviderFacts};
use crate::provider;

/// The input of a provider that is the same for all pools.
#[derive(Clone)]
pub(super) struct ProviderContext {
    pub state_dir: PathBuf,
    pub program: PathBuf,
    pub clock: Rc<dyn Clock>,
}

impl std::fmt::Debug for ProviderContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProviderContext").field("state_dir", &self.state_dir).finish_non_exhaustive()
    }
}

impl ProviderContext {
    /// The input of a pool's provider in addition to its table. `host_keys`: how it learns the keys that only instances can
    /// show.
    pub(super) fn of(&self, pool: &PoolConfig, host_keys: Rc<dyn HostKeys>) -> BuildContext {
        BuildContext {
            pool: pool.name.clone(),
            state_dir: self.state_dir.clone(),
            program: self.program.clone(),
            containers: pool.needs_podman(),
            pulls: pool.containers.clone().map(|settings| Rc::new(PoolPulls(settings)) as Rc<dyn Pulls>),
            clock: Rc::clone(&self.clock),
            host_keys,
        }
    }

    /// [`of`](Self::of) for a provider that may connect to instances.
    pub(super) fn connected(&self, pool: &PoolConfig) -> BuildContext {
        self.of(pool, Rc::new(super::context::ssh(&self.state_dir)))
    }
}

/// The [`Setup`] of a pool in a configuration file, which is read again when it has changed.
#[derive(Debug)]
pub(super) struct FileSetup {
    path: PathBuf,
    pool: PoolName,
    around: ProviderContext,
    /// The program that made its calls when this process started.
    calls: Option<Calls>,
    last: RefCell<LastSetup>,
}

/// The last valid configuration of a [`FileSetup`], and what was read last.
#[derive(Debug)]
struct LastSetup {
    bytes: Vec<u8>,
    /// The small files that the provider's table names, such as keys and credentials.
    files: Vec<(PathBuf, Option<FileMark>)>,
    setup: PoolSetup,
    problem: Option<String>,
}

/// Files above this are no credentials, but images.
const LARGEST_CREDENTIALS: u64 = 1 << 20;

/// The files that a provider's table names. Programs do not count.
fn named_files(table: &toml::Table) -> Vec<(PathBuf, Option<FileMark>)> {
    fn paths(value: &toml::Value, found: &mut Vec<PathBuf>) {
        match value {
            toml::Value::String(text) if text.starts_with('/') => found.push(text.into()),
            toml::Value::Array(all) => all.iter().for_each(|value| paths(value, found)),
            toml::Value::Table(table) => table.values().for_each(|value| paths(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    table.values().for_each(|value| paths(value, &mut found));
    let is_data = |path: &PathBuf| {
        std::fs::metadata(path).map_or(true, |file| {
            file.is_file() && file.mode() & 0o111 == 0 && file.size() <= LARGEST_CREDENTIALS
        })
    };
    found.retain(is_data);
    found.into_iter().map(|path| (path.clone(), FileMark::of(&path))).collect()
}

impl FileSetup {
    /// The setup of a pool in a valid configuration that has just been read.
    pub(super) fn new(
        path: &Path,
        config: &Config,
        pool: &PoolConfig,
        around: ProviderContext,
    ) -> Result<Self, CliError> {
        let bytes = fs_err::read(path)?;
        let files = named_files(&pool.provider.table);
        let setup = build(config, pool, &around)?;
        let last = RefCell::new(LastSetup { bytes, files, setup, problem: None });
        Ok(Self { path: path.to_owned(), pool: pool.name.clone(), around, calls: calls(pool), last })
    }

    /// Reads the file if its bytes have changed, or a file that it names; returns the error in it, if any.
    fn read(&self, known: &LastSetup) -> Option<ReadSetup> {
        let is_same = |(path, at): &(PathBuf, Option<FileMark>)| FileMark::of(path) == *at;
        let bytes = match fs_err::read(&self.path) {
            Ok(bytes) if bytes == known.bytes && known.files.iter().all(is_same) => return None,
            Ok(bytes) => bytes,
            Err(error) => {
                return Some(ReadSetup {
                    bytes: Vec::new(),
                    files: None,
                    setup: Err(SetupError::Read(error)),
                });
            }
        };
        let mut files = None;
        let setup = Config::read(&self.path).map_err(SetupError::Config).and_then(|(config, _)| {
            let pool = config.pools.get(&self.pool);
            let pool = pool.ok_or_else(|| SetupError::NotConfigured(self.pool.clone()))?;
            files = Some(named_files(&pool.provider.table));
            if calls(pool) == Some(Calls::Delegated) && self.calls != Some(Calls::Delegated) {
                // A process that can make calls does not change to one that cannot (src/cli/keep.rs).
                return Err(SetupError::NeedsBackends(self.pool.clone()));
            }
            build(&config, pool, &self.around).map_err(SetupError::Build)
        });
        Some(ReadSetup { bytes, files, setup })
    }
}

/// The reasons for which the present file gives no setup. Each sentence is one line, and quotes no line of the file.
#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error(transparent)]
    Read(io::Error),
    #[error("{}", with_causes(.0))]
    Config(ConfigError),
    #[error("pool `{0}` is no longer in the configuration")]
    NotConfigured(PoolName),
    #[error("the provider of pool `{0}` now needs the program `greenroom-backends`")]
    NeedsBackends(PoolName),
    #[error("{}", .0.in_a_line())]
    Build(CliError),
}

/// A changed file, as [`FileSetup::read`] found it.
struct ReadSetup {
    bytes: Vec<u8>,
    /// The files that the provider's table names; `None`: the configuration cannot be read, or lacks the pool.
    files: Option<Vec<(PathBuf, Option<FileMark>)>>,
    setup: Result<PoolSetup, SetupError>,
}

#[async_trait(?Send)]
impl Setup for FileSetup {
    async fn current(&self) -> (PoolSetup, Option<String>) {
        let read = self.read(&self.last.borrow());
        let mut last = self.last.borrow_mut();
        if let Some(ReadSetup { bytes, files, setup }) = read {
            last.bytes = bytes;
            last.files = files.unwrap_or_else(|| {
                last.files.iter().map(|(path, _)| (path.clone(), FileMark::of(path))).collect()
            });
            match setup {
                Ok(setup) => (last.setup, last.problem) = (setup, None),
                Err(problem) => last.problem = Some(problem.to_string()),
            }
        }
        (last.setup.clone(), last.problem.clone())
    }
}

/// The value of `recheck_command` that stands for the pool's `ready_command`.
const READY_COMMAND: &str = "ready_command";

/// Checks, without starting anything, whether an account can run containers.
const ROOTLESS: &str = include_str!("rootless.sh");

/// The provider and the policy of a pool.
pub(super) fn build(
    config: &Config,
    pool: &PoolConfig,
    around: &ProviderContext,
) -> Result<PoolSetup, CliError> {
    let invalid = |problems: Problems| CliError::config(config.diagnostics(problems).into());
    let registration = provider::find(&pool.provider.kind).map_err(|unknown| {
        let kind = Place::value_of(format!("{}.kind", pool.provider.path));
        invalid(unknown.at(kind, "not defined").into())
    })?;
    let context = around.connected(pool);
    let provider = (registration.build)(&context, &pool.provider.table).map_err(invalid)?;
    let launches = registration.launches();
    if let Some(objection) = objection(config, pool, registration) {
        return Err(CliError::config(objection.into()));
    }
    let mut policy = pool.policy_where(launches, registration.lifetime);
    let cleaning = match registration.static_hosts {
        Some(static_hosts) => cleaning(static_hosts, pool).map_err(invalid)?.map(Rc::new),
        None => None,
    };
    policy.clean_unbinds = unbinds(pool, cleaning.as_deref());
    let ready_command = ready_command(pool, registration);
    let recheck = Recheck {
        builds_dir: builds_root(pool, &around.state_dir)?,
        command: recheck_command(pool, ready_command.as_deref()),
    };
    Ok(PoolSetup {
        shell: stage_shell(pool),
        recheck,
        cleaning,
        policy: Arc::new(policy),
        provider,
        ready_command,
        clean_command: pool.clean_command.clone(),
        pulls: context.pulls,
    })
}

/// The mistake in a pool's settings that depends on what its provider can do. All commands that use a pool refuse the same.
pub(super) fn objection(
    config: &Config,
    pool: &PoolConfig,
    registration: &Registration,
) -> Option<Diagnostics> {
    let Registration { suspends, engines, static_hosts, .. } = *registration;
    let cleaning = static_hosts.and_then(|hosts| cleaning(hosts, pool).ok()?);
    let stays_bound = static_hosts.is_some() && !unbinds(pool, cleaning.as_ref());
    let disposable = registration.launches();
    config.objection(pool, ProviderFacts { disposable, suspends, engines, stays_bound })
}

/// The checks of an instance before its first job: on a static host, also the needs of containers without root. The
/// operator's own command replaces the wait for cloud-init.
fn ready_command(pool: &PoolConfig, registration: &Registration) -> Option<String> {
    let default = registration.cloud_init.then_some(CLOUD_INIT);
    let own = pool.ready_command.as_deref().or(default);
    if registration.launches() || pool.containers.is_none() {
        return own.map(str::to_owned);
    }
    Some(format!("{ROOTLESS}{}", own.unwrap_or_default()))
}

/// The operator's part of the check between jobs. It may be the command that a new instance has to pass.
fn recheck_command(pool: &PoolConfig, ready_command: Option<&str>) -> Option<String> {
    match pool.recheck_command.as_deref() {
        Some(READY_COMMAND) => ready_command.map(str::to_owned),
        own => own.map(str::to_owned),
    }
}

/// Greenroom's part of cleaning the hosts of a pool.
pub(super) fn cleaning(
    static_hosts: StaticHostCalls,
    pool: &PoolConfig,
) -> Result<Option<Cleaning>, Problems> {
    let containers = pool.containers.is_some();
    let dirs = CleanDirs {
        builds: &pool.builds_dir,
        cache: &pool.cache_dir,
        keep_builds: pool.keep_builds,
        containers,
    };
    (static_hosts.clean)(&pool.name, &pool.provider.table, &dirs)
}

/// The shell of a pool's stages.
pub(super) fn stage_shell(pool: &PoolConfig) -> StageShell {
    let is_static = provider::find(&pool.provider.kind).is_ok_and(|known| known.static_hosts.is_some());
    pool.stage_shell(is_static)
}

/// True if cleaning releases a host from its trust domain. Unless the operator says otherwise, only cleaning by root
/// does.
pub(super) fn unbinds(pool: &PoolConfig, cleaning: Option<&Cleaning>) -> bool {
    pool.clean_unbinds.unwrap_or_else(|| cleaning.is_some_and(|cleaning| cleaning.all_by_root))
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_ports::setup::Traces;
    use greenroom_testkit::clock::ManualClock;

    use super::*;

    /// Configurations that their provider cannot satisfy, each with the error that all commands show.
    pub(in crate::cli) fn refused() -> Vec<(String, &'static str)> {
        let pool = |kind: &str, key: &str, containers: &str| {
            let mut provider: toml::Table = provider::find(kind).unwrap().example.parse().unwrap();
            provider.insert("kind".to_owned(), kind.into());
            let mut pool: toml::Table = format!("max_instances = 2\n{key}").parse().unwrap();
            pool.insert("provider".to_owned(), provider.into());
            pool.insert("containers".to_owned(), containers.parse::<toml::Table>().unwrap().into());
            let pools = toml::Table::from_iter([("a".to_owned(), pool.into())]);
            toml::to_string(&toml::Table::from_iter([("pool".to_owned(), pools.into())])).unwrap()
        };
        vec![
            (
                pool("static", "", "engine = \"docker\""),
                "static hosts run containers without root: `engine` must be Podman, because Docker's daemon is root's",
            ),
            (
                pool("qemu", "capacity_per_instance = 2", ""),
                "`capacity_per_instance` = 2, but an instance is terminated after 1 (the default of `max_use_count`)",
            ),
            (
                pool("qemu", "idle_stopped = 1", ""),
                "`idle_stopped` is set, and provider `qemu` cannot suspend instances",
            ),
            (
                pool("kubernetes", "", ""),
                "`[pool.a.containers]` does not fit provider `kubernetes`: its instances have no engine",
            ),
        ]
    }

    fn built(text: &str) -> Result<PoolSetup, CliError> {
        let config = Config::parse(text, "greenroom.toml").unwrap();
        let clock = Rc::new(ManualClock::default());
        let around = ProviderContext { state_dir: "/s".into(), program: "/p".into(), clock };
        build(&config, config.pools.values().next().unwrap(), &around)
    }

    #[test]
    fn instances_of_clouds_wait_for_cloud_init_unless_the_operator_has_a_command() {
        for known in provider::all() {
            let mut table: toml::Table = known.example.parse().unwrap();
            table.insert("kind".to_owned(), known.kind.into());
            if table.contains_key("allow_root") {
                table.insert("allow_root".to_owned(), true.into());
            }
            let mut pool: toml::Table = "max_instances = 2".parse().unwrap();
            pool.insert("provider".to_owned(), table.into());
            let command = |pool: &toml::Table| {
                let pools = toml::Table::from_iter([("a".to_owned(), pool.clone().into())]);
                let all = toml::Table::from_iter([("pool".to_owned(), pools.into())]);
                built(&toml::to_string(&all).unwrap()).unwrap().ready_command
            };
            let waits = ["aws-ec2", "gce", "external", "fleeting"].contains(&known.kind);
            assert_eq!(command(&pool).as_deref(), waits.then_some(CLOUD_INIT), "{}", known.kind);
            pool.insert("ready_command".to_owned(), "true".into());
            assert_eq!(command(&pool).as_deref(), Some("true"), "{}", known.kind);
        }
    }

    #[test]
    fn the_keeper_refuses_what_a_provider_cannot_do() {
        for (text, wrong) in refused() {
            let error = built(&text).unwrap_err().in_a_line();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_provider_launches_if_its_registration_says_so() {
        for known in provider::all() {
            let mut table: toml::Table = known.example.parse().unwrap();
            if table.contains_key("allow_root") {
                table.insert("allow_root".to_owned(), true.into());
            }
            let provider =
                (known.build)(&greenroom_harness::here::build_context(Path::new("/s")), &table).unwrap();
            assert_eq!(provider.capabilities().launches, known.launches(), "{}", known.kind);
        }
    }

    #[test]
    fn the_example_of_containers_without_root_builds_and_checks_its_hosts() {
        let text = include_str!("../../examples/static-containers.toml");
        let setup = built(text).unwrap();
        assert!(setup.ready_command.unwrap().contains("newuidmap"));
        let cleaning = setup.cleaning.unwrap();
        assert!(cleaning.proof.contains("podman rm --force"), "{}", cleaning.proof);
        let root = cleaning.by_root.values().next().unwrap();
        assert!(root.script.contains("\ncontainers=1\n"), "{}", root.script);
        let without = built(&text.replace("clean_user = \"root\"\n", "")).unwrap_err();
        let without = format!("{without:?}");
        assert!(without.contains("containers on static hosts need `clean_user`"), "{without}");
    }

    #[test]
    fn an_image_with_credentials_is_not_pulled_where_all_instances_have_it() {
        let home = tempfile::tempdir().unwrap();
        let auth = home.path().join("auth.json");
        std::fs::write(&auth, r#"{"auths": {"corp.test": {"auth": "aHVudGVyOmh1bnRlcjI="}}}"#).unwrap();
        let text = format!(
            "[pool.linux]\nmax_instances = 1\n[pool.linux.provider]\nkind = \"qemu\"\n[pool.linux.containers]\n\
             images_warm = [\"corp.test/app:1\", \"ruby:3.3\"]\nregistry_auth = {auth:?}"
        );
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        let clock = Rc::new(ManualClock::default());
        let around = ProviderContext { state_dir: "/s".into(), program: "/p".into(), clock };
        let pulls = build(&config, config.pools.values().next().unwrap(), &around).unwrap().pulls.unwrap();
        let login = |traces| pulls.pull("corp.test/app:1", traces).unwrap().job.login;
        assert!(login(Traces::None).is_some() && login(Traces::Possible).is_none());
        let public = pulls.public();
        assert_eq!(
            public.iter().map(|pull| &*pull.image).collect::<Vec<_>>(),
            ["docker.io/library/ruby:3.3"]
        );
        assert!(
            public[0].script.contains("docker.io/library/ruby:3.3") && !public[0].script.contains("hunter")
        );
        assert_eq!(pulls.public(), public, "a template is named by it");
        std::fs::remove_file(auth).unwrap();
        assert_eq!(pulls.public(), [], "what needs credentials is not known");
    }

    #[test]
    fn a_tier_of_stopped_instances_needs_a_provider_that_may_suspend() {
        let built = |provider: &str| {
            built(&format!(
                "[pool.linux]\nmax_instances = 2\nidle_stopped = 1\n[pool.linux.provider]\n{provider}"
            ))
        };
        let refused = format!("{:?}", built("kind = \"local\"\nallow_root = true").unwrap_err());
        assert!(refused.contains("provider `local` cannot suspend instances"), "{refused}");
        let plugin = "kind = \"fleeting\"\nplugin = \"/p\"\nhost_keys = \"first-use\"";
        assert_eq!(built(plugin).unwrap().policy.idle_stopped, 1);
        let many =
            "[pool.linux]\nmax_instances = 2\nidle_stopped = 3\n[pool.linux.provider]\nkind = \"local\"";
        let refused = Config::parse(many, "greenroom.toml").unwrap_err().to_string();
        assert!(refused.contains("`idle_stopped` = 3 is more than `max_instances` = 2"), "{refused}");
    }

    /// An administrator replaces the key or the credentials, and leaves the configuration as it is.
    #[tokio::test]
    async fn a_file_that_the_provider_names_makes_a_new_provider_when_it_changes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("greenroom.toml");
        let key = home.path().join("key");
        std::fs::write(&key, "expired").unwrap();
        let text = format!(
            "[pool.metal]\nmax_instances = 1\n[pool.metal.provider]\nkind = \"static\"\nuser = \"ci\"\nkey = {key:?}\n\
             [[pool.metal.provider.host]]\nname = \"a\"\naddress = \"192.0.2.1\"\n"
        );
        std::fs::write(&path, text).unwrap();
        let config = Config::read(&path).unwrap().0;
        let program = std::env::current_exe().unwrap();
        let state_dir = home.path().to_owned();
        let around = ProviderContext { state_dir, program, clock: Rc::new(ManualClock::default()) };
        let pool = config.pools.values().next().unwrap();
        let setup = FileSetup::new(&path, &config, pool, around).unwrap();
        let first = setup.current().await.0.provider;
        assert!(Rc::ptr_eq(&first, &setup.current().await.0.provider), "nothing has changed");
        std::fs::write(&key, "renewed").unwrap();
        let second = setup.current().await.0.provider;
        assert!(!Rc::ptr_eq(&first, &second), "with the new credentials");
        assert!(Rc::ptr_eq(&second, &setup.current().await.0.provider));
        std::fs::remove_file(&key).unwrap();
        assert!(!Rc::ptr_eq(&second, &setup.current().await.0.provider), "it is gone");
    }

    #[tokio::test]
    async fn a_mistake_that_comes_later_is_reported_in_one_line_without_a_line_of_the_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("greenroom.toml");
        let write = |table: &str| {
            let pool = "[pool.linux]\nmax_instances = 1\n[pool.linux.provider]\nkind = \"local\"\nallow_root = true\n";
            std::fs::write(&path, format!("{pool}{table}")).unwrap();
            Config::read(&path).unwrap().0
        };
        let config = write("");
        let program = std::env::current_exe().unwrap();
        let state_dir = home.path().to_owned();
        let around = ProviderContext { state_dir, program, clock: Rc::new(ManualClock::default()) };
        let pool = config.pools.values().next().unwrap();
        let setup = FileSetup::new(&path, &config, pool, around).unwrap();
        assert_eq!(setup.current().await.1, None);

        write("list_lags = \"1s\"\nsshd = \"hunter2\"\n");
        let problem = setup.current().await.1.unwrap();
        let (_, problem) = problem.split_once("greenroom.toml:").unwrap();
        let expected =
            "6:1: `list_lags` is not a key of `[pool.linux.provider]` (did you mean `list_lag`?), and 1 more";
        assert_eq!(problem, expected);
        write("");
        assert_eq!(setup.current().await.1, None);
    }
}
