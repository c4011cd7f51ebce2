//! `docker-machine` with a stand-in for the program of that name.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::program::{Program, SECRET, example, launch};
use super::promises::keeps;
use super::standin::file;

pub(super) fn begin() -> (tempfile::TempDir, Program) {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("bin")).expect("a directory");
    symlink(file("docker-machine"), directory.path().join("bin/docker-machine")).expect("a link");
    let path = std::env::var("PATH").expect("a path");
    let settings = json!({ "driver": "generic", "options": "--generic-ip-address 192.0.2.7" });
    let program = Program::new(&example("docker-machine"), settings)
        .with("PATH", format!("{}:{path}", directory.path().join("bin").display()))
        .with("MACHINE_STORAGE_PATH", directory.path().display().to_string());
    (directory, program)
}

#[test]
fn docker_machine_keeps_the_promises_of_a_provider() {
    let (directory, program) = begin();
    keeps(&program, directory.path());
}

#[test]
fn docker_machine_installs_both_keys() {
    let (directory, program) = begin();
    let id = program.launch(1);
    let script =
        fs::read_to_string(directory.path().join("machines").join(&id).join("script")).expect("a script");
    assert!(script.contains(SECRET) && script.contains("ssh-ed25519 AAAA user"), "{script}");
    let checked = std::process::Command::new("sh").args(["-n", "-c", &script]).status().expect("sh starts");
    assert!(checked.success(), "{script}");
    assert_eq!(program.list()[0]["address"], "192.0.2.7");
}

#[test]
fn docker_machine_tells_a_failure_from_an_absence() {
    let (directory, mut program) = begin();
    let flag = |name: &str| directory.path().join(name);
    fs::write(flag("fail"), "").expect("a file");
    let called = program.call("launch", &launch(1));
    assert_eq!(called.code, Some(1), "it is recorded, so it may exist: {called:?}");
    assert_eq!(program.list().len(), 1);
    fs::remove_file(flag("fail")).expect("it was there");
    let id = program.launch(1);
    assert_eq!(program.list().len(), 1, "the machine of the earlier call");

    fs::write(flag("down"), "").expect("a file");
    for (verb, fields) in
        [("list", json!({})), ("terminate", json!({ "machine": id })), ("launch", launch(2))]
    {
        let called = program.call(verb, &fields);
        assert!(!matches!(called.code, Some(0 | 10..=15)), "{verb}: {called:?}");
        assert!(called.log.contains("cannot read the store"), "{verb}: {called:?}");
    }
    fs::remove_file(flag("down")).expect("it was there");
    program.settings["options"] = json!("");
    assert_eq!(program.call("launch", &launch(2)).code, Some(16), "nothing was recorded");
}
