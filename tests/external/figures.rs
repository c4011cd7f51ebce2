//! What a call of a program costs. `cargo test --features external --test external -- --ignored --nocapture figures`

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fixture::{Pool, registration};
use crate::provider::{Fixture as _, listed};

const ROUNDS: usize = 21;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A list of so many machines, as the program prints it.
fn list(machines: usize) -> String {
    let machine = |number: usize| {
        format!(
            r#"{{"machine": "m-{number}", "name": "linux-c0ffee-{number}-00000000000000a1", "state": "running",
            "address": "10.0.0.1", "created": "2026-11-25T23:40:00Z", "description": "2 CPUs"}}"#
        )
    };
    let machines: Vec<String> = (1..=machines).map(machine).collect();
    format!(r#"{{"complete": true, "machines": [{}]}}"#, machines.join(","))
}

#[tokio::test]
#[ignore = "figures"]
async fn figures_of_lists() {
    for machines in [0, 1_000] {
        let (pool, dir) = (Pool::of("machines.sh"), tempfile::tempdir().unwrap());
        let (path, file) = (dir.path().join("program"), dir.path().join("list"));
        fs::write(&file, list(machines)).unwrap();
        let able = r#"{"protocol": 1, "name": "mine", "identity": "names"}"#;
        let script =
            format!("#!/bin/sh\ncase $1 in capabilities) echo '{able}' ;; *) exec cat list ;; esac\n");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let table = format!("program = '{}'", path.display());
        let provider = (registration().build)(&pool.context(), &table.parse().unwrap()).unwrap();
        assert_eq!(listed(&*provider, &pool.pool()).await.len(), machines);
        let (mut through, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            listed(&*provider, &pool.pool()).await;
            through.push(begun.elapsed());
            let begun = Instant::now();
            Command::new(&path).arg("list").current_dir(dir.path()).output().unwrap();
            bare.push(begun.elapsed());
        }
        let (through, bare) = (median(through), median(bare));
        eprintln!("list of {machines} machines: {through:.1?}, the program alone {bare:.1?}");
    }
}
