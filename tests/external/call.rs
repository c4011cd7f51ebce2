//! One call of a program: its limits, its environment, and its end with all that it started.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_backends::external::process::{ProtocolCall, ProtocolProgram};
use greenroom_backends::external::protocol::answers::ListAnswer;
use greenroom_backends::external::protocol::{NoFields, ProgramSettings, ProtocolRequest, Verb};
use greenroom_backends::program::child::ProgramEnd;
use greenroom_backends::program::environment::ProgramEnvironment;
use greenroom_backends::program::{self, CallEnd};
use greenroom_core::failure::ErrorClass;
use greenroom_harness::here::HereAndNow;
use greenroom_harness::provider::until;
use greenroom_ports::clock::Clock as _;
use tokio::sync::Semaphore;

use crate::fixture::GREENROOM;

/// A shell program in a directory of its own.
fn program(dir: &Path, script: &str) -> ProtocolProgram {
    let path = dir.join("program");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let how = program::Program {
        guard: GREENROOM.into(),
        path,
        arguments: vec!["--first".to_owned()],
        directory: dir.to_owned(),
        environment: ProgramEnvironment::default(),
        output_limit: 1 << 20,
        concurrent: Rc::new(Semaphore::new(4)),
    };
    ProtocolProgram { how, time_limits: Vec::new() }
}

async fn list(program: &ProtocolProgram) -> ProtocolCall {
    let settings = ProgramSettings::from_iter([("image".to_owned(), "debian".into())]);
    program.call(Verb::List, &ProtocolRequest::new("linux", &settings, NoFields {})).await
}

/// The failure of a list: its class, and its sentence.
fn failure(called: &ProtocolCall) -> (ErrorClass, String) {
    let error = called.answer::<ListAnswer>(HereAndNow { ahead: Duration::ZERO }.now()).unwrap_err();
    (error.class().clone(), error.failure.message)
}

/// True if no process has this in its command line.
fn nothing_runs(mark: &str) -> bool {
    greenroom_harness::here::command_lines()
        .iter()
        .all(|(_, arguments)| !arguments.iter().any(|one| one == mark))
}

#[tokio::test]
async fn a_program_gets_its_request_its_arguments_and_few_variables() {
    let dir = tempfile::tempdir().unwrap();
    let script = r#"cat; printf '%s|%s|%s' "$*" "$PWD" "$(env | cut -d= -f1 | sort | tr '\n' ' ')" >&2"#;
    fs::write(dir.path().join("secret"), "hunter2\n").unwrap();
    let secrets = vec![("TOKEN".to_owned(), dir.path().join("secret"))];
    let environment = ProgramEnvironment { named: vec!["CARGO_PKG_NAME".to_owned()], secrets };
    let mut asked = program(dir.path(), script);
    asked.how.environment = environment;
    let called = list(&asked).await;
    assert_eq!(called.ended.exit, CallEnd::Ended(ProgramEnd::Code(0)));
    let request: serde_json::Value = serde_json::from_slice(&called.ended.output).unwrap();
    assert_eq!(
        request,
        serde_json::json!({ "protocol": 1, "pool": "linux", "settings": { "image": "debian" } })
    );
    let log: Vec<&str> = called.ended.log.split('|').collect();
    assert_eq!(log[..2], ["--first list", dir.path().to_str().unwrap()]);
    let variables: Vec<&str> = log[2].split_whitespace().collect();
    assert!(
        variables.contains(&"TOKEN") && variables.contains(&"PATH") && variables.contains(&"CARGO_PKG_NAME")
    );
    assert!(!variables.contains(&"CARGO_MANIFEST_DIR"), "{variables:?}");
}

#[tokio::test]
async fn each_way_to_end_badly_is_one_sentence_with_the_logs_last_line() {
    for (script, class, expected) in [
        (
            "echo later >&2; echo '{\"error\": \"no\\u001b[31m\"}'; exit 13",
            ErrorClass::Denied,
            "no; the program's log ends: later",
        ),
        ("echo '{\"error\": \"\"}'; exit 10", ErrorClass::NotFound, "program` list ended with exit code 10"),
        // A command inside the program may have ended so.
        ("exit 10", ErrorClass::Transient, "program` list ended with exit code 10"),
        (
            "echo one >&2; echo two >&2; exit 3",
            ErrorClass::Transient,
            "ended with exit code 3; the program's log ends: two",
        ),
        ("kill -9 $$", ErrorClass::Transient, "was killed by signal 9"),
        ("echo '<html>'", ErrorClass::Transient, "printed no JSON document"),
        (
            "echo '{\"complete\": true}'",
            ErrorClass::Transient,
            "printed a wrong document: missing field `machines`",
        ),
        ("exit 0", ErrorClass::Transient, "printed nothing"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (seen, sentence) = failure(&list(&program(dir.path(), script)).await);
        assert_eq!(seen, class, "{script}");
        assert!(sentence.contains(expected) && !sentence.contains('\u{1b}'), "{script}: {sentence}");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut missing = program(dir.path(), "");
    missing.how.path = "/nowhere/at/all".into();
    let (seen, sentence) = failure(&list(&missing).await);
    assert_eq!(seen, ErrorClass::Transient);
    assert!(sentence.starts_with("`/nowhere/at/all` list cannot be started: No such file"), "{sentence}");
    let mut elsewhere = program(dir.path(), "");
    elsewhere.how.directory = "/nowhere".into();
    assert!(failure(&list(&elsewhere).await).1.contains("its directory `/nowhere` does not exist"));
}

#[tokio::test]
async fn what_hangs_is_killed_with_all_that_it_started_in_any_session() {
    let dir = tempfile::tempdir().unwrap();
    let script = "setsid sleep 98761 & (setsid setsid sleep 98762 &) ; sleep 98763";
    let limited = vec![(Verb::List, Duration::from_millis(700))];
    let called = list(&ProtocolProgram { time_limits: limited, ..program(dir.path(), script) }).await;
    assert_eq!(called.ended.exit, CallEnd::Ended(ProgramEnd::TimeLimit));
    assert!(
        failure(&called).1.ends_with("list did not end within 700 ms and was killed"),
        "{}",
        failure(&called).1
    );
    assert!(["98761", "98762", "98763"].iter().all(|mark| nothing_runs(mark)));
}

#[tokio::test]
async fn a_call_that_is_dropped_kills_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "sleep 98764 & setsid sleep 98765");
    let dropped = tokio::time::timeout(Duration::from_millis(500), list(&program)).await;
    assert!(dropped.is_err());
    let ended = async || (nothing_runs("98764") && nothing_runs("98765")).then_some(());
    until("the program's end", Duration::from_secs(10), ended).await;
}

#[tokio::test]
async fn a_program_that_has_ended_keeps_its_daemons_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    // Both keep the pipe of the answer open.
    let script = "setsid sleep 98766 & sleep 98767 & echo '{\"complete\": true, \"machines\": []}'";
    let begun = Instant::now();
    let called = list(&program(dir.path(), script)).await;
    called.answer::<ListAnswer>(HereAndNow { ahead: Duration::ZERO }.now()).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(nothing_runs("98767"));
    let daemons = greenroom_harness::here::command_lines();
    let daemon = daemons.iter().find(|(_, arguments)| arguments.iter().any(|one| one == "98766"));
    greenroom_harness::here::kill_all(vec![daemon.expect("a daemon stays").0]);
}

#[tokio::test]
async fn endless_output_ends_at_its_limit_and_an_endless_log_keeps_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let called = list(&program(dir.path(), "yes")).await;
    assert_eq!(called.ended.exit, CallEnd::OutputLimit(1 << 20));
    assert!(failure(&called).1.contains("printed more than 1 MiB and was killed"));
    let log = "yes 0123456789012345678901234567890 | head -c 100000000 >&2; echo last >&2; exit 1";
    let called = list(&program(dir.path(), log)).await;
    assert!(called.ended.log.len() <= 16 << 10 && called.ended.log.ends_with("last\n"));
}

#[tokio::test]
async fn a_request_that_the_program_does_not_read_is_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ProgramSettings::from_iter([("long".to_owned(), "x".repeat(1 << 20).into())]);
    let program = program(dir.path(), "echo '{\"complete\": true, \"machines\": []}'");
    let called = program.call(Verb::List, &ProtocolRequest::new("linux", &settings, NoFields {})).await;
    called.answer::<ListAnswer>(HereAndNow { ahead: Duration::ZERO }.now()).unwrap();
}
