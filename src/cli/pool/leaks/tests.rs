//! The whole command over a provider with given resources.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::{Capabilities, Listing, Resource, ResourceKind, Resources, Tags};
use greenroom_core::orphan::{OrphanReason, Ownership};
use greenroom_core::policy::{Policy, Timing};
use greenroom_core::time::{BootId, Stamp};
use greenroom_engine::Engine;
use greenroom_engine::reap::LookError;
use greenroom_manager::runner_host::{KeeperCommand, LocalHost, Role, Signals, StateDir};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_ports::setup::{PoolSetup, Recheck};
use greenroom_ports::store::Store as _;
use greenroom_testkit::memory_store::MemoryStore;

use super::view::{self, PoolView};
use super::{LeakCheck, check};
use crate::cli::args::LeaksOptions;
use crate::cli::context;
use crate::cli::fixture::{EventFixture, id, pool};
use crate::cli::when::When;

/// A cloud with volumes: a deletion takes three calls, and a volume is kept as long as its instance exists.
#[derive(Debug, Default)]
struct Cloud {
    has: RefCell<Vec<(Resource, u8)>>,
    is_cut_off: bool,
    /// Names of resources that are never deleted.
    keeps: Option<(&'static str, ErrorClass)>,
    deletions: RefCell<Vec<String>>,
}

fn no(class: ErrorClass) -> ProviderError {
    ProviderError::new(class, "said the cloud")
}

#[async_trait(?Send)]
impl Provider for Cloud {
    async fn launch(&self, _: &LaunchRequest) -> Result<(), ProviderError> {
        Err(no(ErrorClass::Denied))
    }

    async fn terminate(&self, _: &InstanceId) -> Result<Termination, ProviderError> {
        Err(no(ErrorClass::Denied))
    }

    async fn list(&self, _: &PoolName) -> Result<Listing, ProviderError> {
        Err(no(ErrorClass::Denied))
    }

    async fn endpoint(&self, _: &InstanceId) -> Result<Endpoint, ProviderError> {
        Err(no(ErrorClass::NotFound))
    }

    async fn console(&self, _: &InstanceId) -> Result<String, ProviderError> {
        Err(no(ErrorClass::Denied))
    }

    async fn resources(&self, _: &PoolName) -> Result<Resources, ProviderError> {
        let all = self.has.borrow().iter().map(|(resource, _)| resource.clone()).collect::<Vec<_>>();
        let (copies, found) = all.into_iter().partition(|resource| resource.name.starts_with("copy"));
        Ok(Resources {
            begun: crate::cli::fixture::at(0.0),
            complete: !self.is_cut_off,
            location: None,
            found,
            copies,
        })
    }

    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        self.deletions.borrow_mut().push(resource.name.clone());
        if let Some((name, class)) = &self.keeps
            && *name == resource.name
        {
            return Err(no(class.clone()));
        }
        let mut has = self.has.borrow_mut();
        let is_used = resource.kind != ResourceKind::Instance
            && has.iter().any(|(other, _)| {
                other.kind == ResourceKind::Instance && other.instance == resource.instance
            });
        if is_used {
            return Err(no(ErrorClass::Transient));
        }
        let Some(at) = has.iter().position(|(other, _)| other == resource) else {
            return Err(no(ErrorClass::NotFound));
        };
        has[at].1 += 1;
        if has[at].1 == 2 {
            has.remove(at);
        }
        Ok(())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

struct Bench {
    _home: tempfile::TempDir,
    host: Rc<LocalHost>,
    owner: OwnerId,
    engine: Engine,
    /// The printed text.
    printed: RefCell<String>,
    boots: BTreeSet<OwnerId>,
}

impl Bench {
    /// Nine launches; 1 is ready, the other eight have no record any more.
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let nothing: [&str; 0] = [];
        let command = KeeperCommand::new("/no/such/greenroom", nothing, Vec::new);
        let state = StateDir::open(&home.path().join("state")).unwrap();
        let root = state.root().to_owned();
        let host = LocalHost::open(state, Role::Operator, command, Signals::default_actions()).unwrap();
        let host = Rc::new(host);
        let store = MemoryStore::new();
        let mut story = EventFixture::of(Policy { max_instances: 9, ..Policy::default() });
        story.ready(1, 1.0);
        for number in 2..=9 {
            story.launched(number, 1.0);
            let why = greenroom_core::instance::DrainReason::ByOperator;
            let drains = greenroom_core::event::Change::DrainingBegun { instance: id(number), reason: why };
            story.then(3.0, drains);
            story.then(4.0, greenroom_core::event::Change::Forgotten { instance: id(number) });
        }
        store.transact(&mut |_| story.events.clone()).await.unwrap();
        let owner = host.identity().await.unwrap().owner;
        let engine = Engine {
            pool: pool(),
            store: Rc::new(store),
            host: greenroom_ports::host::Host::of(&host),
            connector: Rc::new(context::ssh(Path::new(&root))),
            clock: Rc::clone(&host) as Rc<dyn greenroom_ports::clock::Clock>,
        };
        Self { _home: home, host, owner, engine, printed: RefCell::default(), boots: BTreeSet::new() }
    }

    fn resource(&self, kind: ResourceKind, name: &str, number: u32, age: Duration) -> Resource {
        let generation = Generation::new("7f3a");
        Resource {
            kind,
            name: name.to_owned(),
            instance: Some(id(number)),
            tags: Some(Tags { pool: pool(), owner: self.owner.clone(), generation, number }),
            // From a cloud's clock: the runner host may not have been up for so long.
            created: Some(Stamp {
                boot: BootId(0),
                uptime_ms: 0,
                ..When::local(self.host.now()).before(age)
            }),
            detail: None,
        }
    }

    /// A recorded instance with its volume, two orphans with a volume each, one that is young, and two resources of
    /// other owners.
    fn cloud(&self) -> Cloud {
        use ResourceKind::{Instance, Other, Volume};
        let hour = Duration::from_hours(1);
        let mut foreign = self.resource(Instance, "i-6", 6, hour);
        foreign.tags.as_mut().unwrap().owner = OwnerId::new("somebody");
        let untagged =
            Resource { tags: None, instance: None, ..self.resource(Other("address"), "ip-7", 7, hour) };
        let large = Resource { detail: Some("m7i.large".into()), ..self.resource(Instance, "i-2", 2, hour) };
        let resources = [
            self.resource(Volume, "vol-2", 2, hour),
            large,
            self.resource(Instance, "i-1", 1, hour),
            self.resource(Volume, "vol-1", 1, hour),
            self.resource(Volume, "vol-4", 4, hour * 30),
            self.resource(Instance, "i-5", 5, Duration::from_secs(12)),
            foreign,
            untagged,
        ];
        Cloud { has: RefCell::new(resources.map(|resource| (resource, 0)).into()), ..Cloud::default() }
    }

    async fn check(&self, cloud: &Rc<Cloud>, options: &LeaksOptions) -> Result<LeakCheck, LookError> {
        let timing = Timing { probe_interval: Duration::from_millis(1), ..Timing::default() };
        let setup = PoolSetup {
            shell: Shell::Bash.into(),
            recheck: Recheck { builds_dir: "/builds".to_owned(), command: None },
            policy: Arc::new(Policy { timing, ..Policy::default() }),
            provider: Rc::clone(cloud) as Rc<dyn Provider>,
            ready_command: None,
            cleaning: None,
            clean_command: None,
            pulls: None,
        };
        let say = |text: &str| self.printed.borrow_mut().push_str(text);
        check(&self.engine, &setup, options, self.boots.clone(), &say).await
    }
}

fn terminate() -> LeaksOptions {
    LeaksOptions { terminate: true, ..LeaksOptions::default() }
}

fn orphans(view: &PoolView) -> Vec<&str> {
    let orphans = view.resources.iter().filter(|one| matches!(one.ownership, Ownership::Orphaned(_)));
    orphans.map(|one| one.name.as_str()).collect()
}

#[tokio::test]
async fn leftovers_are_told_from_what_is_recorded_young_or_somebody_elses() {
    let bench = Bench::new().await;
    let cloud = Rc::new(bench.cloud());
    let checked = bench.check(&cloud, &LeaksOptions::default()).await.unwrap();
    assert!(!checked.is_clean && checked.view.deletion.is_none());
    assert_eq!(orphans(&checked.view), ["vol-2", "i-2", "vol-4"]);
    assert!(cloud.deletions.borrow().is_empty());
    let somebody = "`somebody`";
    let expected = format!(
        "\
pool linux: 3 orphaned resources, 2 recorded
KIND      NAME   INSTANCE      AGE
volume    vol-2  linux-7f3a-2  1h
    its instance has no record
instance  i-2    linux-7f3a-2  1h
    it has no record (m7i.large)
volume    vol-4  linux-7f3a-4  1d 6h
    its instance has no record

not counted, and left alone:
KIND      NAME  INSTANCE      AGE
instance  i-5   linux-7f3a-5  12 s
    it is younger than `reap_grace`: its launch may be in progress
instance  i-6   linux-7f3a-6  1h
    it has another owner, {somebody}
address   ip-7  -             1h
    it has no tags of Greenroom
"
    );
    assert_eq!(view::found(&checked.view, 80), expected);
}

#[tokio::test]
async fn what_doctor_tries_out_is_named_as_that() {
    let bench = Bench { boots: BTreeSet::from([OwnerId::new("somebody")]), ..Bench::new().await };
    let checked = bench.check(&Rc::new(bench.cloud()), &LeaksOptions::default()).await.unwrap();
    assert_eq!(orphans(&checked.view), ["vol-2", "i-2", "vol-4"], "that is not for us to end");
    assert!(
        bench.printed.borrow().contains("a `doctor --boot` launched it: that one or the next terminates it")
    );
}

#[tokio::test]
async fn json_names_every_thing_and_how_it_stands() {
    let bench = Bench::new().await;
    let checked = bench.check(&Rc::new(bench.cloud()), &LeaksOptions::default()).await.unwrap();
    let json = serde_json::to_value(checked.view).unwrap();
    assert_eq!(
        (&json["pool"], &json["orphaned"], &json["unknown_generation"]),
        (&"linux".into(), &3.into(), &0.into())
    );
    let resources = json["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 8);
    let volume = resources.iter().find(|resource| resource["name"] == "vol-4").unwrap();
    assert_eq!((&volume["kind"], &volume["ownership"]), (&"volume".into(), &"orphaned".into()));
    assert_eq!((&volume["instance"], &volume["age_s"]), (&"linux-7f3a-4".into(), &108_000.into()));
    assert!(json["deletion"].is_null());
}

#[tokio::test]
async fn what_is_left_over_is_deleted_and_nothing_else() {
    let bench = Bench::new().await;
    let cloud = Rc::new(bench.cloud());
    let dry = LeaksOptions { dry_run: true, ..terminate() };
    let checked = bench.check(&cloud, &dry).await.unwrap();
    let planned = checked.view.deletion.unwrap();
    assert!(!checked.is_clean && planned.dry_run && cloud.deletions.borrow().is_empty());
    assert_eq!(planned.gone, ["vol-2", "i-2", "vol-4"]);
    let lines = "would delete volume vol-2 (linux-7f3a-2)\nwould delete instance i-2 (linux-7f3a-2)\nwould delete volume \
                 vol-4 (linux-7f3a-4)\n";
    assert!(bench.printed.borrow().ends_with(&format!("\n{lines}")), "{}", bench.printed.borrow());

    let checked = bench.check(&cloud, &terminate()).await.unwrap();
    assert!(checked.is_clean);
    let deletion = checked.view.deletion.unwrap();
    assert!(deletion.stays.is_empty());
    let mut gone = deletion.gone;
    gone.sort_unstable();
    assert_eq!(gone, ["i-2", "vol-2", "vol-4"]);
    let printed = bench.printed.borrow();
    assert!(printed.contains("\ndeleted instance i-2 (linux-7f3a-2)\n"), "{printed}");
    assert!(printed.ends_with("\npool linux: no orphaned resources, 2 recorded\n"), "{printed}");
    let left: Vec<String> = cloud.has.borrow().iter().map(|(resource, _)| resource.name.clone()).collect();
    assert_eq!(left, ["i-1", "vol-1", "i-5", "i-6", "ip-7"]);
    // A volume that an instance uses is not even requested to be deleted.
    let deletions = cloud.deletions.borrow();
    let last_of_instance = deletions.iter().rposition(|name| name == "i-2").unwrap();
    assert!(deletions.iter().position(|name| name == "vol-2").unwrap() > last_of_instance, "{deletions:?}");
}

#[tokio::test]
async fn what_the_provider_does_not_delete_is_named_with_its_words() {
    let bench = Bench::new().await;
    let cloud = Rc::new(Cloud { keeps: Some(("vol-4", ErrorClass::Denied)), ..bench.cloud() });
    let checked = bench.check(&cloud, &terminate()).await.unwrap();
    assert!(!checked.is_clean);
    let deletion = checked.view.deletion.unwrap();
    assert_eq!(deletion.gone.len(), 2);
    assert_eq!(
        (deletion.stays[0].name.as_str(), deletion.stays[0].reason.as_str()),
        ("vol-4", "denied: said the cloud")
    );
    let printed = bench.printed.borrow();
    assert!(
        printed.contains("\nnot deleted: volume vol-4 (linux-7f3a-4): denied: said the cloud\n"),
        "{printed}"
    );
}

#[tokio::test]
async fn beside_things_of_ours_that_were_never_launched_here_nothing_is_deleted() {
    let bench = Bench::new().await;
    let mut cloud = bench.cloud();
    cloud.has.get_mut().push((bench.resource(ResourceKind::Instance, "i-10", 10, Duration::from_secs(1)), 0));
    let cloud = Rc::new(cloud);
    let checked = bench.check(&cloud, &terminate()).await.unwrap();
    assert!(!checked.is_clean && checked.view.deletion.is_none() && cloud.deletions.borrow().is_empty());
    let printed = view::found(&checked.view, 80);
    assert!(
        printed.contains("it has this owner's tag, but was never launched from this state directory"),
        "{printed}"
    );
    assert!(printed.contains("error: a copy of this state directory is in use"), "{printed}");

    cloud.has.borrow_mut().retain(|(resource, _)| resource.name == "i-10");
    let checked = bench.check(&cloud, &LeaksOptions::default()).await.unwrap();
    assert!(!checked.is_clean, "what cannot be told is no good answer");
    assert_eq!(checked.view.resources[0].ownership, Ownership::Stranger);
}

#[tokio::test]
async fn a_copy_is_an_alarm_and_stays_while_orphans_are_deleted() {
    let bench = Bench::new().await;
    let mut cloud = bench.cloud();
    // With the tags of a recorded instance, and of one without a record.
    for (name, number) in [("copy-1", 1), ("copy-9", 9)] {
        let copy = bench.resource(ResourceKind::Instance, name, number, Duration::from_hours(2));
        cloud.has.get_mut().push((copy, 0));
    }
    let cloud = Rc::new(cloud);
    let checked = bench.check(&cloud, &terminate()).await.unwrap();
    assert_eq!(checked.view.deletion.unwrap().gone, ["i-2", "vol-4", "vol-2"]);
    assert_eq!(checked.view.copied, 2);
    assert!(!checked.is_clean, "nothing is orphaned any more, but the copies cost money");
    assert!(!cloud.deletions.borrow().iter().any(|name| name.starts_with("copy")));
    let printed = bench.printed.borrow();
    assert!(printed.contains("it has this owner's tags, but no launch of Greenroom created it"), "{printed}");
    assert!(printed.contains("error: resources bear this owner's tags"), "{printed}");
}

#[tokio::test]
async fn an_answer_that_was_cut_off_is_none() {
    let bench = Bench::new().await;
    let cloud = Rc::new(Cloud { is_cut_off: true, ..bench.cloud() });
    let error = bench.check(&cloud, &terminate()).await.unwrap_err();
    assert!(matches!(error, LookError::Incomplete), "{error}");
    assert!(cloud.deletions.borrow().is_empty());
}

#[tokio::test]
async fn a_volume_whose_instance_is_recorded_and_gone_is_left_over() {
    let bench = Bench::new().await;
    let cloud = bench.cloud();
    cloud.has.borrow_mut().retain(|(resource, _)| resource.name == "vol-1");
    let checked = bench.check(&Rc::new(cloud), &LeaksOptions::default()).await.unwrap();
    assert_eq!(checked.view.resources[0].ownership, Ownership::Orphaned(OrphanReason::InstanceGone));
}
