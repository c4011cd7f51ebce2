//! The engine prepares a job's containers, with Podman and registries on one machine.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking, in helpers too")]

mod machine;

use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::name::{ContainerName, JobContainer};
use greenroom_core::container::settings::{EngineOptions, PullPolicy, Umask};
use greenroom_core::container::spec::{ContainerJob, ContainerSpec, Login, ServiceSpec};
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::{Execution, Shell};
use greenroom_core::ids::{AttemptName, InstanceId, JobKey, PoolName};
use greenroom_core::images::Images;
use greenroom_core::job::JobFacts;
use greenroom_core::start::{Start, StartAccount};
use greenroom_core::text::Secret;
use greenroom_engine::Engine;
use greenroom_engine::acquire::Acquired;
use greenroom_engine::container::script::{JobNetwork, script};
use greenroom_engine::container::{ContainerError, ContainerProgress};
use greenroom_manager::runner_host::{KeeperCommand, LocalHost, Role, Signals, StateDir};
use greenroom_ports::attempts::{Assignment, AttemptRecord, Attempts as _, StageTimeouts};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::host::Host;
use greenroom_testkit::memory_store::MemoryStore;

use self::machine::Machine;

const PASSWORD: &str = "geheim";

/// One preparation: its result, its progress, and how long it took.
struct Prepared {
    result: Result<JobContainer, ContainerError>,
    told: Vec<ContainerProgress>,
    took: Duration,
    /// The container that `run` finds.
    assigned: Option<JobContainer>,
}

async fn prepare(machine: &Rc<Machine>, job: &ContainerJob) -> Prepared {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path()).unwrap();
    let keeper = KeeperCommand::new("/bin/false", [""; 0], Vec::new);
    let host = Rc::new(LocalHost::open(state, Role::Operator, keeper, Signals::default_actions()).unwrap());
    let (pool, attempt) = (PoolName::new("linux"), AttemptName::new("a1"));
    let record = AttemptRecord {
        job: JobFacts::new(JobKey::new("https://gitlab.example", 7), "g/p", Duration::from_hours(1)),
        pool: pool.clone(),
        execution: Execution::Container { shell: Shell::Bash.into() },
        builds_dir: None,
        begun: host.now(),
        assignment: None,
        order: None,
    };
    let (lease, _) = host.begin_attempt(&attempt, &record).await.unwrap();
    let assignment = Assignment {
        instance: InstanceId::new("linux-1"),
        endpoint: Endpoint {
            address: "192.0.2.1".to_owned(),
            port: 22,
            user: "root".to_owned(),
            host_key: String::new(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        },
        is_static: false,
        timeouts: StageTimeouts::default(),
        unbegun: false,
        container: None,
    };
    let acquired = Acquired {
        lease,
        assignment,
        waited: Duration::ZERO,
        account: StartAccount {
            start: Start::Booted,
            idle_for: Duration::ZERO,
            others: 0,
            resume_time: Duration::ZERO,
        },
        booted: None,
        granted_after: Duration::ZERO,
        images: Images::default(),
        shares_images: false,
        capacity: 1,
        meets_others: false,
    };
    let engine = Engine {
        pool,
        store: Rc::new(MemoryStore::new()),
        host: Host::of(&host),
        connector: Rc::clone(machine) as _,
        clock: Rc::clone(&host) as _,
    };
    let (mut told, begun) = (Vec::new(), Instant::now());
    let result = engine
        .prepare_container(&attempt, &acquired, job, &["/run/builds"], &mut |event| told.push(event))
        .await;
    let (_, record) = host.enter_attempt(&attempt).await.unwrap().unwrap();
    let assigned = record.assignment.and_then(|assignment| assignment.container);
    Prepared { result, told, took: begun.elapsed(), assigned }
}

fn spec(image: &str) -> ContainerSpec {
    ContainerSpec {
        called: image.to_owned(),
        image: image.to_owned(),
        policies: vec![PullPolicy::Always],
        login: None,
        login_withheld: false,
        platform: None,
        user: None,
        entrypoint: None,
        command: None,
        environment: Vec::new(),
        privileged: false,
    }
}

fn job(image: &str) -> ContainerJob {
    ContainerJob {
        engine: ContainerEngine::Podman,
        job: spec(image),
        services: Vec::new(),
        remarks: Vec::new(),
        umask: Umask::Auto,
        options: EngineOptions::default(),
        volumes: vec!["/certs/client".to_owned()],
        mirrors: Vec::new(),
        ca: None,
        wait_for_services: Some(Duration::from_secs(10)),
        pull_timeout: Duration::from_mins(1),
        min_free_space: 0,
        init: false,
        debug_services: false,
    }
}

fn service(name: &str, image: &str, script: &str) -> ServiceSpec {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    ServiceSpec {
        container: ContainerSpec { command: Some(command), ..spec(image) },
        names: vec![name.to_owned(), format!("{name}-too")],
        probe: None,
    }
}

fn with_password(image: &str, password: &str) -> ContainerJob {
    let mut job = job(image);
    job.job.login = Some(Login {
        scope: "127.0.0.1:5002".to_owned(),
        username: "joe".to_owned(),
        password: Secret::new(password.to_owned()),
        source: "DOCKER_AUTH_CONFIG",
    });
    job
}

/// Checks that nothing is left that a job could read credentials from.
fn assert_no_trace(machine: &Machine) {
    let left = machine.text("ls -A /var/tmp /dev/shm; grep -rl geheim /run /dev/shm /var/tmp || :");
    assert!(!left.contains("greenroom"), "{left}");
    let work = machine.text("ls -A /run");
    assert!(!work.contains("greenroom."), "{work}");
}

#[tokio::test]
async fn a_jobs_container_reads_scripts_and_has_its_environment() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut job = with_password("127.0.0.1:5002/bb:1", PASSWORD);
    job.job.environment = [
        ("LINES", "it's\n\"two\" $HOME `id`"),
        ("PATH", "/bin:/a b:$x"),
        ("HOME", "/tmp"),
        ("1ST", "x"),
        ("UID", "7"),
    ]
    .map(|(key, value)| (key.into(), Secret::new(value.into())))
    .to_vec();
    let prepared = prepare(&machine, &job).await;
    let container = prepared.result.unwrap();
    assert_eq!(prepared.assigned.as_ref(), Some(&container));
    assert!(!container.open_umask && container.starts_ahead, "{container:?}");
    assert!(
        matches!(
            &prepared.told[..],
            [
                ContainerProgress::Pulling { login: Some("DOCKER_AUTH_CONFIG"), again: false, .. },
                ContainerProgress::Pulled { .. },
            ]
        ),
        "{:?}",
        prepared.told
    );
    let script = "printf '<%s>' \"$LINES\" \"$PATH\" \"$HOME\" \"$GIT_CONFIG_VALUE_0\"; env | grep -c '^UID=7'\n\
                  echo from-it >/run/builds/file; ls -d /certs/client; exit 7\n";
    for _ in 0..2 {
        let ended = machine.sh(&format!("podman start --attach --interactive {}", container.name), script);
        let text = String::from_utf8(ended.stdout).unwrap();
        assert_eq!(text, "<it's\n\"two\" $HOME `id`></bin:/a b:$x></tmp><*>1\n/certs/client\n");
        assert_eq!(ended.status.code(), Some(7));
    }
    assert!(machine.text("podman inspect greenroom-a1").contains("1ST=x"), "no shell exports this name");
    assert_eq!(machine.text("cat /run/builds/file"), "from-it\n");
    assert!(machine.text("ls /run/greenroom").contains("greenroom-a1.pid"));
    assert_no_trace(&machine);
}

#[tokio::test]
async fn an_image_with_a_user_and_an_entrypoint_is_seen_as_such() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let container = prepare(&machine, &job("127.0.0.1:5001/app:1")).await.result.unwrap();
    assert!(container.open_umask && !container.starts_ahead, "{container:?}");
    machine.text("podman rm -f greenroom-a1");
    let mut job = job("127.0.0.1:5001/app:1");
    job.job.entrypoint = Some(vec![String::new()]);
    job.job.user = Some("0:0".to_owned());
    let container = prepare(&machine, &job).await.result.unwrap();
    assert!(!container.open_umask && container.starts_ahead, "{container:?}");
    let ended = machine.sh("podman start -a -i greenroom-a1", "id -u\n");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "0\n");
}

#[tokio::test]
async fn what_is_the_jobs_own_fault_fails_at_the_first_try() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut never = job("127.0.0.1:5001/bb:1");
    never.job.policies = vec![PullPolicy::Never];
    for (job, sentence) in [
        (
            job("127.0.0.1:5001/bb:none"),
            "image `127.0.0.1:5001/bb:none` does not exist in registry `127.0.0.1:5001`",
        ),
        (job("127.0.0.1:5002/bb:1"), "for which there are no credentials"),
        (with_password("127.0.0.1:5002/bb:1", "wrong"), "with the credentials from DOCKER_AUTH_CONFIG"),
        (never, "the pull policy is `never`"),
    ] {
        let prepared = prepare(&machine, &job).await;
        let Err(ContainerError::Impossible(why)) = &prepared.result else { panic!("{:?}", prepared.result) };
        assert!(why.contains(sentence), "{why}");
        let pulls = prepared.told.iter().filter(|event| matches!(event, ContainerProgress::Pulling { .. }));
        assert!(pulls.count() <= 1, "{:?}", prepared.told);
        assert_eq!(prepared.assigned, None);
        assert_no_trace(&machine);
    }
}

#[tokio::test]
async fn a_registry_that_fails_is_tried_three_times_and_never_the_jobs_fault() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    machine.answer("503 Service Unavailable");
    let prepared = prepare(&machine, &job("127.0.0.1:5003/bb:1")).await;
    let Err(ContainerError::Unavailable(why)) = &prepared.result else { panic!("{:?}", prepared.result) };
    assert!(why.starts_with("registry `127.0.0.1:5003` cannot serve image"), "{why}");
    let pulls = prepared.told.iter().filter(|event| matches!(event, ContainerProgress::Pulling { .. }));
    assert_eq!(pulls.count(), 3, "{:?}", prepared.told);
    assert_no_trace(&machine);
}

#[tokio::test]
async fn a_registry_that_is_down_is_named_and_a_present_image_bridges_it() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    machine.text("podman pull -q 127.0.0.1:5001/bb:1 && podman tag 127.0.0.1:5001/bb:1 127.0.0.1:5009/bb:1");
    let mut job = job("127.0.0.1:5009/bb:1");
    job.pull_timeout = Duration::from_secs(6);
    let prepared = prepare(&machine, &job).await;
    let Err(ContainerError::Unreached(why)) = &prepared.result else { panic!("{:?}", prepared.result) };
    assert!(why.contains("127.0.0.1:5009"), "{why}");
    job.job.policies = vec![PullPolicy::IfNotPresent];
    let prepared = prepare(&machine, &job).await;
    assert!(matches!(&prepared.told[..], [ContainerProgress::Present { .. }]), "{:?}", prepared.told);
    prepared.result.unwrap();
    machine.text("podman rm -f greenroom-a1; podman tag 127.0.0.1:5009/bb:1 127.0.0.1:5001/bb:gone");
    job.job = spec("127.0.0.1:5001/bb:gone");
    job.job.policies = vec![PullPolicy::Always, PullPolicy::IfNotPresent];
    let prepared = prepare(&machine, &job).await;
    assert!(
        matches!(
            &prepared.told[..],
            [
                ContainerProgress::Pulling { .. },
                ContainerProgress::PullFailed { .. },
                ContainerProgress::Present { .. },
            ]
        ),
        "{:?}",
        prepared.told
    );
    prepared.result.unwrap();
}

#[tokio::test]
async fn an_image_that_neither_registry_nor_instance_has_is_pulled_once() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut job = job("127.0.0.1:5001/bb:none");
    job.job.policies = vec![PullPolicy::Always, PullPolicy::IfNotPresent];
    let prepared = prepare(&machine, &job).await;
    let Err(ContainerError::Impossible(_)) = &prepared.result else { panic!("{:?}", prepared.result) };
    assert_eq!(prepared.told.len(), 2, "{:?}", prepared.told);
}

#[tokio::test]
async fn a_pull_that_stalls_ends_with_its_limit() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    machine.answer("");
    let mut job = job("127.0.0.1:5003/bb:1");
    job.pull_timeout = Duration::from_secs(2);
    let prepared = prepare(&machine, &job).await;
    let Err(ContainerError::Unreached(why)) = &prepared.result else { panic!("{:?}", prepared.result) };
    assert!(why.contains("was not pulled within 2 s (`pull_timeout`)"), "{why}");
    assert!(prepared.took < Duration::from_secs(20), "{:?}", prepared.took);
    assert_no_trace(&machine);
}

#[tokio::test]
async fn a_mirror_is_asked_in_place_of_its_registry() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut job = job("registry.invalid/bb:1");
    job.mirrors = vec![("registry.invalid".to_owned(), "http://127.0.0.1:5001".to_owned())];
    prepare(&machine, &job).await.result.unwrap();
}

#[tokio::test]
async fn services_and_job_see_each_other_by_name() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut job = job("127.0.0.1:5001/bb:1");
    job.job.environment = vec![("TOKEN".into(), Secret::new(PASSWORD.into()))];
    let serve = "sleep 1; while :; do echo hello | nc -l -p 5432; done";
    let relay =
        "until nc db 5432 >/got && [ -s /got ]; do sleep 0.1; done; while :; do nc -l -p 80 </got; done";
    let relay = ServiceSpec { probe: Some(80), ..service("relay", "127.0.0.1:5001/bb:1", relay) };
    job.services = vec![service("db", "127.0.0.1:5001/db:1", serve), relay];
    let prepared = prepare(&machine, &job).await;
    let container = prepared.result.unwrap();
    assert!(container.open_umask, "services may have other users");
    let up = prepared.told.iter().filter_map(|event| match event {
        ContainerProgress::ServiceUp { service, .. } => Some(service.as_str()),
        _ => None,
    });
    let mut up: Vec<_> = up.collect();
    up.sort_unstable();
    assert_eq!(up, ["db", "relay"], "{:?}", prepared.told);
    let ended = machine.sh("podman start -a -i greenroom-a1", "nc relay-too 80; grep -c build /etc/hosts\n");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "hello\n1\n", "{ended:?}");
    assert!(machine.text("podman exec greenroom-a1-1 cat /etc/hosts").contains("\tbuild\n"));
    let inspected = machine.text("podman inspect greenroom-a1-1 greenroom-a1-2");
    assert!(!inspected.contains(PASSWORD), "a secret of the job is in a service");
    assert!(!machine.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains(PASSWORD));
}

#[tokio::test]
async fn a_service_that_ends_is_reported_with_its_last_lines_and_the_job_goes_on() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    let mut job = job("127.0.0.1:5001/bb:1");
    job.wait_for_services = Some(Duration::from_mins(3));
    let mut no_program = service("none", "127.0.0.1:5001/bb:1", "");
    no_program.container.command = Some(vec!["/no/such/program".to_owned()]);
    job.services = vec![
        service("dies", "127.0.0.1:5001/db:1", "echo no disk; echo sorry; exit 3"),
        service("quiet", "127.0.0.1:5001/bb:1", "sleep 100"),
        no_program,
    ];
    let prepared = prepare(&machine, &job).await;
    prepared.result.unwrap();
    assert!(prepared.took < Duration::from_mins(2), "{:?}", prepared.took);
    let of = |name: &str| -> Vec<&ContainerProgress> {
        let named = |event: &&ContainerProgress| match event {
            ContainerProgress::ServiceExited { service, .. }
            | ContainerProgress::ServiceLog { service, .. }
            | ContainerProgress::ServiceUnstarted { service, .. } => service == name,
            _ => false,
        };
        prepared.told.iter().filter(named).collect()
    };
    let dies = of("dies");
    assert!(
        matches!(&dies[..], [
            ContainerProgress::ServiceExited { status, .. },
            ContainerProgress::ServiceLog { line: first, .. },
            ContainerProgress::ServiceLog { line: last, .. },
        ] if status == "3" && first == "no disk" && last == "sorry"),
        "{:?}",
        prepared.told
    );
    assert!(of("quiet").is_empty(), "{:?}", prepared.told);
    assert!(matches!(&of("none")[..], [ContainerProgress::ServiceUnstarted { .. }]), "{:?}", prepared.told);
}

#[tokio::test]
async fn a_full_disk_is_measured() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    machine.text("mount -o remount,size=1m $DIR/storage");
    let prepared = prepare(&machine, &job("127.0.0.1:5001/bb:1")).await;
    let Err(ContainerError::Doubtful { message, .. }) = &prepared.result else {
        panic!("{:?}", prepared.result)
    };
    assert!(message.starts_with("the instance cannot run containers: the disk is full: "), "{message}");
}

#[tokio::test]
async fn a_preparation_without_a_reader_ends_and_leaves_nothing() {
    let Some(machine) = Machine::start().map(Rc::new) else { return };
    machine.answer("");
    let mut job = with_password("127.0.0.1:5003/bb:1", PASSWORD);
    job.pull_timeout = Duration::from_mins(10);
    let script = script(&ContainerName::of(&AttemptName::new("a1")), &job, &[], JobNetwork::of(&job, 1));
    let begun = Instant::now();
    let first = machine.sh("sh | head -n 1; sleep 1", &script);
    assert_eq!(String::from_utf8_lossy(&first.stdout), "pulling 0 always 1\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_no_trace(&machine);
    assert!(!machine.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("podman pull"));
}
