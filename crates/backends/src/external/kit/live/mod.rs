//! The checks with machines: launches, lists, logins, terminations, and the clean-up at the end.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{Generation, InstanceId, OfferingName, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::text::hex;
use greenroom_ports::connector::Connector;
use greenroom_ports::provider::LaunchRequest;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed};
use greenroom_providers::conformance::{Limits, Subject, SubjectKind, Watch};

use super::KitSession;
use super::port::{ProgramPort, TestMachine};
use crate::cloud::tags;
use crate::external::protocol::answers::CapabilitiesAnswer;

mod ends;
mod guest;
mod launches;
mod lists;

/// The pools of the kit. Their machines are the kit's, whichever run made them.
pub const POOLS: [&str; 2] = ["greenroom-kit", "greenroom-kit-2"];
/// Machines that one run makes, if the program keeps its promises; one more if they end by themselves.
pub const MACHINES: u32 = 6;
/// At most so many exist concurrently; the same.
pub const CONCURRENT: u32 = 4;
/// The owners of the kit's machines.
const OWNERS: [&str; 2] = ["00000000000000a1", "00000000000000b2"];

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
    port: ProgramPort<'a>,
    connector: &'a dyn Connector,
    options: LiveOptions,
    numbers: Cell<u32>,
    /// The machines that lists have to show, and those that the kit has begun to end.
    watch: Watch,
    /// Where the first machine accepted a login.
    endpoint_of_first: RefCell<Option<Endpoint>>,
}

impl std::fmt::Debug for LiveRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveRun").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A machine under test.
#[derive(Debug)]
struct LaunchedMachine {
    launch: LaunchRequest,
    machine: InstanceId,
}

impl LaunchedMachine {
    fn pool(&self) -> &PoolName {
        &self.launch.tags.pool
    }
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
            port: ProgramPort::new(session, known, &options.user, POOLS[0]),
            connector,
            options,
            numbers: Cell::default(),
            watch: Watch::default(),
            endpoint_of_first: RefCell::default(),
        }
    }

    /// What the conformance suite judges.
    fn subject(&self) -> Subject<'_> {
        Subject {
            provider: &self.port,
            kind: SubjectKind::Program(&self.session.outcomes),
            limits: Limits {
                appears: self.appears_within(),
                boot: self.options.boot_timeout,
                end: self.options.end_timeout,
            },
            watch: &self.watch,
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
    async fn new_launch(&self, pool: &str, owner: &str) -> Judged<LaunchRequest> {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let own = Tags {
            pool: PoolName::new(pool),
            owner: OwnerId::new(owner),
            generation: Generation::new(&self.options.run),
            number,
        };
        let instance = InstanceId::launched(&own.pool, &own.generation, number);
        let keys = self.connector.keys(&instance).await;
        let keys = keys.or_else(|error| failed(format!("the kit cannot create keys: {error}")))?;
        for line in keys.secret_lines().filter(|line| line.len() > 16) {
            self.session.keep_secret(line);
        }
        let offering = self.port.known.offerings.first();
        let request = LaunchRequest {
            token: hex(&tags::token_digest(&own.owner, &instance.token(1)))[..40].to_owned(),
            instance,
            tags: own,
            offering: offering.map(|offering| OfferingName::new(&offering.name)),
            keys,
            lifetime: Some(Duration::from_hours(1)),
            order: None,
        };
        self.port.register(&request);
        Ok(request)
    }

    /// Launches a machine: the one that the answer names.
    async fn launch(&self, launch: LaunchRequest) -> Judged<LaunchedMachine> {
        self.subject().launch(&launch).await?;
        let machine = InstanceId::new(self.one_machine(&launch)?);
        Ok(LaunchedMachine { launch, machine })
    }

    /// The ID of a launch's machine, the same one in each answer.
    fn one_machine(&self, launch: &LaunchRequest) -> Judged<String> {
        match self.port.answers(&launch.instance).as_slice() {
            [] => failed("no answer to the launch has named its machine"),
            [one] => Ok(one.clone()),
            [one, other, ..] => failed(format!("launches with one token answered `{one}` and `{other}`")),
        }
    }

    /// No two instances had the same ID.
    fn check_ids(&self) {
        let made = self.port.made.borrow();
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
