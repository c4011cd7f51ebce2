//! Providers that break one promise each: the suite names it.

use std::cell::RefCell;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, Status, Tags};
use greenroom_core::notation::NOW;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider, ProviderError, Termination};

use super::ends::CallForOne;
use super::report::{Check, CheckGroup, Outcomes, check};
use super::subject::{LAUNCH_REFUSAL, LIST_COMPLETE};
use super::verdict::{CheckVerdict, Judged};
use super::{Limits, Subject, SubjectKind, Watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A repeated token makes a second instance.
    Twice,
    /// Each second list lacks everything, and says that it is complete.
    Forgets,
    /// A launch is refused for its quota, and made.
    RefusesLate,
    /// A termination ends all instances.
    EndsAll,
    /// What is terminated stays.
    Stays,
    /// What does not exist is found.
    FindsAnything,
    /// Instances stop before they run.
    NeverRuns,
    /// No call of a launch has an answer.
    Silent,
    /// The first launch is throttled.
    Throttles,
}

struct Faulty {
    fault: Fault,
    machines: RefCell<Vec<(String, LaunchRequest)>>,
    calls: RefCell<u32>,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { fault, machines: RefCell::default(), calls: RefCell::default() }
    }

    fn count(&self) -> u32 {
        *self.calls.borrow_mut() += 1;
        *self.calls.borrow()
    }

    fn has(&self, id: &InstanceId) -> bool {
        self.fault == Fault::FindsAnything
            || self.machines.borrow().iter().any(|(name, _)| name == id.as_str())
    }
}

fn refused<T>(class: ErrorClass) -> Result<T, ProviderError> {
    Err(ProviderError::new(class, "no"))
}

#[async_trait(?Send)]
impl Provider for Faulty {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        if self.fault == Fault::Silent {
            return refused(ErrorClass::Unknown);
        }
        if self.fault == Fault::Throttles && self.count() == 1 {
            return refused(ErrorClass::Throttled { until: None });
        }
        let mut machines = self.machines.borrow_mut();
        let is_known = machines.iter().any(|(_, known)| known.token == request.token);
        if !is_known || self.fault == Fault::Twice {
            let name = format!("{}-{}", request.instance, machines.len());
            machines.push((name, request.clone()));
        }
        if self.fault == Fault::RefusesLate { refused(ErrorClass::Quota) } else { Ok(()) }
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        if !self.has(id) {
            return refused(ErrorClass::NotFound);
        }
        let fault = self.fault;
        self.machines.borrow_mut().retain(|(name, _)| match fault {
            Fault::EndsAll => false,
            Fault::Stays => true,
            _ => name != id.as_str(),
        });
        Ok(Termination::Requested)
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        let is_empty = self.fault == Fault::Forgets && self.count().is_multiple_of(2);
        let status = if self.fault == Fault::NeverRuns { Status::Stopping } else { Status::Running };
        let listed = |(name, request): &(String, LaunchRequest)| Listed {
            id: InstanceId::new(name),
            tags: Some(request.tags.clone()),
            status,
            created: None,
            detail: None,
            by_job: false,
            refused: None,
            static_host: None,
            notice: None,
        };
        let machines = self.machines.borrow();
        let of_pool = machines.iter().filter(|(_, request)| !is_empty && request.tags.pool == *pool);
        Ok(Listing { instances: of_pool.map(listed).collect(), ..Listing::empty(NOW, None) })
    }

    async fn endpoint(&self, _id: &InstanceId) -> Result<Endpoint, ProviderError> {
        refused(ErrorClass::NotFound)
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        if self.has(id) { Ok(String::new()) } else { refused(ErrorClass::NotFound) }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

const CHECKS: &[Check] = &[
    check(LIST_COMPLETE, CheckGroup::Live, "Lists are complete.", "read all pages"),
    check(LAUNCH_REFUSAL, CheckGroup::Live, "Refusals are true.", "look at the token first"),
];

fn request(number: u32) -> LaunchRequest {
    let (pool, generation) = (PoolName::new("linux"), Generation::new("c0ffee"));
    let instance = InstanceId::launched(&pool, &generation, number);
    LaunchRequest {
        token: instance.token(1),
        instance,
        tags: Tags { pool, owner: OwnerId::new("00000000000000a1"), generation, number },
        offering: None,
        keys: InstanceKeys {
            authorized_key: String::new(),
            host_key: String::new(),
            host_key_public: String::new(),
        },
        lifetime: None,
        order: None,
    }
}

/// Every promise of the suite, in the order of a run.
async fn all(subject: &Subject<'_>) -> Judged {
    let (one, other) = (request(1), request(2));
    let pool = one.tags.pool.clone();
    subject.launch(&one).await?;
    let first = subject.is_listed(&one).await?.id;
    subject.is_repeatable(&one).await?;
    subject.launch_all(&[&other, &one, &other]).await?;
    let second = subject.is_listed(&other).await?.id;
    subject.recovers(&other).await?;
    subject.becomes(&pool, &first, Status::Running, Duration::ZERO).await?;
    match subject.console(&one, &first).await {
        Err(CheckVerdict::Warned(_)) => {}
        verdict => return verdict,
    }
    for call in [CallForOne::Terminate, CallForOne::Console, CallForOne::Endpoint] {
        subject.refuses_unknown(call, &InstanceId::new("none")).await?;
    }
    subject.ends(&first).await?;
    subject.is_not_running(&pool, &first).await?;
    subject.is_unlisted(&pool, &first).await?;
    subject.stays_gone(&first).await?;
    subject.spares(std::iter::once((&pool, &second))).await?;
    subject.goes(&second).await?;
    subject.created_nothing(&other).await
}

async fn judged(fault: Fault, kind: SubjectKind<'_>) -> Judged {
    let (provider, watch) = (Faulty::new(fault), Watch::default());
    let limits = Limits { appears: Duration::ZERO, boot: Duration::ZERO, end: Duration::from_millis(200) };
    all(&Subject { provider: &provider, kind, limits, watch: &watch }).await
}

#[tokio::test]
async fn a_provider_that_keeps_its_promises_passes_and_each_fault_is_named() {
    for (fault, expected) in [
        (Fault::None, None),
        (Fault::Twice, Some("one launch created `linux-c0ffee-1-0` and `linux-c0ffee-1-1`")),
        (Fault::Forgets, Some("a complete list lacks `linux-c0ffee-1-0`, which an earlier list had")),
        (Fault::RefusesLate, Some("no, but the list has its instance `linux-c0ffee-1-0`")),
        (Fault::EndsAll, Some("`linux-c0ffee-2-1` is gone, too")),
        (Fault::Stays, Some("`linux-c0ffee-1-0` was not gone 200 ms after its termination")),
        (Fault::FindsAnything, Some("`terminate` of `none`, which does not exist, answered `stopping`")),
        (Fault::NeverRuns, Some("no list within 0 ms has the launched instance `linux-c0ffee-1`")),
        (Fault::Silent, Some("no answer: no")),
        (Fault::Throttles, Some("throttled: no")),
    ] {
        let verdict = judged(fault, SubjectKind::Adapter).await;
        let expected = expected.map(|came| CheckVerdict::Failed(came.to_owned()));
        assert_eq!(verdict.err(), expected, "{fault:?}");
    }
}

#[tokio::test]
async fn a_kit_reports_what_every_call_is_judged_by_and_goes_on() {
    let outcomes = Outcomes::new(CHECKS);
    let skipped = judged(Fault::RefusesLate, SubjectKind::Program(&outcomes)).await;
    assert!(
        matches!(&skipped, Err(CheckVerdict::Skipped(why)) if why.contains(LAUNCH_REFUSAL)),
        "{skipped:?}"
    );
    assert_eq!(outcomes.failures(), 1);
    let (provider, watch) = (Faulty::new(Fault::Forgets), Watch::default());
    let limits = Limits { appears: Duration::ZERO, boot: Duration::ZERO, end: Duration::ZERO };
    let kind = SubjectKind::Program(&outcomes);
    let subject = Subject { provider: &provider, kind, limits, watch: &watch };
    assert_eq!(subject.launch(&request(1)).await, Ok(()));
    for _ in 0..2 {
        assert!(subject.list(&PoolName::new("linux")).await.is_ok());
    }
    assert_eq!(outcomes.failures(), 2);
    // A call without an answer is another check's, and a refusal that may pass is repeated.
    let silent = judged(Fault::Silent, SubjectKind::Program(&outcomes)).await;
    assert_eq!(silent, Err(CheckVerdict::Skipped("no".to_owned())));
    assert_eq!(judged(Fault::Throttles, SubjectKind::Program(&outcomes)).await, Ok(()));
}
