//! Programs that do wrong: each costs its pool a sentence, and nothing else.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_harness::provider::{Fixture as _, class, request};
use greenroom_ports::provider::{Provider, ProviderError};

use crate::fixture::{Pool, registration};

/// A pool whose program answers with these lines of a shell's `case`.
struct Liar {
    pool: Pool,
    dir: tempfile::TempDir,
}

const ABLE: &str = r#"capabilities) echo '{"protocol": 1, "name": "liar", "appears_within_s": 0}' ;;"#;

impl Liar {
    fn new() -> Self {
        Self { pool: Pool::of("machines.sh"), dir: tempfile::tempdir().unwrap() }
    }

    fn provider(&self, cases: &str) -> Rc<dyn Provider> {
        let path = self.dir.path().join("liar");
        // In its own file each time: one that is being executed cannot be written.
        let fresh = self.dir.path().join("fresh");
        fs::write(&fresh, format!("#!/bin/sh\ncase $1 in\n{cases}\nesac\n")).unwrap();
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&fresh, &path).unwrap();
        let table = format!(
            "program = '{}'\ntimeouts = {{ list = \"3s\", launch = \"3s\" }}\noutput_limit = \"1M\"",
            path.display()
        );
        (registration().build)(&self.pool.context(), &table.parse().unwrap()).unwrap()
    }

    /// The failure of a list of this program.
    async fn list(&self, case: &str) -> ProviderError {
        let provider = self.provider(&format!("{ABLE}\nlist) {case} ;;"));
        provider.list(&self.pool.pool()).await.unwrap_err()
    }

    /// A list with these machines.
    fn listing(&self, complete: bool, machines: &str) -> Rc<dyn Provider> {
        let list = format!(r#"{{"complete": {complete}, "machines": [{machines}]}}"#);
        self.provider(&format!(
            "{ABLE}\nlist) echo '{list}' ;;\nterminate) echo '{{\"state\": \"gone\"}}' ;;"
        ))
    }
}

/// A machine with the tags of launch 1, and a token.
fn machine(id: &str, pool: &str, token: &str) -> String {
    format!(
        r#"{{"machine": "{id}", "state": "running", "address": "127.0.0.1", "tags": {{"greenroom-pool": "{pool}",
        "greenroom-owner": "00000000000000a1", "greenroom-generation": "c0ffee", "greenroom-number": "1",
        "greenroom-token": "{token}"}}}}"#
    )
}

#[tokio::test]
async fn what_no_list_is_fails_with_a_sentence_of_its_own() {
    let liar = Liar::new();
    let twin = machine("m", "linux", "t");
    let twins = format!("echo '{{\"complete\": true, \"machines\": [{twin}, {twin}]}}'");
    for (case, expected) in [
        ("sleep 60", "and was killed"),
        ("yes", "printed more than 1 MiB and was killed"),
        ("printf '\\377\\000<html>'", "printed no JSON document"),
        ("kill -SEGV $$", "was killed by signal 11"),
        ("setsid sleep 60 & exit 7", "ended with exit code 7"),
        (twins.as_str(), "`m` stands in `machines` twice"),
    ] {
        let error = liar.list(case).await;
        assert_eq!(*error.class(), ErrorClass::Transient, "{case}");
        let sentence = error.to_string();
        assert!(sentence.contains(expected) && sentence.lines().count() == 1, "{case}: {sentence}");
    }
}

#[tokio::test]
async fn a_program_of_another_version_is_asked_for_nothing_else() {
    let liar = Liar::new();
    let other =
        liar.provider("capabilities) echo '{\"protocol\": 2, \"name\": \"new\"}' ;;\n*) touch called ;;");
    let error = other.list(&liar.pool.pool()).await.unwrap_err().to_string();
    assert!(
        error.contains("printed a wrong `protocol`: is 2, but this Greenroom speaks version 1"),
        "{error}"
    );
    assert_eq!(class(other.launch(&request(&liar.pool, 1)).await), ErrorClass::Transient);
    assert!(!liar.dir.path().join("called").exists());
}

#[tokio::test]
async fn machines_of_other_pools_and_machines_without_a_proof_are_never_touched() {
    let liar = Liar::new();
    for (machines, copies) in [
        (machine("m", "other", "t"), 0),
        // A copy that a person made has all tags but no token of a launch.
        (machine("m", "linux", "forged"), 1),
    ] {
        let provider = liar.listing(true, &machines);
        let listing = provider.list(&liar.pool.pool()).await.unwrap();
        assert_eq!((listing.instances.len(), listing.copies.len()), (0, copies), "{machines}");
        let id = InstanceId::new("linux-c0ffee-1");
        assert_eq!(class(provider.terminate(&id).await), ErrorClass::NotFound);
    }
}

#[tokio::test]
async fn an_incomplete_list_proves_nothing() {
    let liar = Liar::new();
    let provider = liar.listing(false, "");
    assert!(!provider.list(&liar.pool.pool()).await.unwrap().complete);
    let id = request(&liar.pool, 1).instance;
    assert_eq!(class(provider.terminate(&id).await), ErrorClass::Transient);
    assert_eq!(class(provider.endpoint(&id).await), ErrorClass::Transient);
}

#[tokio::test]
async fn a_launch_that_answers_with_another_machine_is_unknown_and_that_machine_stays() {
    let liar = Liar::new();
    let one = machine("m", "linux", "t");
    let cases = format!(
        "{ABLE}\nlist) echo '{{\"complete\": true, \"machines\": [{one}]}}' ;;\nlaunch) echo '{{\"machine\": \"m\"}}' ;;\n\
         terminate) touch terminated; exit 16 ;;"
    );
    let provider = liar.provider(&cases);
    provider.list(&liar.pool.pool()).await.unwrap();
    let second = request(&liar.pool, 2);
    let error = provider.launch(&second).await.unwrap_err();
    assert_eq!(*error.class(), ErrorClass::Unknown);
    assert!(error.to_string().contains("answered with another machine"), "{error}");
    let _refused = provider.terminate(&second.instance).await;
    assert!(!liar.dir.path().join("terminated").exists());
}

#[tokio::test]
async fn a_launch_without_an_answer_is_unknown_and_one_that_did_not_start_is_not() {
    let liar = Liar::new();
    for case in ["sleep 60", "exit 1", "exit 16", "echo '{}'", "echo '{\"machine\": \"\"}'", "kill -9 $$"] {
        let provider = liar.provider(&format!("{ABLE}\nlaunch) {case} ;;\nlist) exit 16 ;;"));
        let number = 10 + u32::try_from(case.len()).unwrap();
        assert_eq!(class(provider.launch(&request(&liar.pool, number)).await), ErrorClass::Unknown, "{case}");
    }
    let provider = liar.provider("");
    fs::remove_file(liar.dir.path().join("liar")).unwrap();
    assert_eq!(class(provider.launch(&request(&liar.pool, 9)).await), ErrorClass::Transient);
}

#[tokio::test]
async fn a_changed_program_is_asked_again_what_it_can_do() {
    let liar = Liar::new();
    let count = "capabilities) echo >>asked; echo '{\"protocol\": 1, \"name\": \"liar\"}' ;;\n\
                 list) echo '{\"complete\": true, \"machines\": []}' ;;";
    let provider = liar.provider(count);
    let asked = || fs::read_to_string(liar.dir.path().join("asked")).unwrap().len();
    for _ in 0..3 {
        provider.list(&liar.pool.pool()).await.unwrap();
    }
    assert_eq!(asked(), 1);
    let _same_file = liar.provider(count);
    provider.list(&liar.pool.pool()).await.unwrap();
    assert_eq!(asked(), 2);
}
