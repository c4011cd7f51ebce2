//! The checks with machines: launches, lists, logins, terminations, and the clean-up at the end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_ports::connector::Connector;
use serde_json::json;

use super::program::ProgramReply;
use super::{KitSession, read, unusable};
use crate::external::protocol::answers::{CapabilitiesAnswer, LaunchAnswer};
use crate::program::kit::{CheckVerdict, Judged, failed};

mod ends;
mod guest;
mod launches;
mod lists;

use launches::{TestLaunch, TestLaunchSpec, watched};

/// The pools of the kit. Their machines are the kit's, whichever run made them.
pub const POOLS: [&str; 2] = ["greenroom-kit", "greenroom-kit-2"];
/// Machines that one run makes, if the program keeps its promises; one more if they end by themselves.
pub const MACHINES: u32 = 6;
/// At most so many exist concurrently; the same.
pub const CONCURRENT: u32 = 4;
/// The owners of the kit's machines.
const OWNERS: [&str; 2] = ["00000000000000a1", "00000000000000b2"];
/// A refused launch is repeated this often if the refusal is throttling or transient.
const TRIES: u32 = 4;

/// How the machines are made and judged.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// The account that logs in.
    pub user: String,
    /// From launch to a login.
    pub boot_timeout: Duration,
    /// From the request of a termination to its end.
    pub end_timeout: Duration,
    /// Deletes a machine without the program: it gets the machine's ID.
    pub delete_with: Option<PathBuf>,
    /// The certificate authorities of host keys.
    pub host_key_ca: Vec<String>,
    /// Distinguishes this run's launches from those of others: lower-case letters and digits.
    pub run: String,
}

/// One run with machines.
pub struct LiveRun<'a> {
    session: &'a KitSession<'a>,
    known: CapabilitiesAnswer,
    connector: &'a dyn Connector,
    options: LiveOptions,
    numbers: Cell<u32>,
    /// Every machine of this run.
    made: RefCell<Vec<TestMachine>>,
    /// Machines that a list has to show, with their pools: they were listed, and the kit has not ended them.
    expected: RefCell<BTreeMap<String, String>>,
    /// Machines that the kit has begun to end.
    ended: RefCell<BTreeSet<String>>,
    /// Where the first machine accepted a login.
    endpoint_of_first: RefCell<Option<Endpoint>>,
    /// The longest time of a launch.
    launch_took: Cell<Duration>,
}

impl std::fmt::Debug for LiveRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveRun").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A machine, and how the program's calls name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TestMachine {
    pool: String,
    machine: String,
    instance: String,
    name: String,
}

/// A machine under test.
#[derive(Debug)]
struct LaunchedMachine {
    launch: TestLaunch,
    machine: String,
}

impl<'a> LiveRun<'a> {
    pub fn new(
        session: &'a KitSession<'a>,
        known: CapabilitiesAnswer,
        connector: &'a dyn Connector,
        options: LiveOptions,
    ) -> Self {
        Self {
            session,
            known,
            connector,
            options,
            numbers: Cell::default(),
            made: RefCell::default(),
            expected: RefCell::default(),
            ended: RefCell::default(),
            endpoint_of_first: RefCell::default(),
            launch_took: Cell::default(),
        }
    }

    /// Makes all checks. Whatever it makes is ended by `clean_up`, which the caller calls in any case.
    pub async fn check(&self) {
        self.check_refused_offering().await;
        let Some(first) = self.check_launch().await else { return };
        let identified = self.check_identity(&first).await;
        let mortal = self.check_lifetime_begun().await;
        self.check_repeated(&first).await;
        let others = self.check_concurrent().await;
        if !self.check_lists(&first, &others, identified).await {
            // Without machines in lists, each further check would fail for the same reason.
            return;
        }
        self.check_offline(&first).await;
        self.check_guest(&first).await;
        self.check_running(&first).await;
        self.check_resources().await;
        self.check_ends(&first, &others).await;
        self.check_deleted_elsewhere(others.into_iter().next()).await;
        self.check_interrupted(identified).await;
        self.check_refusals();
        self.check_ids();
        self.check_lifetime(mortal).await;
    }

    /// A launch that has not been called yet.
    async fn new_launch(&self, pool: &str, owner: &str) -> Judged<TestLaunch> {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let origin = TestLaunchSpec {
            pool,
            owner,
            generation: &self.options.run,
            number,
            user: &self.options.user,
            offering: self.known.offerings.first().map(|offering| offering.name.as_str()),
            identity: self.known.identity,
            host_key: self.known.host_key,
        };
        let keys = self.connector.keys(&origin.instance()).await;
        let keys = keys.or_else(|error| failed(format!("the kit cannot create keys: {error}")))?;
        for line in keys.host_key.lines().filter(|line| !line.starts_with("-----") && line.len() > 16) {
            self.session.keep_secret(line);
        }
        Ok(TestLaunch::new(&origin, keys))
    }

    /// Calls `launch`, and remembers its machine.
    async fn launch(&self, launch: &TestLaunch) -> Judged<String> {
        let mut tries = 1;
        loop {
            let begun = Instant::now();
            let call = self.session.call("launch", &launch.pool, &launch.fields);
            let reply = watched(self.session, &launch.keys, call).await;
            self.launch_took.set(begun.elapsed().max(self.launch_took.get()));
            match reply {
                ProgramReply::Answer(answer) => {
                    let LaunchAnswer { machine, .. } = read("launch", &answer)?;
                    self.note(&machine, launch);
                    return Ok(machine);
                }
                ProgramReply::Refused(refusal) if refusal.may_pass() && tries < TRIES => {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
                ProgramReply::Refused(refusal) => return self.judge_refusal(launch, &refusal).await,
                ProgramReply::Unusable(check, _) => return Err(unusable("launch", check)),
            }
            tries += 1;
        }
    }

    fn note(&self, machine: &str, launch: &TestLaunch) {
        let known = launch.known(machine);
        let mut all = self.made.borrow_mut();
        if !all.contains(&known) {
            all.push(known);
        }
    }

    /// No two instances had the same ID.
    fn check_ids(&self) {
        let made = self.made.borrow();
        let twice = made.iter().enumerate().find_map(|(at, TestMachine { machine, instance, .. })| {
            let earlier =
                made[..at].iter().find(|other| other.machine == *machine && other.instance != *instance)?;
            Some(format!("the ID `{machine}` was given to `{}` and to `{instance}`", earlier.instance))
        });
        let judged = match (twice, made.len()) {
            (Some(twice), _) => failed(twice),
            (None, 0 | 1) => Err(CheckVerdict::Skipped("fewer than two machines were created".to_owned())),
            (None, _) => Ok(()),
        };
        self.session.outcomes.record("ids-unique", judged, Instant::now());
    }
}

impl TestMachine {
    /// The fields of `terminate`, `endpoint` and `console`.
    fn fields(&self) -> serde_json::Value {
        json!({ "machine": self.machine, "instance": self.instance, "name": self.name })
    }
}
