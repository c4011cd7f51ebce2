//! Directories of instances, with each error of the table in each of their writes.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, ProviderError};
use greenroom_system::threads::disk::BlockingPool;
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

use super::instance_dir::{InstanceDir, Launched, Life};
use super::launch::{Admitted, InstanceProgram, Launcher, Recipe, instances};

const ACTIONS: [Action; 4] = [
    Action { name: "an instance", prepare: |_| (), act: make, judge: judge_launched },
    Action { name: "a new file", prepare: launched, act: put, judge: judge_file },
    Action { name: "a file that is replaced", prepare: with_file, act: put, judge: judge_file },
    Action { name: "a termination", prepare: launched, act: terminate, judge: judge_terminating },
];
const NAME: &str = "linux-c0ffee-7";
const FILE: &str = "endpoint.json";

/// Writes what each provider writes.
struct Plain(LaunchRequest);

#[async_trait(?Send)]
impl Recipe for Plain {
    async fn admit(&self) -> Result<Admitted, ProviderError> {
        Ok(Admitted::default())
    }

    fn write(&self, dir: &InstanceDir) -> io::Result<()> {
        dir.fill(&self.0.keys)?;
        dir.put("spec.json", &Launched::new(&self.0, now()))
    }
}

fn now() -> Stamp {
    Stamp::from((1_781_524_800_000, 1, 7, 9))
}

fn request() -> LaunchRequest {
    let tags = Tags {
        pool: PoolName::new("linux"),
        owner: OwnerId::new("owner"),
        generation: Generation::new("c0ffee"),
        number: 7,
    };
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAAuser".to_owned(),
        host_key: "secret".to_owned(),
        host_key_public: "ssh-ed25519 AAAAhost".to_owned(),
    };
    let instance = InstanceId::new(NAME);
    LaunchRequest {
        token: format!("{NAME}/1"),
        instance,
        tags,
        offering: None,
        keys,
        lifetime: None,
        order: None,
    }
}

fn pool(dir: &Path) -> PathBuf {
    dir.join("instances/linux")
}

fn instance(dir: &Path) -> InstanceDir {
    InstanceDir::at(pool(dir).join(NAME))
}

fn make(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = InstanceProgram { program: "/nowhere".into(), arguments: Vec::new() };
        let pool_dir = pool(dir);
        let disk = BlockingPool::default();
        let request = request();
        let launcher = Launcher { pool_dir: &pool_dir, server: &server, disk: &disk };
        begin();
        launcher.make(&request, &Plain(request.clone())).await.map(drop).map_err(|error| error.to_string())
    })
}

fn launched(dir: &Path) {
    make(dir, &|| ()).unwrap();
}

fn with_file(dir: &Path) {
    launched(dir);
    instance(dir).put(FILE, &"old").unwrap();
}

fn put(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    instance(dir).put(FILE, &"new").map_err(|error| error.to_string())
}

fn terminate(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    instance(dir).mark_terminating(&now()).map_err(|error| error.to_string())
}

fn judge_launched(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let is_whole = || {
        let found = instance(dir).launched().unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(found.is_none_or(|found| found.token == request().token), "{how}");
        instance(dir).has("spec.json")
    };
    assert!(is_whole() || !ended.is_done, "{how}");
    if is_whole() {
        let files = ["authorized_keys", "console.log", "host_key", "host_key.pub", "lock", "spec.json"];
        assert_eq!(listed(&instance(dir).path), files, "{how}");
    }
    ended.no_remains(&pool(dir), |name| name.starts_with(".new-"));
    make(dir, &|| ()).unwrap_or_else(|error| panic!("{how}: {error}"));
    assert!(is_whole() && instances(&pool(dir)).unwrap().len() == 1, "{how}");
}

fn judge_file(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let read = || instance(dir).read::<String>(FILE).unwrap_or_else(|error| panic!("{how}: {error}"));
    let found = read();
    assert!(!ended.is_done || found.as_deref() == Some("new"), "{how}: {found:?}");
    assert!(found.is_none_or(|found| ["old", "new"].contains(&found.as_str())), "{how}");
    ended.no_remains(&instance(dir).path, |name| name.starts_with('.'));
    instance(dir).put(FILE, &"next").unwrap_or_else(|error| panic!("{how}: {error}"));
    assert_eq!(read().as_deref(), Some("next"), "{how}");
}

fn judge_terminating(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let since = || instance(dir).terminating().unwrap_or_else(|error| panic!("{how}: {error}"));
    let life = instance(dir).life().unwrap();
    assert_eq!(life == Life::Ended, ended.is_done, "{how}");
    // A full disk does not hold up a termination.
    let is_full = how.contains("ENOSPC of write ");
    assert!(!is_full || (ended.is_done && since().is_none()), "{how}");
    ended.no_remains(&instance(dir).path, |name| name.starts_with('.'));
    instance(dir).mark_terminating(&now()).unwrap_or_else(|error| panic!("{how}: {error}"));
    assert_eq!(since(), Some(now()), "{how}");
}

#[test]
#[ignore = "another test starts it in a process of its own"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_of_an_instance_is_reported_and_leaves_the_old_files_or_the_new_ones() {
    with_each_error("supervised::failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        let is_mark = action.name == "a termination";
        assert!(tally.tried >= 3, "{}: {tally:?}", action.name);
        assert!(tally.reported * 2 >= tally.tried || is_mark, "{}: {tally:?}", action.name);
    });
}
