//! Stored launch specs, with each error of the table in each of their writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

use super::tests::entry;
use super::{Entry, Ledger};

const ACTIONS: [Action; 3] = [
    Action { name: "the first spec of all", prepare: |_| (), act: write, judge: judge_spec },
    Action { name: "a spec", prepare: written, act: write, judge: judge_spec },
    Action { name: "a spec that is set aside", prepare: with_disks, act: forget, judge: judge_aside },
];

fn id() -> InstanceId {
    InstanceId::new("linux-c0ffee-1")
}

fn ledger(dir: &Path) -> Ledger {
    Ledger::new(dir, &PoolName::new("linux"))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn put(dir: &Path, entry: &Entry<Vec<u8>>) {
    block_on(ledger(dir).write(&id(), entry)).unwrap();
}

fn written(dir: &Path) {
    put(dir, &entry("a"));
}

fn with_disks(dir: &Path) {
    put(dir, &Entry { disks: vec!["vol-1".to_owned()], ..entry("a") });
}

fn write(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    block_on(async {
        begin();
        ledger(dir).write(&id(), &entry("b")).await.map_err(|error| error.to_string())
    })
}

/// It reports nothing: a file that stays is swept.
#[expect(clippy::unnecessary_wraps, reason = "all actions have one form")]
fn forget(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    ledger(dir).forget(&id());
    Ok(())
}

fn token(dir: &Path, how: &str) -> Option<String> {
    let read = ledger(dir).read::<Vec<u8>>(&id()).unwrap_or_else(|error| panic!("{how}: {error}"));
    read.map(|entry| entry.token)
}

fn folder(dir: &Path) -> PathBuf {
    dir.join("launches/linux")
}

fn judge_spec(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let found = token(dir, how);
    assert!(found.as_ref().is_none_or(|token| ["a", "b"].contains(&token.as_str())), "{how}: {found:?}");
    assert!(!ended.is_done || found.as_deref() == Some("b"), "{how}: {found:?}");
    put(dir, &entry("c"));
    assert_eq!(token(dir, how).as_deref(), Some("c"), "{how}");
    ended.no_remains(&folder(dir), |name| name != "linux-c0ffee-1.json");
}

fn judge_aside(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    // Its disks stay known, under the one name or the other.
    assert_eq!(ledger(dir).disks(&id()), ["vol-1"], "{how}");
    assert_eq!(listed(&folder(dir)).len(), 1, "{how}");
    let later = entry("a").requested_at.plus(Duration::from_secs(1));
    ledger(dir).sweep(|_| false, Duration::ZERO, later);
    assert!(!ledger(dir).contains(&id()), "{how}");
}

#[test]
#[ignore = "another test starts it in a process of its own"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_of_a_launch_spec_is_reported_and_leaves_the_old_one_or_the_new_one() {
    with_each_error("cloud::ledger::failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        let reports = action.name != "a spec that is set aside";
        assert!(tally.tried >= 3, "{}: {tally:?}", action.name);
        assert!(tally.reported == if reports { tally.tried } else { 0 }, "{}: {tally:?}", action.name);
    });
}
