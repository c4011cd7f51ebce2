//! The common provider on a cloud that a test controls.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;

use fs_err as fs;
use greenroom_core::ids::{Location, OfferingName, OwnerId};
use greenroom_core::inventory::Status;
use greenroom_keys::table::{self, Table};
use greenroom_ports::clock::Clock;
use greenroom_testkit::clock::ManualClock;

use super::launch::CAPACITY_WITHIN;
use super::*;
use crate::cloud::api::{Created, Disks, LaunchStatus, Machines};
use crate::cloud::machine::Handle;
use crate::cloud::machine::tests::machine;
use crate::cloud::offerings::{KeyNames, Offering};
use crate::cloud::user_data::tests::launch_request;

const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones"], check: |_, _| Ok(()) };

/// The lag of an API that says nothing of it.
const LIST_LAG: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct FakeApi {
    machines: RefCell<Vec<Machine>>,
    disks: RefCell<Vec<Disk>>,
    /// The received launch specs.
    specs: RefCell<Vec<String>>,
    /// Errors for the next launches.
    errors: RefCell<Vec<ErrorClass>>,
    lists: Cell<u32>,
    deletes: Cell<u32>,
    hidden: Cell<bool>,
    /// A repeated launch makes another machine.
    careless: Cell<bool>,
    /// The state in which a launch is accepted without capacity.
    accepted: Cell<Option<MachineState>>,
    /// The status of its launch, poll by poll.
    statuses: RefCell<VecDeque<LaunchStatus>>,
    /// The time that passes with each list.
    passing: RefCell<Option<(Rc<ManualClock>, Duration)>>,
    /// A directory in which nothing can be stored once the next launch has been received.
    lost: RefCell<Option<PathBuf>>,
}

#[async_trait(?Send)]
impl Api for Rc<FakeApi> {
    type LaunchSpec = String;
    type MachineId = Handle;

    fn launch_spec(&self, request: &LaunchRequest, offering: &Offering) -> Result<String, ProviderError> {
        Ok(format!("{} {} {}", request.token, offering.machine_type, offering.image))
    }

    fn shown_token(&self, owner: &OwnerId, token: &str) -> String {
        format!("{owner} {token}")
    }

    fn notice_interval(&self) -> Duration {
        Duration::from_mins(5)
    }

    fn repeats_find_the_machine(&self) -> bool {
        !self.careless.get()
    }

    fn announced(&self, answers: &MetadataAnswers) -> Option<&'static str> {
        answers.contains_key("end").then_some("will end")
    }

    async fn create(&self, spec: &String) -> Result<Created, ProviderError> {
        self.specs.borrow_mut().push(spec.clone());
        if let Some(dir) = self.lost.take() {
            fs::rename(&dir, dir.with_extension("away")).unwrap();
            fs::write(dir, "").unwrap();
        }
        if let Some(class) = self.errors.borrow_mut().pop() {
            return Err(ProviderError::new(class, "as the test says"));
        }
        let id = spec.split('/').next().unwrap();
        let made = machine(id, self.accepted.get().unwrap_or(MachineState::Running));
        if !self.machines.borrow().contains(&made) {
            self.machines.borrow_mut().push(made.clone());
        }
        Ok(Created { handle: made.handle, capacity_confirmed: self.accepted.get().is_none() })
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        self.lists.set(self.lists.get() + 1);
        if let Some((clock, time)) = &*self.passing.borrow() {
            clock.pass(*time);
        }
        let all = if self.hidden.get() { Vec::new() } else { self.machines.borrow().clone() };
        Ok(Machines { all, complete: true, location: Some(Location::new("test account 1")) })
    }

    async fn launch_status(&self, _spec: &String) -> Result<LaunchStatus, ProviderError> {
        Ok(self.statuses.borrow_mut().pop_front().unwrap_or(LaunchStatus::Unknown))
    }

    async fn delete(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.deletes.set(self.deletes.get() + 1);
        let mut machines = self.machines.borrow_mut();
        let found = machines.iter_mut().find(|machine| machine.handle == *handle && !self.hidden.get());
        found
            .map(|machine| machine.state = MachineState::Ending)
            .ok_or_else(|| not_found(&InstanceId::new("?")))
    }

    async fn console(&self, _machine: &Handle) -> Result<String, ProviderError> {
        Ok("booted".to_owned())
    }

    async fn disks(&self, _now: Stamp) -> Result<Disks, ProviderError> {
        Ok(Disks { all: self.disks.borrow().clone(), complete: true })
    }

    async fn delete_resource(&self, _resource: &Resource) -> Result<(), ProviderError> {
        Err(not_found(&InstanceId::new("?")))
    }

    async fn examine(&self, _demand: &Demand) -> Vec<Finding> {
        Vec::new()
    }
}

struct CloudFixture {
    world: Rc<FakeApi>,
    clock: Rc<ManualClock>,
    state: tempfile::TempDir,
}

impl CloudFixture {
    fn new() -> Self {
        Self { world: Rc::default(), clock: Rc::default(), state: tempfile::tempdir().unwrap() }
    }

    fn cloud(&self, image: &str) -> Cloud<Rc<FakeApi>> {
        let values = format!("image = \"{image}\"\nmachine_types = [\"big\", \"small\"]\nzones = \"a\"\n")
            .parse()
            .unwrap();
        let read = |table: &Table<'_>| Common::read(table, &KEY_NAMES);
        let settings = table::read(crate::gce::KEYS, "linux", &values, read).unwrap();
        let context = BuildContext {
            clock: Rc::clone(&self.clock) as Rc<dyn Clock>,
            ..greenroom_harness::here::build_context(self.state.path())
        };
        let account = self.state.path().display().to_string();
        Cloud::new(&context, settings, &account, Rc::clone(&self.world))
    }

    fn pass(&self, time: Duration) {
        self.clock.pass(time);
    }

    fn fail_next(&self, class: ErrorClass) {
        self.world.errors.borrow_mut().push(class);
    }
}

fn request(id: &str, attempt: u32) -> LaunchRequest {
    LaunchRequest {
        instance: InstanceId::new(id),
        token: format!("{id}/{attempt}"),
        offering: Some(OfferingName::new("a small")),
        ..launch_request("linux", "owner", 1)
    }
}

fn class<T: std::fmt::Debug>(answer: Result<T, ProviderError>) -> ErrorClass {
    answer.unwrap_err().class().clone()
}

#[tokio::test]
async fn a_repeat_says_what_was_said_whatever_the_configuration_says_by_then() {
    let stage = CloudFixture::new();
    stage.fail_next(ErrorClass::Unknown);
    assert_eq!(class(stage.cloud("old").launch(&request("x", 1)).await), ErrorClass::Unknown);
    stage.cloud("new").launch(&request("x", 1)).await.unwrap();
    stage.cloud("new").launch(&request("x", 1)).await.unwrap();
    assert_eq!(
        *stage.world.specs.borrow(),
        ["x/1 small old", "x/1 small old"],
        "once it is made, nobody is asked"
    );
}

#[tokio::test]
async fn a_launch_whose_answer_cannot_be_stored_is_not_refused() {
    let stage = CloudFixture::new();
    let dir = stage.state.path().join("launches/linux");
    stage.world.lost.replace(Some(dir.clone()));
    assert_eq!(class(stage.cloud("i").launch(&request("x", 1)).await), ErrorClass::Unknown);
    fs::remove_file(&dir).unwrap();
    fs::rename(dir.with_extension("away"), &dir).unwrap();
    stage.cloud("i").launch(&request("x", 1)).await.unwrap();
    assert_eq!(*stage.world.specs.borrow(), ["x/1 small i", "x/1 small i"], "the same launch");
}

#[tokio::test]
async fn only_a_refusal_for_lack_of_capacity_or_quota_answers_for_an_earlier_call() {
    let scope = "zone b".to_owned();
    for (refusal, forgotten) in [
        (ErrorClass::NoCapacity { scope }, true),
        (ErrorClass::Quota, true),
        (ErrorClass::Denied, false),
        (ErrorClass::Throttled { until: None }, false),
        (ErrorClass::Transient, false),
        (ErrorClass::Invalid, false),
    ] {
        let stage = CloudFixture::new();
        let cloud = stage.cloud("i");
        stage.fail_next(ErrorClass::Unknown);
        assert_eq!(class(cloud.launch(&request("x", 1)).await), ErrorClass::Unknown);
        stage.fail_next(refusal.clone());
        let answer = class(cloud.launch(&request("x", 1)).await);
        assert!(answer.is_definite(), "{answer}");
        let known = stage.cloud("i").ledger.contains(&InstanceId::new("x"));
        assert_eq!(known, !forgotten, "after {refusal}");
    }
}

/// The result of a launch that is accepted in this state, given the statuses of its polls; and the number of lists.
async fn accepted(
    state: MachineState,
    listed: bool,
    statuses: Vec<LaunchStatus>,
) -> (Option<ErrorClass>, u32) {
    let stage = CloudFixture::new();
    stage.world.accepted.set(Some(state));
    stage.world.hidden.set(!listed);
    *stage.world.statuses.borrow_mut() = statuses.into();
    // The third list is past the lag.
    *stage.world.passing.borrow_mut() = Some((Rc::clone(&stage.clock), LIST_LAG / 2));
    let answer = stage.cloud("i").launch(&request("x", 1)).await;
    (answer.err().map(|error| error.class().clone()), stage.world.lists.get())
}

#[tokio::test]
async fn a_search_for_capacity_without_end_is_given_up() {
    let stage = CloudFixture::new();
    stage.world.accepted.set(Some(MachineState::Accepted));
    *stage.world.passing.borrow_mut() = Some((Rc::clone(&stage.clock), CAPACITY_WITHIN / 2));
    let cloud = stage.cloud("i");
    assert_eq!(class(cloud.launch(&request("x", 1)).await), ErrorClass::Unknown);
    // It may still get its place: it is terminated like any other.
    *stage.world.passing.borrow_mut() = None;
    cloud.terminate(&InstanceId::new("x")).await.unwrap();
    assert_eq!(stage.world.deletes.get(), 1);
}

#[tokio::test]
async fn a_refused_machine_that_the_cloud_keeps_is_no_capacity() {
    let no_capacity = ErrorClass::NoCapacity { scope: "a".to_owned() };
    let refused = LaunchStatus::Refused(ProviderError::new(no_capacity.clone(), "no host"));
    let seen = tokio::join!(
        accepted(MachineState::Stopped, true, vec![refused]),
        accepted(MachineState::Stopped, true, vec![]),
    );
    assert_eq!(seen.0, (Some(no_capacity), 1));
    assert_eq!(seen.1, (None, 1), "it had capacity");
}

#[tokio::test]
async fn what_is_accepted_without_a_place_is_looked_after() {
    use MachineState::{Accepted, Ending, Starting};
    let refused = || LaunchStatus::Refused(ProviderError::new(ErrorClass::Quota, "no luck"));
    let quota = Some(ErrorClass::Quota);
    let gone = Some(ErrorClass::Transient);
    let seen = tokio::join!(
        accepted(Starting, true, vec![]),
        accepted(Accepted, false, vec![LaunchStatus::Unknown, refused()]),
        accepted(Accepted, false, vec![LaunchStatus::Unknown, LaunchStatus::Confirmed]),
        accepted(Ending, true, vec![refused()]),
        accepted(Ending, true, vec![LaunchStatus::Confirmed]),
        accepted(Accepted, false, [vec![LaunchStatus::Pending; 5], vec![LaunchStatus::Confirmed]].concat()),
    );
    assert_eq!(seen.0, (None, 1), "the list has its place");
    assert_eq!(seen.1, (quota.clone(), 2), "no list has it, and its order says no");
    assert_eq!(seen.2, (None, 2), "no list has it yet, and its order says yes");
    assert_eq!(seen.3, (quota, 1), "it is ending, and its order says no");
    assert_eq!(seen.4, (gone.clone(), 1), "it had a place, and was taken away");
    assert_eq!(seen.5, (None, 6), "a place is looked for, and that takes its time");
    assert_eq!(accepted(Accepted, false, vec![]).await, (gone, 3), "nobody ever tells of it");
}

#[tokio::test]
async fn after_a_refusal_the_next_attempt_is_another_order() {
    let stage = CloudFixture::new();
    stage.fail_next(ErrorClass::Quota);
    assert_eq!(class(stage.cloud("old").launch(&request("x", 1)).await), ErrorClass::Quota);
    stage.cloud("new").launch(&request("x", 2)).await.unwrap();
    assert_eq!(stage.world.specs.borrow()[1], "x/2 small new");
    assert_eq!(class(stage.cloud("new").launch(&request("x", 3)).await), ErrorClass::Invalid);
    let gone = LaunchRequest { offering: Some(OfferingName::new("b huge")), ..request("y", 1) };
    assert_eq!(class(stage.cloud("new").launch(&gone).await), ErrorClass::Invalid);
}

#[tokio::test]
async fn many_that_wait_are_one_list_and_a_list_is_always_new() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    for number in 0..5 {
        cloud.launch(&request(&format!("x-{number}"), 1)).await.unwrap();
    }
    for number in 0..5 {
        let endpoint = cloud.endpoint(&InstanceId::new(format!("x-{number}"))).await.unwrap();
        assert_eq!(
            (endpoint.address.as_str(), endpoint.host_key.as_str()),
            ("10.0.0.7", "ssh-ed25519 AAAAhost")
        );
    }
    assert_eq!(stage.world.lists.get(), 1);
    let listing = cloud.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!((listing.instances.len(), stage.world.lists.get()), (5, 2));
    assert_eq!(cloud.list(&PoolName::new("other")).await.unwrap().instances, []);
}

#[tokio::test]
async fn an_end_is_asked_for_once() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    for _ in 0..3 {
        cloud.terminate(&id).await.unwrap();
    }
    assert_eq!((stage.world.deletes.get(), stage.world.lists.get()), (1, 1));
    let listing = cloud.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!(listing.instances[0].status, Status::Stopping);
    stage.world.machines.borrow_mut()[0].state = MachineState::Gone;
    stage.pass(Duration::from_secs(2));
    assert_eq!(cloud.terminate(&id).await.unwrap(), Termination::Gone, "it is shown as terminated");
    assert_eq!(class(cloud.endpoint(&id).await), ErrorClass::NotFound);
    assert_eq!(cloud.list(&PoolName::new("linux")).await.unwrap().instances, []);
}

#[tokio::test]
async fn a_machine_that_was_seen_is_not_found_by_the_first_list_without_it() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    cloud.terminate(&id).await.unwrap();
    stage.world.machines.borrow_mut().clear();
    stage.pass(WAIT_AGE * 2);
    assert_eq!(class(cloud.endpoint(&id).await), ErrorClass::NotFound, "it is young, but it was there");
    assert_eq!(class(cloud.terminate(&id).await), ErrorClass::NotFound);
    assert_eq!(stage.world.deletes.get(), 1);
}

#[tokio::test]
async fn what_has_stopped_by_itself_is_deleted_too() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    stage.world.machines.borrow_mut()[0].state = MachineState::Stopped;
    let listing = cloud.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!((listing.instances[0].status, &listing.instances[0].detail), (Status::Stopping, &None));
    for _ in 0..3 {
        cloud.terminate(&InstanceId::new("x")).await.unwrap();
    }
    assert_eq!(stage.world.deletes.get(), 1);
}

#[tokio::test]
async fn what_no_list_tells_of_yet_is_neither_absent_nor_forgotten() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    stage.world.hidden.set(true);
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    assert_eq!(class(cloud.endpoint(&id).await), ErrorClass::Transient);
    cloud.terminate(&id).await.unwrap();
    assert_eq!(stage.world.deletes.get(), 1, "it is known by its answer");
    stage.pass(LIST_LAG);
    assert_eq!(class(cloud.terminate(&id).await), ErrorClass::NotFound);
}

#[tokio::test]
async fn a_hidden_machine_is_terminated_when_it_appears() {
    let stage = CloudFixture::new();
    stage.world.hidden.set(true);
    stage.cloud("i").launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    // A keeper that has just started knows no more than the ledger does.
    let cloud = stage.cloud("i");
    for _ in 0..5 {
        cloud.terminate(&id).await.unwrap();
        stage.pass(LIST_LAG / 6);
    }
    stage.world.hidden.set(false);
    cloud.terminate(&id).await.unwrap();
    assert_eq!(stage.world.machines.borrow()[0].state, MachineState::Ending);
}

#[tokio::test]
async fn an_answer_that_never_came_counts_from_the_end_of_its_call() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    stage.world.hidden.set(true);
    stage.fail_next(ErrorClass::Unknown);
    assert_eq!(class(cloud.launch(&request("x", 1)).await), ErrorClass::Unknown);
    let id = InstanceId::new("x");
    stage.pass(LIST_LAG / 10 * 9);
    assert!(cloud.launch(&request("x", 1)).await.is_ok(), "the same call again");
    stage.pass(LIST_LAG / 10 * 9);
    cloud.terminate(&id).await.unwrap();
    stage.pass(LIST_LAG / 5);
    assert_eq!(class(cloud.terminate(&id).await), ErrorClass::NotFound);
}

#[tokio::test]
async fn a_machine_that_ran_once_is_not_found_by_the_first_list_without_it() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    cloud.endpoint(&id).await.unwrap();
    stage.world.machines.borrow_mut().clear();
    let restarted = stage.cloud("i");
    assert_eq!(class(restarted.terminate(&id).await), ErrorClass::NotFound);
}

#[tokio::test]
async fn the_reason_of_an_end_is_told_and_a_refused_account_is_left_alone() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    stage.world.machines.borrow_mut()[0].state = MachineState::Stopped;
    let listing = cloud.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!(listing.instances[0].detail, None, "what it was is no reason for its end");
    stage.pass(Duration::from_secs(2));
    stage.world.machines.borrow_mut()[0].state = MachineState::Gone;
    stage.world.machines.borrow_mut()[0].why = Some("was reclaimed".to_owned());
    let listing = cloud.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!(listing.instances[0].detail.as_deref(), Some("was reclaimed"));
    stage.pass(Duration::from_secs(2));
    assert_eq!(cloud.terminate(&InstanceId::new("x")).await.unwrap(), Termination::Gone);
    assert_eq!(cloud.list(&PoolName::new("linux")).await.unwrap().instances, [], "all is said");
    stage.fail_next(ErrorClass::Throttled { until: None });
    assert!(matches!(class(cloud.launch(&request("y", 1)).await), ErrorClass::Throttled { until: Some(_) }));
    assert!(matches!(class(cloud.launch(&request("z", 1)).await), ErrorClass::Throttled { .. }));
    assert_eq!(stage.world.specs.borrow().len(), 2, "the third was not asked");
}

/// A machine with the same tags, as a person launches it in the console.
fn copy(id: &str) -> Machine {
    let original = machine(id, MachineState::Running);
    let handle = Handle { name: format!("copy-of-{id}"), zone: String::new() };
    Machine { handle, token: Some("of the console".to_owned()), ..original }
}

fn disk(name: &str, attached: Option<&Machine>) -> Disk {
    let one = machine("x", MachineState::Running);
    let resource = Resource {
        kind: ResourceKind::Volume,
        name: name.to_owned(),
        instance: Some(one.instance),
        tags: Some(one.tags),
        created: None,
        detail: None,
    };
    Disk { resource, attached: attached.map(|machine| machine.handle.clone()) }
}

fn names(resources: &[Resource]) -> Vec<&str> {
    resources.iter().map(|resource| resource.name.as_str()).collect()
}

#[tokio::test]
async fn a_copy_is_shown_and_never_touched() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    stage.world.machines.borrow_mut().insert(0, copy("x"));
    assert!(cloud.endpoint(&id).await.is_ok());
    let original = stage.world.machines.borrow()[1].clone();
    *stage.world.disks.borrow_mut() =
        vec![disk("disk-of-x", Some(&original)), disk("disk-of-the-copy", Some(&copy("x")))];
    let pool = PoolName::new("linux");
    let listing = cloud.list(&pool).await.unwrap();
    assert_eq!((listing.instances.len(), names(&listing.copies)), (1, vec!["copy-of-x"]));
    let resources = cloud.resources(&pool).await.unwrap();
    assert_eq!(names(&resources.found), ["i-x", "disk-of-x"]);
    assert_eq!(names(&resources.copies), ["copy-of-x", "disk-of-the-copy"]);
    // A keeper that has lost the launch spec still knows its machine by the token.
    std::fs::remove_dir_all(stage.state.path().join("launches")).unwrap();
    let restarted = stage.cloud("i");
    restarted.terminate(&id).await.unwrap();
    let states: Vec<MachineState> = stage.world.machines.borrow().iter().map(|one| one.state).collect();
    assert_eq!(states, [MachineState::Running, MachineState::Ending]);
    stage.world.machines.borrow_mut().pop();
    stage.pass(WAIT_AGE * 2);
    assert_eq!(class(restarted.terminate(&id).await), ErrorClass::NotFound, "only the copy is left");
    assert_eq!(stage.world.deletes.get(), 1);
}

#[tokio::test]
async fn a_disk_that_outlives_its_instance_is_known_by_its_record() {
    let stage = CloudFixture::new();
    let cloud = stage.cloud("i");
    cloud.launch(&request("x", 1)).await.unwrap();
    let id = InstanceId::new("x");
    cloud.endpoint(&id).await.unwrap();
    stage.world.machines.borrow_mut()[0].state = MachineState::Gone;
    *stage.world.disks.borrow_mut() = vec![disk("disk-of-x", None), disk("a-copy", None)];
    stage.pass(WAIT_AGE * 2);
    assert_eq!(cloud.terminate(&id).await.unwrap(), Termination::Gone);
    let resources = stage.cloud("i").resources(&PoolName::new("linux")).await.unwrap();
    assert_eq!((names(&resources.found), names(&resources.copies)), (vec!["disk-of-x"], vec!["a-copy"]));
}

#[tokio::test]
async fn a_launch_whose_repeat_makes_another_machine_is_repeated_when_lists_prove_that_there_is_none() {
    let stage = CloudFixture::new();
    stage.world.careless.set(true);
    stage.fail_next(ErrorClass::Unknown);
    let launch =
        async || stage.cloud("i").launch(&request("x", 1)).await.map_err(|error| error.class().clone());
    assert_eq!(launch().await, Err(ErrorClass::Unknown));
    stage.pass(LIST_LAG / 2);
    assert_eq!(launch().await, Err(ErrorClass::Unknown), "it may still appear");
    stage.pass(LIST_LAG / 2);
    assert_eq!(stage.world.specs.borrow().len(), 1);
    assert_eq!(launch().await, Ok(()));
    assert_eq!(stage.world.specs.borrow().len(), 2);
}

#[tokio::test]
async fn a_machine_that_a_lost_answer_made_is_the_launchs_own() {
    let stage = CloudFixture::new();
    stage.world.careless.set(true);
    stage.fail_next(ErrorClass::Unknown);
    assert_eq!(class(stage.cloud("i").launch(&request("x", 1)).await), ErrorClass::Unknown);
    stage.world.machines.borrow_mut().push(machine("x", MachineState::Starting));
    stage.cloud("i").launch(&request("x", 1)).await.unwrap();
    // A copy of it is no answer, and no reason for another one.
    let copy = Machine { token: None, ..machine("y", MachineState::Running) };
    stage.fail_next(ErrorClass::Unknown);
    assert_eq!(class(stage.cloud("i").launch(&request("y", 1)).await), ErrorClass::Unknown);
    stage.world.machines.borrow_mut().push(copy);
    stage.pass(LIST_LAG * 2);
    assert_eq!(class(stage.cloud("i").launch(&request("y", 1)).await), ErrorClass::Unknown);
    assert_eq!(stage.world.specs.borrow().len(), 2);
}
