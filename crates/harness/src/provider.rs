//! The contract of every provider, as tests.
//!
//! The promises that the conformance kits judge, too, are those of [`conformance`](greenroom_providers::conformance): a test panics
//! with the verdict. The rest needs a fixture, or only adapters promise it. A provider joins with a fixture (for what the suite
//! cannot do through the trait: inject faults, count what really exists) and one
//! [`provider_contract!`](crate::provider_contract) line.

use std::collections::BTreeSet;
use std::future::Future;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::{Listed, Resource, ResourceKind, Status, Tags};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider, ProviderError};
use greenroom_providers::conformance::ends::{CallForOne, TerminateStep};
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged};
use greenroom_providers::conformance::{Limits, Subject, SubjectKind, Watch};
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;

use crate::driver;

/// The fault that a provider injects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behaviour {
    Good,
    /// An instance has no address for at least 3 s.
    SlowBoot,
    /// The provider has no capacity for another instance.
    Full,
    /// The next launch is refused with this class; those after it are not.
    Refuses(ErrorClass),
    /// The next launch is carried out and answered `Unknown`.
    LosesAnswer,
}

/// A requirement of a part of the suite, beside the trait, that not every provider or fixture meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Fault(Behaviour),
    /// An instance can break.
    Break,
    /// The SSH server of an instance answers a connection without a login.
    Banner,
    /// Each instance has an address and port of its own.
    OwnAddress,
}

/// The needs of the suite beyond the trait of a provider.
pub trait Fixture {
    fn pool(&self) -> PoolName;
    /// A new provider without memory, over the same instances. `None`: it lacks this fault.
    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>>;
    fn clock(&self) -> Rc<dyn Clock>;
    fn keys(&self) -> InstanceKeys;
    /// Limit from the launch of an instance to its open port.
    fn boot_deadline(&self) -> Duration;
    /// Ends an instance without the provider, like a power cut. False: it lacks that.
    fn break_instance(&self, id: &InstanceId) -> bool;
    /// Why a part of the suite is left out here; `None`: it is judged.
    fn lacks(&self, _part: &Part) -> Option<&'static str> {
        None
    }
    /// The instances that really run, independent of the provider.
    fn living(&self) -> BTreeSet<String>;
    /// The instances that really run, after a list: only a list may tell which instance a machine belongs to.
    fn named(&self, living: BTreeSet<String>) -> BTreeSet<String> {
        living
    }
    /// Everything that was created here and is not gone: must be empty in the end.
    fn remains(&self) -> Vec<String>;
    /// The public host key that an instance presents, once it runs: an instance may make its own.
    fn host_key(&self, request: &LaunchRequest) -> String {
        request.keys.host_key_public.trim().to_owned()
    }
}

/// The whole suite as tests of one fixture.
#[macro_export]
macro_rules! provider_contract {
    ($fixture:expr) => {
        $crate::provider_contract! { $fixture;
            a_launched_instance_is_listed_and_answers,
            the_same_token_never_makes_a_second_instance,
            another_token_does_not_take_over_an_instance,
            a_list_shows_tags_exactly_and_every_owner,
            a_list_says_when_it_began_and_is_sorted,
            terminate_goes_on_until_nothing_is_found,
            what_does_not_exist_is_not_found,
            a_booting_instance_is_listed_and_has_no_address_yet,
            an_instance_can_be_terminated_while_it_boots,
            a_full_provider_refuses_with_a_definite_class,
            every_refusal_is_definite_and_leaves_nothing,
            a_lost_answer_is_unknown_and_the_same_token_finds_the_instance,
            ten_launches_at_once_make_ten_instances,
            a_launch_dropped_anywhere_leaks_nothing_that_a_list_cannot_see,
            an_instance_that_broke_is_not_running_and_can_be_terminated,
            the_console_tells_of_the_boot,
            resources_are_everything_of_the_pool_and_are_deleted_one_by_one,
        }
    };
    ($fixture:expr; $($test:ident),* $(,)?) => { $(
        #[tokio::test]
        async fn $test() {
            let fixture = $fixture;
            $crate::provider::$test(&fixture).await;
            $crate::provider::leave_nothing(&fixture).await;
        }
    )* };
}
pub use crate::provider_contract;

/// Polls until a condition holds; panics with its name after the deadline.
pub async fn until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const GENERATION: &str = "c0ffee";
/// Limit from the request of a termination until the provider shows the instance as gone.
const END: Duration = Duration::from_secs(30);

/// The value of a promise that is kept; panics with the verdict on a broken one.
#[track_caller]
pub fn kept<T>(judged: Judged<T>) -> T {
    judged.unwrap_or_else(|verdict| panic!("{}", verdict.text()))
}

/// A provider as the conformance suite judges it. An adapter shows instances immediately.
fn subject<'a>(provider: &'a dyn Provider, watch: &'a Watch, boot: Duration) -> Subject<'a> {
    let limits = Limits { appears: Duration::ZERO, boot, end: END };
    Subject { provider, kind: SubjectKind::Adapter, limits, watch }
}

pub fn request(fixture: &dyn Fixture, number: u32) -> LaunchRequest {
    let pool = fixture.pool();
    let generation = Generation::new(GENERATION);
    let instance = InstanceId::launched(&pool, &generation, number);
    let tags = Tags { pool, owner: OwnerId::new("00000000000000a1"), generation, number };
    let offering = good(fixture).capabilities().offerings.first().cloned();
    let token = format!("{instance}-1");
    let keys = fixture.keys();
    LaunchRequest {
        token,
        instance,
        tags,
        offering,
        keys,
        lifetime: Some(Duration::from_hours(1)),
        order: None,
    }
}

pub fn good(fixture: &dyn Fixture) -> Rc<dyn Provider> {
    fixture.provider(&Behaviour::Good).expect("every provider can behave well")
}

/// True if the fixture has what a part of the suite requires. Otherwise, the report of skipped tests gets its reason.
fn has(fixture: &dyn Fixture, part: &Part) -> bool {
    let why = fixture.lacks(part);
    why.inspect(|why| skipped(why)).is_none()
}

/// A provider with a fault. `None`: the fixture lacks it, with a reason, which is reported.
fn faulty(fixture: &dyn Fixture, fault: &Behaviour) -> Option<Rc<dyn Provider>> {
    let part = Part::Fault(fault.clone());
    let provider = has(fixture, &part).then(|| fixture.provider(fault))?;
    Some(provider.unwrap_or_else(|| panic!("the fixture does not say why it lacks {fault:?}")))
}

pub async fn listed(provider: &dyn Provider, pool: &PoolName) -> Vec<Listed> {
    kept(subject(provider, &Watch::default(), Duration::ZERO).list(pool).await).instances
}

pub async fn status(provider: &dyn Provider, pool: &PoolName, id: &InstanceId) -> Option<Status> {
    listed(provider, pool).await.into_iter().find(|one| one.id == *id).map(|one| one.status)
}

/// Waits until an instance has an address, and is listed as running.
pub async fn running(fixture: &dyn Fixture, provider: &dyn Provider, id: &InstanceId) -> Endpoint {
    let endpoint = until("an address", fixture.boot_deadline(), async || match provider.endpoint(id).await {
        Ok(endpoint) => Some(endpoint),
        Err(error) => {
            assert_eq!(error.class(), &ErrorClass::Transient, "{error}");
            None
        }
    });
    let endpoint = endpoint.await;
    let boot = fixture.boot_deadline();
    let watch = Watch::default();
    let running = subject(provider, &watch, boot).becomes(&fixture.pool(), id, Status::Running, boot).await;
    kept(running);
    endpoint
}

/// Requests a termination; true if the provider shows the instance as gone, or does not find it.
pub async fn is_gone(provider: &dyn Provider, id: &InstanceId) -> bool {
    let step = subject(provider, &Watch::default(), Duration::ZERO).terminate(id).await;
    kept(step) != TerminateStep::Stopping
}

/// Terminates until the instance is gone, and until nothing is running.
pub async fn gone(fixture: &dyn Fixture, provider: &dyn Provider, id: &InstanceId) {
    kept(subject(provider, &Watch::default(), fixture.boot_deadline()).goes(id).await);
    let name = id.as_str();
    until("dead", Duration::from_secs(5), async || (!fixture.living().contains(name)).then_some(())).await;
}

/// All resources of the pool that cost money.
async fn resources(provider: &dyn Provider, pool: &PoolName) -> Vec<Resource> {
    let resources = provider.resources(pool).await.unwrap();
    assert!(resources.complete);
    resources.found
}

/// The end of every test: terminates listed instances, and expects nothing to be left.
pub async fn leave_nothing(fixture: &dyn Fixture) {
    let provider = good(fixture);
    for instance in listed(&*provider, &fixture.pool()).await {
        gone(fixture, &*provider, &instance.id).await;
    }
    assert_eq!(listed(&*provider, &fixture.pool()).await, []);
    until("nothing bills", Duration::from_secs(30), async || {
        resources(&*provider, &fixture.pool()).await.is_empty().then_some(())
    })
    .await;
    until("nothing lives", Duration::from_secs(5), async || fixture.living().is_empty().then_some(())).await;
    assert_eq!(fixture.remains(), Vec::<String>::new());
}

pub fn class<T: std::fmt::Debug>(answer: Result<T, ProviderError>) -> ErrorClass {
    answer.expect_err("this must fail").class().clone()
}

pub async fn a_launched_instance_is_listed_and_answers(fixture: &dyn Fixture) {
    let (provider, watch) = (good(fixture), Watch::default());
    let subject = subject(&*provider, &watch, fixture.boot_deadline());
    let request = request(fixture, 1);
    kept(subject.launch(&request).await);
    let seen = kept(subject.is_listed(&request).await);
    assert_eq!(seen.id, request.instance);
    let endpoint = running(fixture, &*provider, &request.instance).await;
    assert_eq!(endpoint.host_key, fixture.host_key(&request));
    assert!(!endpoint.user.is_empty());
    if !has(fixture, &Part::Banner) {
        return;
    }
    if endpoint.forward.is_some() {
        return answers_a_forward(fixture, &endpoint).await;
    }
    // An instance with an address of its own runs for a while before its port is open.
    let mut peer = until("a connection", fixture.boot_deadline(), async || {
        TcpStream::connect((endpoint.address.as_str(), endpoint.port)).ok()
    })
    .await;
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut banner = [0; 8];
    peer.read_exact(&mut banner).unwrap();
    assert_eq!(&banner, b"SSH-2.0-");
}

pub async fn the_same_token_never_makes_a_second_instance(fixture: &dyn Fixture) {
    let one = good(fixture);
    let other = good(fixture);
    let request = request(fixture, 1);
    let (a, b, c) = tokio::join!(one.launch(&request), other.launch(&request), one.launch(&request));
    [a, b, c].into_iter().for_each(Result::unwrap);
    running(fixture, &*one, &request.instance).await;
    let watch = Watch::default();
    kept(subject(&*good(fixture), &watch, fixture.boot_deadline()).is_repeatable(&request).await);
    assert_eq!(listed(&*one, &fixture.pool()).await.len(), 1);
    assert_eq!(fixture.living(), BTreeSet::from([request.instance.to_string()]));
}

pub async fn another_token_does_not_take_over_an_instance(fixture: &dyn Fixture) {
    let provider = good(fixture);
    let first = request(fixture, 1);
    provider.launch(&first).await.unwrap();
    let before = running(fixture, &*provider, &first.instance).await;
    let second = LaunchRequest { token: format!("{}-2", first.instance), ..first.clone() };
    // A provider that gives instances names of its own may create another one, but must not change the first.
    if let Err(error) = provider.launch(&second).await {
        assert!(error.class().is_definite(), "{error}");
    }
    assert_eq!(running(fixture, &*provider, &first.instance).await, before);
}

pub async fn a_list_shows_tags_exactly_and_every_owner(fixture: &dyn Fixture) {
    let provider = good(fixture);
    let own = request(fixture, 1);
    let mut foreign = request(fixture, 2);
    foreign.tags.owner = OwnerId::new("00000000000000b2");
    for request in [&own, &foreign] {
        provider.launch(request).await.unwrap();
    }
    let seen = listed(&*good(fixture), &fixture.pool()).await;
    let tags: Vec<_> = seen.iter().map(|one| one.tags.clone().unwrap()).collect();
    assert_eq!(tags, [own.tags.clone(), foreign.tags.clone()]);
    let now = fixture.clock().now();
    for one in &seen {
        assert!(one.created.is_none_or(|at| now.since(at) < Duration::from_mins(2)), "{one:?}");
    }
    assert_eq!(listed(&*provider, &PoolName::new("another")).await, []);
}

pub async fn a_list_says_when_it_began_and_is_sorted(fixture: &dyn Fixture) {
    let provider = good(fixture);
    for number in [3, 1, 2] {
        provider.launch(&request(fixture, number)).await.unwrap();
    }
    let before = fixture.clock().now();
    let listing = provider.list(&fixture.pool()).await.unwrap();
    let after = fixture.clock().now();
    assert!(before.uptime_ms <= listing.begun.uptime_ms && listing.begun.uptime_ms <= after.uptime_ms);
    let ids: Vec<_> = listing.instances.iter().map(|one| one.id.clone()).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.is_sorted(), "{ids:?}");
}

pub async fn terminate_goes_on_until_nothing_is_found(fixture: &dyn Fixture) {
    let (provider, watch) = (good(fixture), Watch::default());
    let subject = subject(&*provider, &watch, fixture.boot_deadline());
    let spared = request(fixture, 1);
    let ended = request(fixture, 2);
    for request in [&spared, &ended] {
        kept(subject.launch(request).await);
        running(fixture, &*provider, &request.instance).await;
    }
    let begun = Instant::now();
    let pace = Pace::watch();
    let step = kept(subject.terminate(&ended.instance).await);
    let took = begun.elapsed();
    assert_ne!(step, TerminateStep::NotFound);
    assert!(took < pace.stretched(Duration::from_secs(1)), "terminate waits: {took:?}");
    let pool = fixture.pool();
    let seen = status(&*provider, &pool, &ended.instance).await;
    assert!(matches!(seen, None | Some(Status::Stopping)), "{seen:?}");
    gone(fixture, &*provider, &ended.instance).await;
    kept(subject.refuses_unknown(CallForOne::Endpoint, &ended.instance).await);
    kept(subject.spares(std::iter::once((&pool, &spared.instance))).await);
    assert_eq!(status(&*provider, &pool, &spared.instance).await, Some(Status::Running));
}

pub async fn what_does_not_exist_is_not_found(fixture: &dyn Fixture) {
    let (provider, watch) = (good(fixture), Watch::default());
    let subject = subject(&*provider, &watch, fixture.boot_deadline());
    for id in [request(fixture, 77).instance, InstanceId::new("../up"), InstanceId::new("")] {
        for call in [CallForOne::Terminate, CallForOne::Endpoint, CallForOne::Console] {
            kept(subject.refuses_unknown(call, &id).await);
        }
    }
}

pub async fn a_booting_instance_is_listed_and_has_no_address_yet(fixture: &dyn Fixture) {
    let Some(provider) = faulty(fixture, &Behaviour::SlowBoot) else { return };
    let request = request(fixture, 1);
    let begun = Instant::now();
    let pace = Pace::watch();
    provider.launch(&request).await.unwrap();
    let launched = begun.elapsed();
    let seen = listed(&*provider, &fixture.pool()).await;
    assert_eq!(class(provider.endpoint(&request.instance).await), ErrorClass::Transient);
    assert!(
        launched < pace.stretched(Duration::from_secs(1)),
        "launch took {launched:?}: it waits for the boot"
    );
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].status, seen[0].tags.as_ref()), (Status::Starting, Some(&request.tags)));
    running(fixture, &*provider, &request.instance).await;
    assert!(begun.elapsed() > Duration::from_secs(3), "the fixture boots too fast to judge");
}

pub async fn an_instance_can_be_terminated_while_it_boots(fixture: &dyn Fixture) {
    let Some(provider) = faulty(fixture, &Behaviour::SlowBoot) else { return };
    let request = request(fixture, 1);
    provider.launch(&request).await.unwrap();
    gone(fixture, &*provider, &request.instance).await;
    assert_eq!(listed(&*provider, &fixture.pool()).await, []);
}

pub async fn a_full_provider_refuses_with_a_definite_class(fixture: &dyn Fixture) {
    let Some(provider) = faulty(fixture, &Behaviour::Full) else { return };
    let request = request(fixture, 1);
    let refused = class(provider.launch(&request).await);
    assert!(matches!(refused, ErrorClass::NoCapacity { .. } | ErrorClass::Quota), "{refused}");
    let watch = Watch::default();
    kept(subject(&*provider, &watch, fixture.boot_deadline()).created_nothing(&request).await);
    assert_eq!(listed(&*provider, &fixture.pool()).await, []);
    assert_eq!(fixture.living(), BTreeSet::new());
}

pub async fn every_refusal_is_definite_and_leaves_nothing(fixture: &dyn Fixture) {
    let scope = "x".to_owned();
    let classes = [
        ErrorClass::NoCapacity { scope },
        ErrorClass::Quota,
        ErrorClass::Denied,
        ErrorClass::Invalid,
        ErrorClass::Throttled { until: None },
        ErrorClass::Transient,
    ];
    for (number, wanted) in (1..).zip(classes) {
        let Some(provider) = faulty(fixture, &Behaviour::Refuses(wanted.clone())) else { continue };
        let first = request(fixture, number);
        let refused = class(provider.launch(&first).await);
        assert!(refused.is_definite(), "{refused}, not {wanted}");
        assert_eq!(std::mem::discriminant(&refused), std::mem::discriminant(&wanted), "{refused}");
        if let ErrorClass::Throttled { until: Some(at) } = refused {
            let over = async || fixture.clock().now().reached(at).then_some(());
            until("the moment before which nothing shall be asked", Duration::from_mins(1), over).await;
        }
        let watch = Watch::default();
        kept(subject(&*provider, &watch, fixture.boot_deadline()).created_nothing(&first).await);
        assert_eq!(listed(&*provider, &fixture.pool()).await, []);
        // The next attempt has a token of its own.
        let next = LaunchRequest { token: format!("{}-2", first.instance), ..first };
        provider.launch(&next).await.unwrap();
        assert_eq!(listed(&*provider, &fixture.pool()).await.len(), 1);
        gone(fixture, &*provider, &next.instance).await;
    }
}

pub async fn a_lost_answer_is_unknown_and_the_same_token_finds_the_instance(fixture: &dyn Fixture) {
    let Some(provider) = faulty(fixture, &Behaviour::LosesAnswer) else { return };
    let request = request(fixture, 1);
    assert_eq!(class(provider.launch(&request).await), ErrorClass::Unknown);
    let watch = Watch::default();
    kept(subject(&*provider, &watch, fixture.boot_deadline()).is_repeatable(&request).await);
    running(fixture, &*provider, &request.instance).await;
    assert_eq!(fixture.living().len(), 1);
}

/// A port-forward leads to an SSH server with the recorded host key.
async fn answers_a_forward(fixture: &dyn Fixture, endpoint: &Endpoint) {
    let keys = tempfile::tempdir().unwrap();
    let forwarder = Path::new(driver()).with_file_name("greenroom-backends");
    let ssh = Ssh::new(SshSettings { forwarder: Some(forwarder), ..SshSettings::new(keys.path()) });
    let shown = until("an answer", fixture.boot_deadline(), async || {
        ssh.host_key(endpoint, Duration::from_secs(10)).await.ok()
    })
    .await;
    assert_eq!(shown.line, endpoint.host_key);
}

pub async fn ten_launches_at_once_make_ten_instances(fixture: &dyn Fixture) {
    let (provider, watch) = (good(fixture), Watch::default());
    let requests: Vec<_> = (1..=10).map(|number| request(fixture, number)).collect();
    let all: Vec<_> = requests.iter().collect();
    kept(subject(&*provider, &watch, fixture.boot_deadline()).launch_all(&all).await);
    let mut addresses = BTreeSet::new();
    for request in &requests {
        let endpoint = running(fixture, &*provider, &request.instance).await;
        addresses.insert((endpoint.address, endpoint.port));
    }
    if has(fixture, &Part::OwnAddress) {
        assert_eq!(addresses.len(), 10);
    }
    assert_eq!(fixture.living().len(), 10);
}

pub async fn a_launch_dropped_anywhere_leaks_nothing_that_a_list_cannot_see(fixture: &dyn Fixture) {
    // Polled this many times and then dropped: interrupted at each of its waits. The time between two polls lets the
    // awaited event happen.
    for polls in 1..=6_u32 {
        let provider = good(fixture);
        let request = request(fixture, polls);
        {
            let mut launch = pin!(provider.launch(&request));
            for _ in 0..polls {
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Ready(answer) = launch.as_mut().poll(&mut context) {
                    answer.unwrap();
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        drop(provider);
        let next = good(fixture);
        // In this order: with other providers, a request that was sent may still be carried out later.
        let living = fixture.living();
        let seen: BTreeSet<String> =
            listed(&*next, &fixture.pool()).await.iter().map(|one| one.id.to_string()).collect();
        let living = fixture.named(living);
        assert!(living.is_subset(&seen), "{living:?} live, {seen:?} are listed");
        if polls % 2 == 0 {
            next.launch(&request).await.unwrap();
            running(fixture, &*next, &request.instance).await;
            assert_eq!(fixture.living().len(), 1);
        }
        gone(fixture, &*next, &request.instance).await;
    }
}

pub async fn an_instance_that_broke_is_not_running_and_can_be_terminated(fixture: &dyn Fixture) {
    if !has(fixture, &Part::Break) {
        return;
    }
    let provider = good(fixture);
    let request = request(fixture, 1);
    provider.launch(&request).await.unwrap();
    running(fixture, &*provider, &request.instance).await;
    assert!(fixture.break_instance(&request.instance), "the fixture does not say why it cannot");
    let pool = fixture.pool();
    until("seen as broken", Duration::from_secs(10), async || {
        let seen = status(&*provider, &pool, &request.instance).await;
        (seen != Some(Status::Running)).then_some(())
    })
    .await;
    // The same token does not restart a dead instance.
    provider.launch(&request).await.unwrap();
    assert_ne!(status(&*provider, &pool, &request.instance).await, Some(Status::Running));
    assert_eq!(fixture.living(), BTreeSet::new());
    gone(fixture, &*provider, &request.instance).await;
}

pub async fn the_console_tells_of_the_boot(fixture: &dyn Fixture) {
    let provider = good(fixture);
    let request = request(fixture, 1);
    provider.launch(&request).await.unwrap();
    running(fixture, &*provider, &request.instance).await;
    let watch = Watch::default();
    let subject = subject(&*provider, &watch, fixture.boot_deadline());
    // A cloud shows it with an arbitrary delay.
    until("a console", fixture.boot_deadline(), async || {
        match subject.console(&request, &request.instance).await {
            Err(CheckVerdict::Warned(_)) => None,
            judged => {
                kept(judged);
                Some(())
            }
        }
    })
    .await;
}

pub async fn resources_are_everything_of_the_pool_and_are_deleted_one_by_one(fixture: &dyn Fixture) {
    let provider = good(fixture);
    let own = request(fixture, 1);
    let mut foreign = request(fixture, 2);
    foreign.tags.owner = OwnerId::new("00000000000000b2");
    for request in [&own, &foreign] {
        provider.launch(request).await.unwrap();
        running(fixture, &*provider, &request.instance).await;
    }
    let pool = fixture.pool();
    let found = resources(&*good(fixture), &pool).await;
    for request in [&own, &foreign] {
        let of_it = found.iter().filter(|one| one.tags.as_ref() == Some(&request.tags));
        let instances: Vec<_> = of_it.filter(|one| one.kind == ResourceKind::Instance).collect();
        assert_eq!(instances.len(), 1, "{found:?}");
        assert_eq!(instances[0].instance.as_ref(), Some(&request.instance));
    }
    let names: BTreeSet<_> = found.iter().map(|one| (one.kind, one.name.as_str())).collect();
    assert_eq!(names.len(), found.len(), "a name is not unique: {found:?}");
    let mut ours: Vec<_> = found.iter().filter(|one| one.tags.as_ref() == Some(&own.tags)).collect();
    // A resource in use by an instance is refused as long as the instance exists: instances go first.
    ours.sort_by_key(|one| one.kind);
    for resource in ours {
        until("deleted", Duration::from_mins(1), async || match provider.delete(resource).await {
            Ok(()) => None,
            Err(error) if *error.class() == ErrorClass::Transient => None,
            Err(error) => {
                assert_eq!(error.class(), &ErrorClass::NotFound, "{error}");
                Some(())
            }
        })
        .await;
    }
    until("only the other's are left", Duration::from_secs(30), async || {
        let left = resources(&*provider, &pool).await;
        assert!(left.iter().any(|one| one.tags.as_ref() == Some(&foreign.tags)), "{left:?}");
        left.iter().all(|one| one.tags.as_ref() == Some(&foreign.tags)).then_some(())
    })
    .await;
    // What is no longer listed may still be exiting.
    let other = BTreeSet::from([foreign.instance.to_string()]);
    until("dead", Duration::from_secs(30), async || (fixture.living() == other).then_some(())).await;
    assert!(resources(&*provider, &PoolName::new("another")).await.is_empty());
}
