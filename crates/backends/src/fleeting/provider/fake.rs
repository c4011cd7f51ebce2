//! A plugin in memory, and a provider over it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::connector::ConnectError;
use greenroom_ports::host_keys::{HostKeys, PresentedKey};
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};
use greenroom_providers::registration::BuildContext;
use greenroom_testkit::clock::ManualClock;

use super::{Fleeting, Logins};
use crate::fleeting::group::{
    CallError, CallErrorKind, ConnectInfo, GroupInfo, InstanceGroup, InstanceState, PluginStart, SeenInstance,
};
use crate::fleeting::over;
use crate::fleeting::settings::Settings;

/// The plugin's group, which outlives the keeper.
#[derive(Default)]
pub(super) struct FakeGroup {
    pub(super) machines: RefCell<BTreeMap<String, InstanceState>>,
    /// New machines that no update shows yet.
    pub(super) hidden: RefCell<Vec<String>>,
    pub(super) hide: Cell<bool>,
    pub(super) made: Cell<u32>,
    pub(super) max_size: Cell<Option<u32>>,
    pub(super) suspends: Cell<bool>,
    pub(super) group: RefCell<String>,
    /// The next calls' failures.
    pub(super) faults: RefCell<VecDeque<CallFault>>,
    pub(super) calls: RefCell<Vec<String>>,
    pub(super) info: RefCell<Option<ConnectInfo>>,
    pub(super) start: RefCell<PluginStart>,
    pub(super) refusal: RefCell<Option<String>>,
    /// The host key that machines present.
    pub(super) presented: RefCell<String>,
}

/// The failure of a call.
pub(super) struct CallFault {
    call: &'static str,
    /// The number of machines that the call makes nevertheless.
    made: u32,
    kind: CallErrorKind,
}

impl FakeGroup {
    fn call(&self, name: &'static str, detail: &str) -> Result<(), (u32, CallError)> {
        self.calls.borrow_mut().push(format!("{name}{detail}"));
        let mut faults = self.faults.borrow_mut();
        match faults.front() {
            Some(CallFault { call, made, kind }) if *call == name => {
                let made = *made;
                let kind = *kind;
                faults.pop_front();
                Err((made, CallError { kind, message: "the cloud says no".to_owned() }))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn fail(&self, call: &'static str, made: u32, kind: CallErrorKind) {
        self.faults.borrow_mut().push_back(CallFault { call, made, kind });
    }

    fn make(&self, count: u32) {
        for _ in 0..count {
            self.made.set(self.made.get() + 1);
            let id = format!("m{}", self.made.get());
            if self.hide.get() {
                self.hidden.borrow_mut().push(id);
            } else {
                self.machines.borrow_mut().insert(id, InstanceState::Creating);
            }
        }
    }

    fn change(
        &self,
        name: &'static str,
        ids: &[String],
        state: InstanceState,
    ) -> Result<Vec<String>, CallError> {
        match self.call(name, &format!(" {}", ids.join(" "))) {
            Ok(()) => {
                self.machines.borrow_mut().extend(ids.iter().map(|id| (id.clone(), state)));
                Ok(ids.to_vec())
            }
            // The call succeeds, and leaves all of them out.
            Err((1, _)) => Ok(Vec::new()),
            Err((_, error)) => Err(error),
        }
    }

    pub(super) fn show(&self) {
        self.machines
            .borrow_mut()
            .extend(self.hidden.take().into_iter().map(|id| (id, InstanceState::Creating)));
    }

    pub(super) fn all(&self, state: InstanceState) {
        self.machines.borrow_mut().values_mut().for_each(|now| *now = state);
    }

    pub(super) async fn connect_info_now(self: &Rc<Self>) -> ConnectInfo {
        self.connect_info("m1").await.unwrap()
    }

    /// The calls of one kind.
    pub(super) fn called(&self, name: &str) -> Vec<String> {
        self.calls.borrow().iter().filter(|call| call.starts_with(name)).cloned().collect()
    }
}

#[async_trait(?Send)]
impl InstanceGroup for Rc<FakeGroup> {
    async fn info(&self) -> Result<GroupInfo, CallError> {
        let id = self.group.borrow().clone();
        let max_size = self.max_size.get();
        let suspends = self.suspends.get();
        let start = self.start.borrow().clone();
        let refusal = self.refusal.borrow().clone();
        Ok(GroupInfo { id, max_size, version: "1.0".to_owned(), suspends, start, refusal })
    }

    async fn update(&self) -> Result<Vec<SeenInstance>, CallError> {
        self.call("update", "").map_err(|(_, error)| error)?;
        tokio::task::yield_now().await;
        let seen = |(id, state): (&String, &InstanceState)| SeenInstance { id: id.clone(), state: *state };
        Ok(self.machines.borrow().iter().map(seen).collect())
    }

    async fn increase(&self, count: u32) -> Result<u32, CallError> {
        let called = self.call("increase", &format!(" {count}"));
        tokio::task::yield_now().await;
        match called {
            Ok(()) => {
                self.make(count);
                Ok(count)
            }
            Err((made, error)) => {
                self.make(made);
                Err(error)
            }
        }
    }

    async fn decrease(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        self.call("decrease", &format!(" {}", ids.join(" "))).map_err(|(_, error)| error)?;
        let mut machines = self.machines.borrow_mut();
        machines.extend(ids.iter().map(|id| (id.clone(), InstanceState::Deleting)));
        Ok(ids.to_vec())
    }

    async fn connect_info(&self, id: &str) -> Result<ConnectInfo, CallError> {
        self.call("connect_info", &format!(" {id}")).map_err(|(_, error)| error)?;
        let plain = ConnectInfo {
            protocol: "ssh".to_owned(),
            username: "ci".to_owned(),
            internal_address: "10.0.0.7:2222".to_owned(),
            ..ConnectInfo::default()
        };
        Ok(self.info.borrow().clone().unwrap_or(plain))
    }

    async fn heartbeat(&self, id: &str) -> Result<(), CallError> {
        self.call("heartbeat", &format!(" {id}")).map_err(|(_, error)| error)
    }

    async fn suspend(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        self.change("suspend", ids, InstanceState::Suspending)
    }

    async fn resume(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        self.change("resume", ids, InstanceState::Resuming)
    }
}

/// Reads the host key that the machines of a fake group present.
struct Presents(Rc<FakeGroup>);

#[async_trait(?Send)]
impl HostKeys for Presents {
    async fn presented(&self, at: &Endpoint, _within: Duration) -> Result<PresentedKey, ConnectError> {
        let line = self.0.presented.borrow().clone();
        if line.is_empty() {
            return Err(ConnectError::Unreachable {
                at: at.place(),
                problem: "connection refused".to_owned(),
            });
        }
        Ok(PresentedKey { fingerprint: format!("SHA256:{}", line.len()), line })
    }
}

/// A runner host, and a cloud.
pub(super) struct FakeSite {
    pub(super) state: tempfile::TempDir,
    pub(super) clock: Rc<ManualClock>,
    pub(super) cloud: Rc<FakeGroup>,
    /// The number of plugins that were made.
    pub(super) plugins: Rc<Cell<u32>>,
}

impl FakeSite {
    pub(super) fn new() -> Self {
        let cloud = Rc::new(FakeGroup::default());
        *cloud.presented.borrow_mut() = "ssh-ed25519 AAAAkey".to_owned();
        "group-1".clone_into(&mut cloud.group.borrow_mut());
        let site =
            Self { state: tempfile::tempdir().unwrap(), clock: Rc::default(), cloud, plugins: Rc::default() };
        site.clock.pass(Duration::from_secs(1_000));
        site
    }

    /// A provider; with those before it dropped, one of a restarted keeper.
    pub(super) fn provider(&self, keys: &str) -> Fleeting {
        let pool = PoolName::new("linux");
        let context = BuildContext {
            clock: Rc::clone(&self.clock) as _,
            host_keys: Rc::new(Presents(Rc::clone(&self.cloud))),
            ..greenroom_harness::here::build_context(self.state.path())
        };
        let table = format!("plugin = \"/p\"\nhost_keys = \"first-use\"\n{keys}").parse().unwrap();
        let settings = Settings::read(&pool, &table).unwrap();
        let cloud = Rc::clone(&self.cloud);
        let plugins = Rc::clone(&self.plugins);
        let make = move |_: &Settings, _: &Logins| {
            plugins.set(plugins.get() + 1);
            Ok(Rc::new(Rc::clone(&cloud)) as Rc<dyn InstanceGroup>)
        };
        let provider = over(&context, settings, Rc::new(make));
        // RACE: a process that another test is starting has the earlier provider's lock until it is a program.
        while !provider.queue.open().unwrap() {
            std::thread::yield_now();
        }
        provider
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.clock.pass(Duration::from_secs(seconds));
    }

    pub(super) fn wall_seconds(&self) -> i64 {
        self.clock.now().wall_seconds()
    }
}

pub(super) fn id(number: u32) -> InstanceId {
    InstanceId::launched(&PoolName::new("linux"), &Generation::new("c0ffee"), number)
}

pub(super) fn request(number: u32) -> LaunchRequest {
    let pool = PoolName::new("linux");
    let owner = OwnerId::new("00000000000000a1");
    let tags = Tags { pool, owner, generation: Generation::new("c0ffee"), number };
    let keys = InstanceKeys {
        authorized_key: String::new(),
        host_key: String::new(),
        host_key_public: String::new(),
    };
    let instance = id(number);
    let token = id(number).token(1);
    LaunchRequest { instance, token, tags, offering: None, keys, lifetime: None, order: None }
}
