//! Pools whose machines a plugin makes, for the contract of every provider.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom::provider::WITH_BACKENDS;
use greenroom_backends::authorities;
use greenroom_backends::fleeting::wire::{Empty, PluginClient, State, UpdateResponse};
use greenroom_core::endpoint::{certified, on_first_use};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture, Part};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider};
use greenroom_providers::registration::BuildContext;
use greenroom_ssh::{HostKey, Ssh, SshSettings};
use greenroom_testkit::skipped::skipped;
use russh::keys::PrivateKey;
use serde_json::{Value, json};

use crate::dummy::dummy;
use crate::fixture::{GREENROOM, TEST_PLUGIN};
use crate::platform::Platform;

const POOL: &str = "linux";
/// Longest wait for a process that is being started, and for the plugin's answer.
const WAIT: Duration = Duration::from_secs(30);

/// A pool's state directory and table.
struct Home {
    state: tempfile::TempDir,
    table: toml::Table,
}

impl Home {
    fn new(plugin: &Path, config: &Value, more: &[(&str, &str)]) -> Self {
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        let mut table = toml::Table::new();
        table.insert("plugin".to_owned(), plugin.to_str().unwrap().into());
        table.insert("plugin_config".to_owned(), toml::Value::try_from(config).unwrap());
        table.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        Self { state, table }
    }

    fn set(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.table.insert(key.to_owned(), value.into());
    }

    fn pool_dir(&self) -> PathBuf {
        self.state.path().join("fleeting").join(POOL)
    }

    fn build(&self) -> Rc<dyn Provider> {
        self.wait_for_release();
        let state_dir = self.state.path().to_owned();
        let context = BuildContext {
            pool: PoolName::new(POOL),
            program: GREENROOM.into(),
            containers: false,
            pulls: None,
            clock: Rc::new(HereAndNow { ahead: Duration::ZERO }),
            host_keys: Rc::new(Ssh::new(SshSettings::new(state_dir.join("keys")))),
            state_dir,
        };
        let registration = WITH_BACKENDS.iter().find(|known| known.kind == "fleeting").unwrap();
        (registration.build)(&context, &self.table).unwrap()
    }

    /// RACE: a process that another test is starting has the lock of an earlier provider, too, until it is a program.
    fn wait_for_release(&self) {
        let Ok(lock) = fs::canonicalize(self.pool_dir().join("lock")) else { return };
        let begun = Instant::now();
        while others_have_open(&lock) {
            assert!(begun.elapsed() < WAIT, "another process has {}", lock.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The instances by the plugin's ids, as the record has them.
    fn instances(&self) -> BTreeMap<String, String> {
        let Ok(record) = fs::read(self.pool_dir().join("record.json")) else { return BTreeMap::new() };
        let record: Value = serde_json::from_slice(&record).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut instances = BTreeMap::new();
        for book in record["groups"].as_object().unwrap().values() {
            let former = book["former"].as_array().unwrap().iter();
            instances.extend(former.map(|one| (text(&one["machine"]["id"]), text(&one["instance"]))));
            let machines = book["machines"].as_object().unwrap().iter();
            instances.extend(machines.map(|(instance, machine)| (text(&machine["id"]), instance.clone())));
        }
        instances
    }

    /// Replaces the plugin's ids by instances, where the record has one.
    fn named(&self, ids: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let instances = self.instances();
        ids.into_iter().map(|id| instances.get(&id).cloned().unwrap_or(id)).collect()
    }

    /// The plugin's id of an instance.
    fn id(&self, instance: &InstanceId) -> String {
        let instances = self.instances();
        let of_it = instances.into_iter().find(|(_, name)| name == instance.as_str());
        of_it.expect("the record has the instance").0
    }
}

/// True if a process other than this one has the file open.
fn others_have_open(file: &Path) -> bool {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let others = processes.filter(|entry| number(entry).is_some_and(|pid| pid != std::process::id()));
    let open = others.filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok());
    open.flatten().flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == file))
}

/// The part of a fixture that does not depend on the plugin: all of it comes from the fixture's `home`.
macro_rules! of_home {
    () => {
        fn pool(&self) -> PoolName {
            PoolName::new(POOL)
        }

        fn clock(&self) -> Rc<dyn Clock> {
            Rc::new(HereAndNow { ahead: Duration::ZERO })
        }

        fn keys(&self) -> InstanceKeys {
            read_keys(self.home.state.path())
        }

        fn boot_deadline(&self) -> Duration {
            WAIT
        }

        fn named(&self, living: BTreeSet<String>) -> BTreeSet<String> {
            self.home.named(living)
        }
    };
}

/// The plugin of the tests, with an sshd for each machine. Each new provider starts the plugin anew.
pub struct Own {
    home: Home,
    platform: Platform,
}

impl Own {
    /// A plugin and a pool of the test's own. `None`: this host has no SSH server, and the test is skipped.
    pub fn open() -> Option<Self> {
        if !Path::new("/usr/sbin/sshd").exists() {
            skipped("`sshd` is missing");
            return None;
        }
        let platform = Platform::new();
        let config = json!({ "dir": platform.dir.path(), "platform": true });
        let more = [("host_keys", "first-use"), ("user", "ci")];
        Some(Self { home: Home::new(Path::new(TEST_PLUGIN), &config, &more), platform })
    }

    fn machine_dir(&self, instance: &InstanceId) -> PathBuf {
        self.platform.dir.path().join("machines").join(self.home.id(instance))
    }
}

impl Fixture for Own {
    of_home!();

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => {}
            Behaviour::SlowBoot => self.platform.fault("boot_ms", "3500"),
            Behaviour::Full => self.platform.fault("increase-short", "0"),
            Behaviour::Refuses(ErrorClass::NoCapacity { .. }) => {
                self.platform.fault("increase-short.once", "0");
            }
            Behaviour::Refuses(ErrorClass::Transient) => {
                self.platform.fault("increase-error.once", "the cloud has a cold");
            }
            Behaviour::Refuses(_) => return None,
            Behaviour::LosesAnswer => self.platform.fault("done-increase-crash.once", ""),
        }
        Some(self.home.build())
    }

    fn lacks(&self, part: &Part) -> Option<&'static str> {
        let Part::Fault(Behaviour::Refuses(class)) = part else { return None };
        match class {
            ErrorClass::NoCapacity { .. } | ErrorClass::Transient => None,
            ErrorClass::Quota => Some(
                "a plugin states its maximum when it starts: a full group is full for the next launch, too",
            ),
            ErrorClass::Invalid => {
                Some("a plugin that refuses its configuration does not start, so it has no list to judge")
            }
            ErrorClass::Denied
            | ErrorClass::Throttled { .. }
            | ErrorClass::NotFound
            | ErrorClass::Order { .. }
            | ErrorClass::Unknown => {
                Some("errors of plugins have no classes: Greenroom takes each for a transient one")
            }
        }
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        self.platform.power_cut(&self.home.id(id));
        true
    }

    fn living(&self) -> BTreeSet<String> {
        self.home.named(self.platform.living())
    }

    fn remains(&self) -> Vec<String> {
        self.platform.remains()
    }

    /// The machine makes its own, which Greenroom accepts at the first connection.
    fn host_key(&self, request: &LaunchRequest) -> String {
        let made = fs::read(self.machine_dir(&request.instance).join("host_key")).unwrap();
        let public = PrivateKey::from_openssh(made).unwrap().public_key().to_openssh().unwrap();
        let HostKey { line, fingerprint } = HostKey::parse(&public).unwrap();
        on_first_use(&line, &fingerprint)
    }
}

/// GitLab's dummy plugin. Its instances are entries in its memory, so one provider keeps its process for the whole test. Its
/// SSH server panics at a connection without a login, such as that for the key of a first use: certificates need none.
pub struct Dummy {
    kept: Rc<dyn Provider>,
    home: Home,
}

impl Dummy {
    /// The built plugin in a pool. `None`: the plugin cannot be built here, and the test is skipped.
    pub fn open() -> Option<Self> {
        let program = dummy()?;
        let more = [("host_keys", "ca"), ("host_key_name", "dummy"), ("user", "ci")];
        let mut home = Home::new(&program, &json!({ "MaxSize": 20, "ListenSSH": true }), &more);
        home.set("host_key_ca", read_keys(home.state.path()).authorized_key);
        Some(Self { kept: home.build(), home })
    }

    /// The instances that the running plugin lists, over a connection of its own.
    fn states(&self) -> Vec<(String, State)> {
        let Some(socket) = self.socket() else { return Vec::new() };
        let list = async move {
            let update = PluginClient::new(&socket);
            let update = update.streaming("/proto.InstanceGroup/Update", Empty {}, Some(WAIT)).await;
            let (mut update, mut all) = (update.unwrap(), Vec::new());
            while let Some(answer) = update.message().await.unwrap() {
                let UpdateResponse { instance, state } = answer;
                all.push((instance, State::try_from(state).unwrap()));
            }
            all
        };
        // The test's own runtime is busy with the test.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(list)).join().unwrap()
    }

    /// The socket of the running plugin; `None`: it does not run.
    fn socket(&self) -> Option<PathBuf> {
        let starts = fs::read_dir(self.home.state.path().join("plugins")).ok()?.flatten();
        let files = starts.filter_map(|start| fs::read_dir(start.path()).ok()).flatten().flatten();
        let mut sockets = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_socket()));
        sockets.next().map(|socket| socket.path())
    }
}

impl Fixture for Dummy {
    of_home!();

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        assert!(self.kept.api_calls().is_some());
        (*behaviour == Behaviour::Good).then(|| self.home.build())
    }

    fn lacks(&self, part: &Part) -> Option<&'static str> {
        Some(match part {
            Part::Fault(Behaviour::Good) => return None,
            Part::Fault(Behaviour::SlowBoot) => {
                "GitLab's dummy plugin boots nothing: its instances run from the first list on"
            }
            Part::Fault(Behaviour::Full) => "GitLab's dummy plugin has no limit below one instance",
            Part::Fault(Behaviour::Refuses(_)) => "GitLab's dummy plugin accepts each `Increase`",
            Part::Fault(Behaviour::LosesAnswer) => {
                "GitLab's dummy plugin loses an answer only if it is killed, and its instances end with it"
            }
            Part::Break => "instances of GitLab's dummy plugin are entries in its memory, which do not break",
            Part::Banner => "the SSH server of GitLab's dummy plugin panics at a connection without a login",
            Part::OwnAddress => "all instances of GitLab's dummy plugin have the same address",
        })
    }

    fn break_instance(&self, _id: &InstanceId) -> bool {
        false
    }

    fn living(&self) -> BTreeSet<String> {
        let gone = |state| matches!(state, State::Deleting | State::Deleted | State::Timeout);
        self.home.named(self.states().into_iter().filter(|(_, state)| !gone(*state)).map(|(id, _)| id))
    }

    fn remains(&self) -> Vec<String> {
        let mut all = self.states();
        all.retain(|(_, state)| *state != State::Deleted);
        all.into_iter().map(|(id, state)| format!("{id} {state:?}")).collect()
    }

    fn host_key(&self, request: &LaunchRequest) -> String {
        certified(&["dummy"], &[authorities::read(&request.keys.authorized_key).unwrap()])
    }
}
