//! examples/kubernetes/in-cluster.yaml: Greenroom and a runner in a pod of the cluster, whose pod is taken away during a job.
//!
//! The image has Greenroom's own programs. In place of GitLab Runner, a script takes jobs from a directory and plays them with
//! `greenroom try`. The cluster has no driver for volumes: a directory of the node stands in for the claim.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_harness::driver;
use greenroom_harness::processes::wait_for;
use serde_json::{Value, json};

use super::images::{self, root, run};
use super::site::PATIENCE;
use super::{Namespace, kubectl};
use crate::api::is_ready;

const POD: &str = "/api/v1/namespaces/greenroom/pods/greenroom-0";
const JOBS: &str = "/api/v1/namespaces/ci-jobs/pods";

/// Takes the files `*.job` of its directory. Running jobs finish after a SIGQUIT, and end with it after a SIGTERM.
const RUNNER: &str = r#"#!/bin/bash
queue=/var/lib/greenroom/queue
mkdir -p $queue
stop=
trap 'stop=1' QUIT
until [ -n "$stop" ]; do
  for job in $queue/*.job; do
    [ -e "$job" ] || continue
    name=${job%.job}
    mv "$job" "$name.taken"
    (greenroom try "$(cat "$name.taken")" >"$name.log" 2>&1; echo $? >"$name.result.new"; mv "$name.result.new" "$name.result") &
  done
  sleep 0.1
done
wait
"#;
/// A runner that is gone cannot be observed from its successor: the default for that is ten minutes.
const TIMING: &str = "
[timing]
lease_free_timeout = '15s'
lease_renew_interval = '3s'
";

/// The image of a machine with both programs of Greenroom and the runner, on the node.
fn import_image(namespace: &Namespace) {
    let layer = images::layer_of(namespace.cluster, "machine", "in-cluster");
    let dir = layer.parent().expect("a directory");
    let programs = dir.join("usr/local/bin");
    std::fs::create_dir_all(&programs).expect("a directory");
    for name in ["greenroom", "greenroom-backends"] {
        let built = Path::new(driver()).with_file_name(name);
        run(Command::new("strip").arg("-o").arg(programs.join(name)).arg(built));
    }
    let runner = programs.join("gitlab-runner");
    std::fs::write(&runner, RUNNER).expect("a file");
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    run(Command::new("tar")
        .arg("-C")
        .arg(dir)
        .args(["--owner=0", "--group=0", "-rf"])
        .arg(&layer)
        .arg("usr"));
    images::import_layer(namespace.cluster, &layer, "in-cluster", "/bin/bash");
    std::fs::remove_dir_all(dir).expect("ours");
}

/// The objects of the examples, with images of this cluster and a directory in place of the claim.
fn objects() -> Vec<Value> {
    let text = ["namespace.yaml", "role.yaml", "in-cluster.yaml"]
        .map(|name| {
            std::fs::read_to_string(root().join("examples/kubernetes").join(name)).expect("an example")
        })
        .join("\n---\n");
    let mut all: Vec<Value> =
        text.split("\n---\n").map(|one| serde_saphyr::from_str(one).expect("YAML")).collect();
    for object in &mut all {
        if object["kind"] == "ConfigMap" && object["metadata"]["namespace"] == "greenroom" {
            let table = object["data"]["greenroom.toml"].as_str().expect("a table");
            let table = table
                .replace("registry.example.com/ci/base:12", "greenroom.test/machine:1")
                .replace("cpu = \"2\"\nmemory = \"4Gi\"", "cpu = \"100m\"\nmemory = \"64Mi\"");
            assert!(table.contains("greenroom.test/machine:1") && table.contains("64Mi"), "{table}");
            object["data"]["greenroom.toml"] = json!(format!("{table}{TIMING}"));
        }
        if object["kind"] == "StatefulSet" {
            let spec = &mut object["spec"];
            assert_eq!(spec["volumeClaimTemplates"][0]["metadata"]["name"], "state");
            spec["volumeClaimTemplates"] = json!([]);
            let pod = &mut spec["template"]["spec"];
            let volume = json!({ "name": "state", "hostPath": { "path": "/mnt/own/in-cluster-state" } });
            pod["volumes"].as_array_mut().expect("a list").push(volume);
            pod["containers"][0]["image"] = json!("greenroom.test/in-cluster:1");
        }
    }
    // This cluster does not enforce it.
    let of_kind = |kind: &str| all.iter().rfind(|object| object["kind"] == kind).expect("one");
    let from = &of_kind("NetworkPolicy")["spec"]["ingress"][0]["from"][0];
    let labels = &of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&from["podSelector"]["matchLabels"], labels);
    all.push(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "runner", "namespace": "greenroom" },
        "stringData": { "config.toml": "concurrent = 8\n" },
    }));
    all
}

/// The directory of the runner's jobs.
struct Queue(PathBuf);

impl Queue {
    fn put(&self, name: &str, script: &str) {
        let new = self.0.join(format!("{name}.new"));
        std::fs::write(&new, script).expect("a file");
        std::fs::rename(new, self.0.join(format!("{name}.job"))).expect("a file");
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }

    #[track_caller]
    fn wait_for_log(&self, name: &str, text: &str) {
        let found = || self.read(&format!("{name}.log")).contains(text).then_some(());
        wait_for(&format!("`{text}` of {name}"), PATIENCE, found);
    }

    #[track_caller]
    fn expect_success(&self, name: &str) {
        let result = wait_for(name, PATIENCE, || {
            Some(self.read(&format!("{name}.result"))).filter(|result| !result.is_empty())
        });
        assert_eq!(result.trim(), "0", "{}", self.read(&format!("{name}.log")));
    }
}

fn greenroom(arguments: &[&str]) -> String {
    kubectl(&[&["exec", "-n", "greenroom", "greenroom-0", "--", "greenroom"], arguments].concat(), None)
}

#[test]
fn greenroom_in_the_cluster_outlives_its_pod_and_leaks_nothing() {
    let Some(namespace) = Namespace::open() else { return };
    let cluster = namespace.cluster;
    import_image(&namespace);
    let state = cluster.dir.join("in-cluster-state");
    if state.exists() {
        std::fs::remove_dir_all(&state).expect("an earlier run's");
    }
    std::fs::create_dir_all(state.join("queue")).expect("a directory");
    for dir in [state.clone(), state.join("queue")] {
        std::os::unix::fs::chown(dir, Some(1000), Some(1000)).expect("this is root");
    }
    let queue = Queue(state.join("queue"));
    for object in objects() {
        kubectl(&["apply", "-f", "-"], Some(&object));
    }
    let first = cluster.pod(POD, "ready", is_ready);
    let of_jobs = || cluster.get(JOBS).done()["items"].as_array().map_or(0, Vec::len);

    // Before the first job, the keeper makes two idle pods with the account of its own pod.
    wait_for("two pods", PATIENCE, || (of_jobs() == 2).then_some(()));
    queue.put("first", "echo on $(hostname)");
    queue.expect_success("first");
    queue.wait_for_log("first", "on linux-");

    // As by a node that is lost: the runner, the keeper and the job's connection end with the pod.
    queue.put("cut", "echo begun; sleep 10000");
    queue.wait_for_log("cut", "\nbegun\n");
    kubectl(&["delete", "pod", "-n", "greenroom", "greenroom-0", "--grace-period=1"], None);
    let is_next =
        |pod: &Value, before: &Value| pod["metadata"]["uid"] != before["metadata"]["uid"] && is_ready(pod);
    let second = cluster.pod(POD, "another one", |pod| is_next(pod, &first));
    queue.put("next", "echo on $(hostname)");
    queue.expect_success("next");
    assert_eq!(queue.read("cut.result"), "", "it ended with its runner");

    // A roll-out waits for the running job.
    queue.put("long", "echo begun; sleep 8; echo ended");
    queue.wait_for_log("long", "\nbegun\n");
    kubectl(&["delete", "pod", "-n", "greenroom", "greenroom-0", "--wait=false"], None);
    queue.expect_success("long");
    cluster.pod(POD, "another one", |pod| is_next(pod, &second));
    queue.put("last", "true");
    queue.expect_success("last");

    wait_for("two idle pods and no other", PATIENCE, || {
        let status: Value = serde_json::from_str(&greenroom(&["pool", "status", "--json"])).ok()?;
        let instances = status["pools"][0]["instances"].as_array()?;
        let are_idle = instances.iter().all(|instance| instance["phase"] == "ready");
        (are_idle && instances.len() == 2 && of_jobs() == 2).then_some(())
    });
    let leaks: Value = serde_json::from_str(&greenroom(&["pool", "leaks", "--json"])).expect("JSON");
    assert_eq!(leaks["pools"][0]["orphaned"], 0, "{leaks:#}");
    assert_eq!(leaks["pools"][0]["resources"].as_array().map(Vec::len), Some(2), "{leaks:#}");
    greenroom(&["pool", "drain", "--wait"]);
    assert_eq!(of_jobs(), 0);
    kubectl(&["delete", "namespace", "greenroom", "ci-jobs"], None);
}
