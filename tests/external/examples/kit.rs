//! The conformance kit on each example: without machines on the stand-ins, with machines and logins on real containers.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::podman::Site;
use super::program::{Program, example};
use super::{docker_machine, hetzner, libvirt, openstack, skerry};
use crate::fixture::GREENROOM;

/// The report of the kit. `inside` is the command that enters namespaces.
#[track_caller]
fn report(program: &Program, directory: &Path, inside: &[OsString], more: &[&str]) -> Value {
    let settings: toml::Table = serde_json::from_value(program.settings.clone()).expect("settings");
    let path = directory.join("settings.toml");
    fs::write(&path, settings.to_string()).expect("a file");
    let script = directory.join("under-test");
    let words = program.command.iter().map(|word| format!("'{}'", word.to_string_lossy()));
    let command = format!("#!/bin/sh\nexec {} \"$@\"\n", words.collect::<Vec<_>>().join(" "));
    fs::write(&script, command).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("permissions");
    let words = [inside, &[GREENROOM.into()]].concat();
    let mut kit = Command::new(&words[0]);
    kit.args(&words[1..]).args(["provider", "test", "--json", "--settings"]).arg(&path).args(more);
    for (name, value) in &program.environment {
        kit.args(["--env", name]).env(name, value);
    }
    let output = kit.arg(&script).output().expect("the kit starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| json!(String::from_utf8_lossy(&output.stderr)))
}

/// Checks that the program conforms, and that nothing is to be improved, either.
#[track_caller]
fn conforms(program: &Program, directory: &Path, inside: &[OsString], more: &[&str]) -> Value {
    let report = report(program, directory, inside, more);
    let all = report["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let fine = |check: &&Value| check["result"] == "passed" || check["result"] == "skipped";
    let wrong: Vec<&Value> = all.iter().filter(|check| !fine(check)).collect();
    assert!(wrong.is_empty(), "{}: {wrong:#?}", report["name"]);
    assert!(report["conforms"] == true && report["passed"].as_u64() > Some(10), "{report:#}");
    report
}

#[test]
fn the_programs_on_stand_ins_conform() {
    let directory = tempfile::tempdir().expect("a directory");
    for (_cloud, program) in [hetzner::begin(), openstack::begin(), skerry::begin()] {
        conforms(&program, directory.path(), &[], &[]);
    }
    let (place, program) = docker_machine::begin();
    conforms(&program, place.path(), &[], &[]);
}

#[test]
fn libvirt_conforms() {
    let Some(libvirt) = libvirt::Libvirt::begin() else { return };
    conforms(&libvirt.program("test"), libvirt.directory.path(), &[], &[]);
}

/// Six containers, with all that the kit does to them: logins, kills in the middle of a launch, lost answers.
#[test]
fn podman_conforms_with_machines() {
    let Some(site) = Site::begin() else { return };
    let (mut program, directory) = (site.program(), site.directory.path());
    program.command = vec![example("podman").into()];
    let delete = directory.join("delete");
    fs::write(&delete, "#!/bin/sh\nexec podman rm --force --time 0 \"$1\" >&2\n").expect("a file");
    fs::set_permissions(&delete, fs::Permissions::from_mode(0o755)).expect("permissions");
    let delete = delete.display().to_string();
    let options =
        ["--live", "--yes", "--boot-timeout", "60", "--end-timeout", "30", "--delete-with", &delete];
    let report = conforms(&program, directory, &site.enter(), &options);
    for name in ["login", "launch-killed", "deleted-elsewhere", "nothing-left"] {
        let check = report["checks"].as_array().into_iter().flatten().find(|check| check["name"] == name);
        assert!(check.is_some_and(|check| check["result"] == "passed"), "{name}: {report:#}");
    }
}
