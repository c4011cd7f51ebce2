//! The cost of a call of a program. `cargo test --features external --test external -- --ignored --nocapture figures`

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use greenroom::provider::WITH_BACKENDS;
use greenroom_harness::provider::{Fixture as _, gone, listed, request, until};
use greenroom_ports::connector::Connector as _;
use greenroom_ports::provider::{LaunchRequest, Provider};
use greenroom_ssh::{Ssh, SshSettings};

use crate::fixture::{Pool, registration};

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

/// The time from the launch to the first login, as the keeper sees it.
async fn ready(provider: &dyn Provider, ssh: &Ssh, launch: &LaunchRequest) -> Duration {
    let (id, within, begun) = (&launch.instance, Duration::from_secs(20), Instant::now());
    provider.launch(launch).await.unwrap();
    until("a login", within, async || {
        let endpoint = provider.endpoint(id).await.ok()?;
        ssh.check(id, &endpoint, within).await.ok()
    })
    .await;
    begun.elapsed()
}

/// Providers of the same machine, an sshd on this host, in turn.
#[tokio::test]
#[ignore = "figures"]
async fn figures_of_launches() {
    let account = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    let pools = [Pool::of("machines.sh"), Pool::of("machines.sh"), Pool::of("machines.py")];
    let native = "server = 'openssh'\nallow_root = true".parse().unwrap();
    let local = WITH_BACKENDS.iter().find(|known| known.kind == "local").unwrap();
    let providers = [
        ("local", (local.build)(&pools[0].context(), &native).unwrap()),
        ("a shell program", pools[1].build_for(account.trim())),
        ("a Python program", pools[2].build_for(account.trim())),
    ];
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 1..=u32::try_from(ROUNDS).unwrap() {
        for (at, (_, provider)) in providers.iter().enumerate() {
            let keys = tempfile::tempdir().unwrap();
            let (ssh, wanted) = (Ssh::new(SshSettings::new(keys.path())), request(&pools[at], round));
            let launch = LaunchRequest { keys: ssh.keys(&wanted.instance).await.unwrap(), ..wanted };
            times[at].push(ready(&**provider, &ssh, &launch).await);
            gone(&pools[at], &**provider, &launch.instance).await;
        }
    }
    for ((name, _), times) in providers.iter().zip(times) {
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        eprintln!("launch to login, {name}: {least:.0?} to {most:.0?}, median {:.0?}", median(times.clone()));
    }
}
