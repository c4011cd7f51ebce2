//! Keys of instances, with each error of the table in each of their writes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking, in helpers too")]

use std::path::Path;

use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{ConnectError, Connector as _};
use greenroom_ports::provider::InstanceKeys;
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

const ACTIONS: [Action; 3] = [
    Action { name: "the first keys of all", prepare: |_| (), act: obtain, judge },
    Action { name: "the keys of another instance", prepare: with_others, act: obtain, judge },
    // Read only, but for a sync: the call that made them may have failed before its own.
    Action { name: "keys that are there", prepare: with_own, act: obtain, judge },
];

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn new() -> InstanceId {
    InstanceId::new("linux-3f9a-2")
}

fn other() -> InstanceId {
    InstanceId::new("linux-3f9a-1")
}

async fn keys(dir: &Path, id: &InstanceId) -> Result<InstanceKeys, ConnectError> {
    Ssh::new(SshSettings::new(dir.join("keys"))).keys(id).await
}

fn with_others(dir: &Path) {
    block_on(keys(dir, &other())).unwrap();
}

fn with_own(dir: &Path) {
    block_on(keys(dir, &new())).unwrap();
}

fn obtain(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    block_on(async {
        begin();
        keys(dir, &new()).await.map(drop).map_err(|error| error.to_string())
    })
}

fn judge(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let folder = dir.join("keys").join(new().as_str());
    let found = listed(&folder);
    assert!(found.is_empty() || found == ["client_key", "host_key"], "{how}: {found:?}");
    assert!(!ended.is_done || !found.is_empty(), "{how}");
    block_on(async {
        let one = keys(dir, &new()).await.unwrap_or_else(|error| panic!("{how}: {error}"));
        let again = keys(dir, &new()).await.unwrap();
        assert_eq!(one.authorized_key, again.authorized_key, "{how}");
        assert_eq!(one.host_key_public, again.host_key_public, "{how}");
    });
    ended.no_remains(&dir.join("keys"), |name| name.starts_with('.'));
}

#[test]
#[ignore = "a helper process of other tests"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_is_reported_and_leaves_no_half_of_a_pair() {
    with_each_error("keys::a_process_that_acts", &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        assert!(tally.tried >= 13 && tally.reported == tally.tried, "{}: {tally:?}", action.name);
    });
}
