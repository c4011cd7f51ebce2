//! Pools of one account share its API back-off.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use greenroom_core::failure::ErrorClass;
use greenroom_harness::provider::Fixture as _;
use greenroom_ports::provider::Provider;

use crate::fixture::{Pool, registration};

/// A program that notes each list, and is told to wait if `busy` exists. `able` is what it says of its account.
fn program(dir: &Path, name: &str, able: &str) -> PathBuf {
    let path = dir.join(name);
    let script = format!(
        r#"#!/bin/sh
cd {}
case $1 in
  capabilities) echo '{{"protocol": 1, "name": "mine"{able}}}' ;;
  list)
    echo >>{name}.lists
    if [ -e {name}.busy ]; then echo '{{"error": "slow down", "retry_after_s": 600}}'; exit 15; fi
    echo '{{"complete": true, "machines": []}}' ;;
esac
"#,
        dir.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn build(pool: &Pool, program: &Path) -> Rc<dyn Provider> {
    let table = format!("program = '{}'", program.display()).parse().unwrap();
    (registration().build)(&pool.context(), &table).unwrap()
}

/// True if a list of the second program is postponed after the first one was told to wait.
async fn waits_too(first: &str, second: &str) -> bool {
    let (pools, dir) = ([Pool::of("machines.sh"), Pool::of("machines.sh")], tempfile::tempdir().unwrap());
    let path = dir.path();
    let one = build(&pools[0], &program(path, "one", first));
    let two = build(&pools[1], &program(path, "two", second));
    two.list(&pools[1].pool()).await.unwrap();
    fs::write(path.join("one.busy"), "").unwrap();
    let error = one.list(&pools[0].pool()).await.unwrap_err();
    assert!(matches!(error.class(), ErrorClass::Throttled { .. }), "{error}");
    let lists = || fs::read_to_string(path.join("two.lists")).unwrap().len();
    let before = lists();
    match two.list(&pools[1].pool()).await {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().contains("call postponed"), "{error}");
            assert_eq!(lists(), before, "the program was called");
            true
        }
    }
}

#[tokio::test]
async fn all_pools_of_an_account_wait_when_one_of_them_is_told_to() {
    // Accounts are known to the whole process: no other test has these.
    let account = r#", "account": "throttled project 7""#;
    assert!(waits_too(account, account).await);
}

#[tokio::test]
async fn pools_of_another_account_or_of_none_go_on() {
    let (one, other) = (r#", "account": "throttled 8""#, r#", "account": "throttled 9""#);
    assert!(!waits_too(one, other).await);
    assert!(!waits_too(r#", "account": "throttled 10""#, "").await);
}
