//! The way through the API server: what is refused, and what becomes of jobs when it breaks.

#![cfg(test)]

use std::path::Path;
use std::time::Duration;

use greenroom_core::endpoint::{Endpoint, Forward};
use greenroom_harness::here::{command_lines, kill};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::provider::{gone, request, running, until};
use greenroom_ports::connector::ConnectError;
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;
use serde_json::json;

use crate::fixture::Pool;
use crate::jobs::{PATIENCE, Site, sentences};

/// A script that runs until it is stopped.
const ENDLESS: &str = "for i in $(seq 1000); do echo tick; sleep 0.2; done";

fn ssh(forwarder: &Path, keys: &Path) -> Ssh {
    Ssh::new(SshSettings { forwarder: Some(forwarder.to_owned()), ..SshSettings::new(keys) })
}

fn backends() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_greenroom-backends").into()
}

/// The processes of port-forwards that a process has started.
fn forwards_of(parent: u32) -> Vec<u32> {
    let is_one = |(pid, arguments): &(u32, Vec<String>)| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let found = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(1)?.parse::<u32>().ok());
        found == Some(parent) && arguments.get(1).is_some_and(|word| word == "forward")
    };
    command_lines().into_iter().filter(is_one).map(|(pid, _)| pid).collect()
}

fn lives(pid: u32) -> bool {
    command_lines().iter().any(|(found, _)| *found == pid)
}

#[tokio::test]
async fn what_stands_in_the_way_is_named_and_blamed_on_the_pod_only_if_it_is_the_pods() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    let at = running(&pool, &*provider, &request.instance).await;
    let (keys, pod) = (tempfile::tempdir().unwrap(), request.instance.as_str());
    assert!(at.place().ends_with(" (through the API server's port-forward)"), "{}", at.place());
    let dial = async |at: &Endpoint| {
        ssh(&backends(), keys.path()).host_key(at, Duration::from_secs(30)).await.map(|key| key.line)
    };
    // The log has the host key some moments before the server listens.
    let shown = until("an answer", Duration::from_secs(30), async || dial(&at).await.ok()).await;
    assert_eq!(shown, at.host_key);
    let refused = async |at: &Endpoint, of_pod: bool, text: &str| {
        let error = dial(at).await.unwrap_err();
        assert_eq!(matches!(error, ConnectError::Unreachable { .. }), of_pod, "{error:?}");
        assert_eq!(matches!(error, ConnectError::HostFault { .. }), !of_pod, "{error:?}");
        let line = error.to_string();
        assert!(line.contains(text) && line.contains(pod) && line.lines().count() == 1, "{line}");
    };
    for missing in ["create pods/portforward", "get pods/portforward", "get pods"] {
        let role =
            ["create pods", "get pods", "list pods", "create pods/portforward", "get pods/portforward"];
        let role: Vec<_> = role.into_iter().filter(|verb| *verb != missing).collect();
        pool.cluster.set(&json!({ "role": role }));
        refused(&at, false, "cannot ").await;
    }
    pool.cluster.set(&json!({ "role": ["get pods", "create pods/portforward", "get pods/portforward"] }));
    refused(&Endpoint { port: 1, ..at.clone() }, true, "error forwarding port 1 to pod").await;
    pool.cluster.fault(&json!({ "request": "GET pods/portforward", "how": 500, "message": "error dialing backend", "count": 1 }));
    refused(&at, true, "error dialing backend").await;
    pool.cluster.fault(&json!({ "request": "GET pods", "how": "reset", "count": 1 }));
    refused(&at, false, "no answer of the API server").await;
    let elsewhere = |change: &dyn Fn(&mut Forward)| {
        let mut at = at.clone();
        change(at.forward.as_deref_mut().unwrap());
        at
    };
    refused(&elsewhere(&|to| to.context = Some("nowhere".to_owned())), false, "context `nowhere`").await;
    refused(&elsewhere(&|to| to.kubeconfig = vec!["/nowhere".into()]), false, "kubeconfig cannot be read")
        .await;
    refused(&elsewhere(&|to| to.uid = "other".to_owned()), true, "another pod has its name now").await;
    let lacks = ssh(Path::new("/nowhere/greenroom-backends"), keys.path());
    let error = lacks.host_key(&at, Duration::from_secs(30)).await.unwrap_err();
    assert!(matches!(error, ConnectError::HostFault { .. }), "{error:?}");
    assert!(error.to_string().contains("`/nowhere/greenroom-backends` cannot be started"), "{error}");
    let whole_role = [
        "create pods",
        "delete pods",
        "get pods",
        "list pods",
        "watch pods",
        "get pods/log",
        "list events",
        "create pods/portforward",
        "get pods/portforward",
    ];
    pool.cluster.set(&json!({ "role": whole_role }));
    gone(&pool, &*provider, &request.instance).await;
    refused(&at, true, "the pod no longer exists").await;
}

#[tokio::test]
async fn a_forward_that_hangs_ends_with_its_time_and_leaves_no_process() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    let at = running(&pool, &*provider, &request.instance).await;
    let keys = tempfile::tempdir().unwrap();
    pool.cluster.fault(&json!({ "request": "GET pods/portforward", "how": "hang", "seconds": 5 }));
    let ssh = ssh(&backends(), keys.path());
    let error = ssh.host_key(&at, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    until("its end", Duration::from_mins(1), async || {
        forwards_of(std::process::id()).is_empty().then_some(())
    })
    .await;
    pool.cluster.clear_faults();
    gone(&pool, &*provider, &request.instance).await;
}

#[test]
fn a_job_whose_way_is_killed_is_never_green_and_leaves_no_process() {
    for victim in ["forward", "link"] {
        let Some(site) = Site::open(|setting| setting) else { return };
        let handle = site.runner().start(&Job::new(1).script([ENDLESS]));
        handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
        let pod = site.busy_pod();
        let explained = String::from_utf8(site.greenroom(&["explain", &pod]).stdout).unwrap();
        let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(explained.contains("(through the API server's port-forward)"), "{explained}");
        let [link] = site.of_kind(Kind::Link).try_into().expect("one link");
        let forwards = forwards_of(link.pid.unsigned_abs());
        assert!(!forwards.is_empty(), "the link's connection is a forward");
        if victim == "link" {
            assert!(link.kill9());
        } else {
            for pid in &forwards {
                kill(*pid, Signal::KILL);
            }
        }
        let result = handle.finish();
        result.expect_outcome(&Outcome::RunnerSystemFailure);
        let told = sentences(&result, "build_script");
        assert!(
            matches!(told.as_slice(), [one] if one.starts_with("system failure: ")),
            "{}",
            result.describe()
        );
        wait_for("the end of the forwards", PATIENCE, || {
            (!forwards.iter().any(|pid| lives(*pid))).then_some(())
        });
        site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
        site.expect_nothing_left(0);
    }
}

#[test]
fn an_api_server_that_is_killed_in_mid_stage_fails_the_job_with_one_sentence() {
    let Some(site) = Site::open(|setting| setting) else { return };
    let handle = site.runner().start(&Job::new(1).script([ENDLESS]));
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    site.cluster.fault(&json!({ "request": "any", "how": "reset" }));
    site.cluster.cut();
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let told = sentences(&result, "build_script");
    assert!(
        matches!(told.as_slice(), [one] if one.contains("was lost: the API server, its way to the pod or the pod closed")),
        "{}",
        result.describe()
    );
    site.cluster.clear_faults();
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

#[test]
fn much_output_and_a_large_script_pass_in_both_directions() {
    let Some(site) = Site::open(|setting| setting) else { return };
    let padding = format!(": {}", "x".repeat(1_000_000));
    let script =
        [padding.as_str(), "head -c 3000000 /dev/zero | tr '\\0' z | fold -w 99", "echo; echo end of it"];
    let result = site.run(&Job::new(1).script(script));
    result.expect_outcome(&Outcome::Success);
    // The log shows each command, too.
    let output = result.call("build_script").stdout_text().matches('z').count();
    assert!((3_000_000..3_000_100).contains(&output), "{output}");
    site.expect_nothing_left(0);
}
