//! The conformance kit on the programs of these tests: one knows its machines by name, one by tags.

#![cfg(test)]

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{GREENROOM, Pool, program};

fn conforms(name: &str) {
    let pool = Pool::of(name);
    let home = tempfile::tempdir().unwrap();
    let settings = home.path().join("settings.toml");
    fs::write(&settings, format!("platform = '{}'\n", pool.platform.dir.path().display())).unwrap();
    let user = Command::new("id").arg("-un").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let mut kit = Command::new(GREENROOM);
    kit.args(["provider", "test"]).arg(program(name)).arg("--settings").arg(&settings);
    kit.args([
        "--live",
        "--yes",
        "--json",
        "--boot-timeout",
        "60",
        "--end-timeout",
        "60",
        "--user",
        user.trim(),
    ]);
    let output = kit.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert!(output.status.success() && report["conforms"] == true, "{report:#}{log}");
    let result = |name: &str| {
        let all = report["checks"].as_array().into_iter().flatten();
        all.filter(|check| check["name"] == name).map(|check| check["result"].clone()).next()
    };
    for made in ["launch-killed", "launch-repeated", "login", "terminate-ends", "nothing-left"] {
        assert_eq!(result(made), Some("passed".into()), "{report:#}");
    }
}

#[test]
fn the_program_in_shell_conforms() {
    conforms("machines.sh");
}

#[test]
fn the_program_in_python_conforms() {
    conforms("machines.py");
}
