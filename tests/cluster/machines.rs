//! The machine image: its host key is the log's first line, its user gets in by address, and it ends quickly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::is_ready;
use crate::cluster::{Cluster, cluster, wait_for};
use crate::manifests::{deletion, machine};

/// A client's key; the path of its private half.
fn key(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&path);
    assert!(keygen.status().expect("ssh-keygen starts").success());
    path
}

/// A machine that runs, and the client of its user.
struct Machine {
    cluster: &'static Cluster,
    path: String,
    uid: Value,
    address: String,
    user: &'static str,
    files: TempDir,
    key: PathBuf,
}

impl Machine {
    fn start(
        cluster: &'static Cluster,
        namespace: &str,
        user: &'static str,
        change: impl FnOnce(&mut Value),
    ) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let key = key(files.path(), "key");
        let public = fs::read_to_string(key.with_extension("pub")).expect("the public half");
        let pods = format!("{}/pods", cluster.namespace(namespace));
        let mut manifest = machine("linux-1", public.trim(), user);
        change(&mut manifest);
        cluster.create(&pods, &manifest);
        let path = format!("{pods}/linux-1");
        let pod = cluster.pod(&path, "ready", is_ready);
        let address = pod["status"]["podIP"].as_str().expect("an address").to_owned();
        let machine = Self { cluster, path, uid: pod["metadata"]["uid"].clone(), address, user, files, key };
        let known = format!("{} {}\n", machine.address, machine.host_key());
        fs::write(machine.files.path().join("known_hosts"), known).expect("a file");
        machine
    }

    /// The first line that the pod printed.
    fn host_key(&self) -> String {
        let log = self.cluster.get(&format!("{}/log?limitBytes=4096", self.path));
        assert_eq!(log.status, 200, "{}", log.text);
        log.text.lines().next().expect("a line").to_owned()
    }

    /// Runs a command with the key that the pod was made with, at the port that it was made with.
    fn ssh(&self, command: &str) -> Output {
        self.ssh_with(&self.key, &["-p", "22"], command)
    }

    fn ssh_with(&self, key: &Path, options: &[&str], command: &str) -> Output {
        let mut ssh = self.cluster.command("ssh");
        ssh.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "IdentitiesOnly=yes",
        ]);
        ssh.args(["-o", "ConnectTimeout=30", "-o"]);
        ssh.arg(format!("UserKnownHostsFile={}", self.files.path().join("known_hosts").display()));
        ssh.args(options).arg("-i").arg(key).arg(format!("{}@{}", self.user, self.address)).arg(command);
        ssh.stdin(Stdio::null()).output().expect("ssh starts")
    }

    #[track_caller]
    fn prints(&self, command: &str) -> String {
        let output = self.ssh(command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

#[test]
fn the_node_is_ready_and_accepts_pods_as_soon_as_the_cluster_runs() {
    let Some(cluster) = cluster() else { return };
    let node = cluster.get("/api/v1/nodes/node-1").done();
    assert!(crate::api::has_condition(&node, "Ready", "True"), "{node:#}");
    assert_eq!(node["spec"]["taints"], Value::Null, "nothing keeps pods away");
}

#[test]
fn a_machine_prints_its_host_key_first_and_serves_the_key_of_its_environment() {
    let Some(cluster) = cluster() else { return };
    let machine = Machine::start(cluster, "machine", "builder", |_| {});
    let host_key = machine.host_key();
    let parts: Vec<&str> = host_key.split(' ').collect();
    assert!(
        matches!(parts[..], ["ssh-ed25519", data] if data.starts_with("AAAAC3NzaC1lZDI1NTE5")),
        "only a key: {host_key}"
    );

    assert_eq!(machine.prints("id -un; pwd"), "builder\n/home/builder");
    assert_eq!(machine.ssh("exit 7").status.code(), Some(7), "a script's own exit status arrives");
    assert!(machine.prints("git --version && bash --version").contains("git version"));
    // Another key does not get in: the client ends with 255.
    let other = key(machine.files.path(), "other");
    assert_eq!(machine.ssh_with(&other, &[], "true").status.code(), Some(255));
    assert_eq!(machine.ssh("exec 2>/dev/null; cat /proc/1/environ").status.code(), Some(1), "it is root's");
}

#[test]
fn two_machines_have_different_host_keys() {
    let Some(cluster) = cluster() else { return };
    let keys =
        ["machine-a", "machine-b"].map(|name| Machine::start(cluster, name, "root", |_| {}).host_key());
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn a_machine_reaps_what_loses_its_parent() {
    let Some(cluster) = cluster() else { return };
    let machine = Machine::start(cluster, "orphans", "root", |_| {});
    // Each `sleep` loses its parent immediately and ends later.
    machine.prints("for i in 1 2 3 4 5; do (setsid sleep 0.2 >/dev/null 2>&1 &); done");
    wait_for("no process is left that only waits to be reaped", || {
        let states = machine.prints("cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c 1");
        let sleeps = machine.prints("cat /proc/[0-9]*/comm 2>/dev/null");
        (!states.contains('Z') && !sleeps.contains("sleep")).then_some(())
    });
}

/// With a grace period of a minute, only the signal can be the reason for a quick end.
#[test]
fn a_machine_ends_on_sigterm_with_a_job_in_it() {
    let Some(cluster) = cluster() else { return };
    let machine = Machine::start(cluster, "end", "builder", |_| {});
    machine.prints("setsid sh -c 'trap \"\" TERM; sleep 1000' >/dev/null 2>&1 &");
    let mut options = deletion(&machine.uid);
    options["gracePeriodSeconds"] = json!(60);
    let began = Instant::now();
    cluster.call("DELETE", &machine.path, Some(&options)).done();
    wait_for("the machine is gone", || cluster.is_gone(&machine.path).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
}

/// The manifest is as the Pod Security Standard `restricted` demands.
#[test]
fn a_machine_runs_without_root_for_its_own_account() {
    let Some(cluster) = cluster() else { return };
    let restricted = |manifest: &mut Value| {
        let container = &mut manifest["spec"]["containers"][0];
        container["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        });
        container["env"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"name": "GREENROOM_PORT", "value": "2222"}));
        container["readinessProbe"]["tcpSocket"]["port"] = json!(2222);
    };
    let machine = Machine::start(cluster, "restricted", "builder", restricted);
    let output = machine.ssh_with(&machine.key, &["-p", "2222"], "id -u");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "1000",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
