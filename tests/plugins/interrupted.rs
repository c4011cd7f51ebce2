//! Installations that are killed, and several of them concurrently.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::artifact::{plugin, publish};
use crate::proxy::{Mode, Proxy};
use crate::site::Site;

#[test]
fn a_killed_download_leaves_nothing_that_is_used() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let proxy = Proxy::new(&site.registry, Mode::Stall);
    let name = format!("{}/team/own:1.0.0", proxy.address());
    let mut command = site.command(&["install", &name]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
    let partial = site.plugins().join(".greenroom-partial/layer");
    let deadline = Instant::now() + Duration::from_mins(2);
    while !partial.metadata().is_ok_and(|file| file.len() > 0) {
        assert!(Instant::now() < deadline, "no byte arrives");
        assert!(process.try_wait().expect("its status").is_none(), "it waits for the rest");
        std::thread::sleep(Duration::from_millis(5));
    }
    process.kill().expect("a kill");
    process.wait().expect("its end");
    assert!(partial.exists(), "it was killed in the middle");
    assert_eq!(site.list()["plugins"], serde_json::json!([]));
    assert!(!site.plugins().join("greenroom-plugins.lock").exists());

    proxy.set(Mode::PassOn);
    site.succeeds(&["install", &name]);
    assert!(!site.plugins().join(".greenroom-partial").exists());
    let listed = site.list();
    let path = listed["plugins"][0]["path"].as_str().expect("a path");
    let output = std::process::Command::new(path).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("own 1.0.0"));
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_version_or_none() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let name = site.own("1.0.0");
    let began = Instant::now();
    site.succeeds(&["install", &name]);
    // From the start of the process to beyond the time that a whole installation takes.
    let step = began.elapsed() / 20;
    let mut whole = 0;
    for at in 0..30 {
        drop(std::fs::remove_dir_all(site.folder()));
        let mut command = site.command(&["install", &name]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
        std::thread::sleep(step * at);
        process.kill().ok();
        process.wait().expect("its end");
        let listed = site.list();
        let plugins = listed["plugins"].as_array().expect("a list");
        if !plugins.is_empty() {
            whole += 1;
            assert!(site.run("1.0.0").starts_with("own 1.0.0"), "{listed:#}");
        }
        assert_eq!(site.folder().join("1.0.0").exists(), !plugins.is_empty(), "a part of a version");
    }
    assert!(whole < 30, "no kill came in time");
    drop(std::fs::remove_dir_all(site.folder()));
    site.succeeds(&["install", &name]);
    assert!(!site.plugins().join(".greenroom-partial").exists());
}

#[test]
fn concurrent_installations_install_once() {
    let Some(site) = Site::open() else { return };
    for version in ["1.0.0", "2.0.0"] {
        publish(&site.storage(), "team/own", &[version], &plugin(version));
    }
    let names = [site.own("1.0.0"), site.own("2.0.0")];
    let processes: Vec<_> = (0..6)
        .map(|at| {
            let mut command = site.command(&["install", &names[at % 2]]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program")
        })
        .collect();
    let mut said = Vec::new();
    for process in processes {
        let output = process.wait_with_output().expect("its end");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        said.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let new = said.iter().filter(|line| line.starts_with("installed own")).count();
    assert_eq!(new, 2, "one for each version: {said:?}");
    assert_eq!(site.list()["plugins"].as_array().map(Vec::len), Some(2));
    let lock = std::fs::read_to_string(site.plugins().join("greenroom-plugins.lock")).expect("the lock file");
    assert_eq!(lock.matches("[[plugin]]").count(), 2, "{lock}");
}
