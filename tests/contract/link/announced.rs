//! The consequences of an announcement that only the instance's metadata service has: the real engine, its passes and a
//! stage, on a real link; only the provider is the test's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::execution::{Execution, Shell};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, Location, PoolName};
use greenroom_core::instance::{Answer, DrainReason};
use greenroom_core::inventory::{Capabilities, Listed, Listing, Notice, Status, Tags};
use greenroom_core::job::JobFacts;
use greenroom_core::metadata::{MetadataAnswers, MetadataService};
use greenroom_core::policy::Policy;
use greenroom_core::report::Note;
use greenroom_engine::Engine;
use greenroom_engine::keeper::Pool;
use greenroom_engine::reap::reap;
use greenroom_engine::stage::StageKind;
use greenroom_manager::runner_host::{KeeperCommand, LocalHost, Role, Signals, StateDir};
use greenroom_ports::attempts::{Assignment, AttemptRecord, Attempts as _, StageTimeouts};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::connector::StageEnd;
use greenroom_ports::host::Host;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_ports::reports::Reports as _;
use greenroom_ports::setup::{PoolSetup, Recheck, Setup};
use greenroom_ports::store::Store as _;
use greenroom_testkit::memory_store::MemoryStore;
use greenroom_testkit::metadata_service::{answer, serve};

use super::metadata::World;
use crate::linked::support::{Kept, stage};

const REBALANCE: &str = "events/recommendations/rebalance";
const WITHIN: Duration = Duration::from_mins(1);

/// A cloud with one instance, whose lists announce nothing.
struct OneInstance {
    listed: Listed,
    at: Endpoint,
    terminated: Cell<bool>,
    begun: Box<dyn Fn() -> greenroom_core::time::Stamp>,
}

#[async_trait(?Send)]
impl Provider for OneInstance {
    async fn launch(&self, _: &LaunchRequest) -> Result<(), ProviderError> {
        Err(ProviderError::new(ErrorClass::Denied, "there is one instance"))
    }

    async fn terminate(&self, _: &InstanceId) -> Result<Termination, ProviderError> {
        self.terminated.set(true);
        Ok(Termination::Gone)
    }

    async fn list(&self, _: &PoolName) -> Result<Listing, ProviderError> {
        let mut listing = Listing::empty((self.begun)(), Some(Location::new("here")));
        listing.instances.extend((!self.terminated.get()).then(|| self.listed.clone()));
        Ok(listing)
    }

    async fn endpoint(&self, _: &InstanceId) -> Result<Endpoint, ProviderError> {
        Ok(self.at.clone())
    }

    async fn console(&self, _: &InstanceId) -> Result<String, ProviderError> {
        Ok(String::new())
    }

    fn announced(&self, answers: &MetadataAnswers) -> Option<Notice> {
        answers.get(REBALANCE).map(|_| Notice { text: "may go soon".to_owned(), at: None })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

struct Fixed(PoolSetup);

#[async_trait(?Send)]
impl Setup for Fixed {
    async fn current(&self) -> (PoolSetup, Option<String>) {
        (self.0.clone(), None)
    }
}

/// A pool with one ready instance, whose metadata service announces something once `comes` is set.
struct Bench {
    world: World,
    comes: Arc<AtomicBool>,
    host: Rc<LocalHost>,
    store: Rc<MemoryStore>,
    provider: Rc<OneInstance>,
    pool: Pool,
    id: InstanceId,
}

impl Bench {
    async fn new() -> Self {
        let comes = Arc::new(AtomicBool::new(false));
        let announces = Arc::clone(&comes);
        let service = serve("127.0.0.1:0", move |_, path, stream| {
            if path.ends_with(REBALANCE) && announces.load(Ordering::SeqCst) {
                return answer(stream, "200 OK", r#"{"noticeTime": "2026-12-01T14:00:00Z"}"#);
            }
            answer(stream, "404 Not Found", "");
        });
        let world = World::new(MetadataService::AwsEc2, Some(&service), "").await;
        let command = KeeperCommand::new("/bin/false", [""; 0], Vec::new);
        let state = StateDir::open(&world.sshd.path("state")).unwrap();
        let host =
            Rc::new(LocalHost::open(state, Role::Operator, command, Signals::default_actions()).unwrap());
        let (name, generation) = (PoolName::new("linux"), Generation::new("7f3a"));
        // It has the keys of this name.
        let id = world.sshd.id.clone();
        let owner = host.identity().await.unwrap().owner;
        let tags = Tags { pool: name.clone(), owner, generation: generation.clone(), number: 1 };
        let listed = Listed {
            id: id.clone(),
            tags: Some(tags),
            status: Status::Running,
            created: None,
            detail: None,
            by_job: false,
            refused: None,
            static_host: None,
            notice: None,
        };
        let clock = Rc::clone(&host);
        let provider = OneInstance {
            listed,
            at: world.at.clone(),
            terminated: Cell::new(false),
            begun: Box::new(move || clock.now()),
        };
        let (provider, store) = (Rc::new(provider), Rc::new(MemoryStore::new()));
        let policy = Arc::new(Policy { max_instances: 1, max_use_count: None, ..Policy::default() });
        let setup = PoolSetup {
            shell: Shell::Bash.into(),
            recheck: Recheck { builds_dir: "/builds".to_owned(), command: None },
            policy: Arc::clone(&policy),
            provider: Rc::clone(&provider) as Rc<dyn Provider>,
            ready_command: None,
            cleaning: None,
            clean_command: None,
            pulls: None,
        };
        let engine = Engine {
            pool: name,
            store: Rc::clone(&store) as _,
            host: Host::of(&host),
            connector: Rc::clone(&world.linked) as _,
            clock: Rc::clone(&host) as _,
        };
        let pool = Pool::new(engine, Rc::new(Fixed(setup)));
        let bench = Self { world, comes, host, store, provider, pool, id: id.clone() };
        let now = bench.host.now();
        bench
            .commit([
                Change::PolicySet { policy },
                Change::GenerationBegun { generation: generation.clone() },
                Change::LaunchIntended {
                    instance: id.clone(),
                    generation,
                    number: 1,
                    attempt: 1,
                    capacity: 1,
                    uses_left: None,
                    offering: None,
                    location: Some(Location::new("here")),
                    lifetime: None,
                    ordered: None,
                },
                Change::LaunchAnswered {
                    instance: id.clone(),
                    attempt: 1,
                    answer: Answer::Accepted { at: now },
                },
                Change::Reached { instance: id.clone(), endpoint: bench.world.at.clone() },
                Change::BecameReady { instance: id },
            ])
            .await;
        bench.world.check().await;
        bench.world.until_listening().await;
        bench
    }

    async fn commit(&self, changes: impl IntoIterator<Item = Change>) {
        let now = self.host.now();
        let events: Vec<Event> = changes.into_iter().map(|change| change.at(now)).collect();
        self.store.transact(&mut |_| events.clone()).await.unwrap();
    }

    async fn reap(&self) {
        reap(&self.pool, WITHIN).await.unwrap();
    }

    /// Reaps until a condition holds.
    async fn reap_until(&self, holds: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !holds() {
            assert!(begun.elapsed() < WITHIN, "waited in vain");
            self.reap().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

#[tokio::test]
async fn an_idle_instance_that_alone_knows_of_its_end_is_replaced() {
    let bench = Bench::new().await;
    bench.reap().await;
    assert!(!bench.provider.terminated.get(), "nothing is announced");
    bench.comes.store(true, Ordering::SeqCst);
    bench.reap_until(|| bench.provider.terminated.get()).await;
    let notice = "may go soon".to_owned();
    let drained =
        Change::DrainingBegun { instance: bench.id.clone(), reason: DrainReason::Announced { notice } };
    assert!(bench.store.events().iter().any(|event| event.change == drained));
}

#[tokio::test]
async fn a_running_job_reads_once_what_its_instance_alone_knows() {
    let bench = Bench::new().await;
    let (attempt, job) = (AttemptName::new("custom-executor1"), JobKey::new("https://gitlab.example.com", 1));
    let facts = JobFacts::new(job, "acme/shop", Duration::from_hours(1));
    let record = AttemptRecord {
        job: facts.clone(),
        pool: bench.pool.engine.pool.clone(),
        execution: Execution::Machine { shell: Shell::Bash.into() },
        builds_dir: None,
        begun: bench.host.now(),
        assignment: None,
        order: None,
    };
    let (_lease, _) = bench.host.begin_attempt(&attempt, &record).await.unwrap();
    let domain = Policy::default().domain_of(&facts);
    bench
        .commit([
            Change::Requested { attempt: attempt.clone(), job: facts, domain, acquire_timeout: WITHIN },
            Change::Granted { attempt: attempt.clone(), instance: bench.id.clone() },
        ])
        .await;
    let assignment = Assignment {
        instance: bench.id.clone(),
        endpoint: bench.world.at.clone(),
        is_static: false,
        timeouts: StageTimeouts::default(),
        unbegun: false,
        container: None,
    };
    bench.host.assign(&attempt, Some(&assignment)).await.unwrap();
    let gate = bench.world.sshd.path("gate");
    let script = format!("until [ -e {} ]; do sleep 0.1; done; exit 3\n", gate.display());
    let told = RefCell::new(Vec::new());
    let tell = |text: &str| told.borrow_mut().push(text.to_owned());
    let mut kept = Kept::default();
    let script = (stage(Shell::Bash, script).script, StageKind::default());
    let running = bench.pool.engine.stage(&attempt, script, &mut kept, &tell);
    let announcing = async {
        bench.comes.store(true, Ordering::SeqCst);
        bench.reap_until(|| !told.borrow().is_empty()).await;
        // Longer than the stage looks for notices again.
        tokio::time::sleep(Duration::from_secs(6)).await;
        std::fs::write(&gate, "").unwrap();
    };
    let (end, ()) = tokio::join!(running, announcing);
    assert_eq!(end.unwrap(), StageEnd::Exited(3));
    let id = &bench.id;
    assert_eq!(*told.borrow(), [format!("instance {id} may go soon; the job goes on until then")]);
    let report = bench.host.read_report(&bench.pool.engine.pool).await.unwrap().unwrap();
    let note = Note::Announced { instance: id.clone(), notice: "may go soon".to_owned() };
    assert!(report.notes.contains(&note), "{:?}", report.notes);
    assert!(!bench.provider.terminated.get());
}
