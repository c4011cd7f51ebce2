//! The stand-in for an API server, as a process that a test has to itself.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use crate::http;

/// Ends with all its pods. At the end of a test that succeeds, no request may have been wrong.
#[derive(Debug)]
pub struct StandIn {
    child: Child,
    /// A pipe that the stand-in reads: it runs until this is closed.
    life: Option<ChildStdin>,
    control: String,
    /// The address of the stand-in, as a kubeconfig names it.
    pub url: String,
    pub kubeconfig: String,
    /// A port that is free on all addresses of its pods.
    pub ssh_port: i64,
}

/// True if pods can be processes here.
pub fn is_possible() -> bool {
    let unshare = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).output();
    unshare.is_ok_and(|output| output.status.success()) && Path::new("/usr/sbin/sshd").exists()
}

/// The reason of tests that cannot be tried.
pub const IMPOSSIBLE: &str =
    "namespaces as root, and an sshd, are needed for the pods of the stand-in cluster";

impl StandIn {
    pub fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/cluster");
        let mut child = Command::new("python3")
            .arg("-B")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the stand-in starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says where it is");
        let hello: Value = serde_json::from_str(&line).expect("the stand-in says where it is");
        let text = |name: &str| hello[name].as_str().expect("a text").to_owned();
        let cluster = Self {
            life: child.stdin.take(),
            child,
            control: text("control"),
            url: text("url"),
            kubeconfig: text("kubeconfig"),
            ssh_port: hello["ssh_port"].as_i64().expect("a port"),
        };
        cluster.set(&json!({ "server_program": env!("CARGO_BIN_EXE_greenroom-server") }));
        cluster
    }

    /// The lines of a provider's table for this cluster.
    pub fn table(&self, more: &str) -> String {
        format!(
            "context = 'test'\nkubeconfig = '{}'\nnamespace = 'ci-jobs'\nimage = 'ci:12'\nssh_port = {}\n{more}\n",
            self.kubeconfig, self.ssh_port
        )
    }

    #[track_caller]
    fn call(&self, operation: &str, body: &Value) -> Value {
        let answer = http::call(&self.control, "POST", operation, Some(body));
        let (status, answer) = answer.unwrap_or_else(|error| panic!("{operation}: {error}"));
        assert_eq!(status, 200, "{operation}: {answer}");
        answer
    }

    /// Changes settings; cluster/world.py lists them.
    #[track_caller]
    pub fn set(&self, settings: &Value) {
        self.call("/settings", settings);
    }

    /// Adds a fault: `request`, `how`, and optionally `when`, `count`, `rate`.
    #[track_caller]
    pub fn fault(&self, fault: &Value) {
        self.call("/fault", fault);
    }

    #[track_caller]
    pub fn clear_faults(&self) {
        self.call("/clear", &json!({}));
    }

    /// Ends all port-forwards, as an API server does that is killed.
    #[track_caller]
    pub fn cut(&self) {
        self.call("/cut", &json!({}));
    }

    /// Ends a pod as the cluster does.
    #[track_caller]
    pub fn disrupt(&self, pod: &str, how: &str) {
        self.call("/disrupt", &json!({ "pod": pod, "how": how }));
    }

    /// Changes a pod's metadata.
    #[track_caller]
    pub fn change(&self, pod: &str, metadata: &Value) {
        self.call("/pod", &json!({ "pod": pod, "metadata": metadata }));
    }

    #[track_caller]
    pub fn seen(&self) -> Value {
        self.call("/seen", &json!({}))
    }

    /// The names of pods whose first process lives.
    pub fn living(&self) -> BTreeSet<String> {
        strings(&self.seen()["living"]).into_iter().collect()
    }

    pub fn pods(&self) -> BTreeMap<String, Value> {
        serde_json::from_value(self.seen()["pods"].take()).expect("pods by name")
    }

    /// The number of times that each name was created.
    pub fn made(&self) -> BTreeMap<String, u32> {
        serde_json::from_value(self.seen()["made"].take()).expect("counts by name")
    }

    /// The requests since the last call of `forget_requests`, as verb and resource.
    pub fn requests(&self) -> Vec<String> {
        strings(&self.seen()["requests"])
    }

    pub fn forget_requests(&self) {
        self.call("/forget", &json!({}));
    }

    /// The public host key of a pod, as its log shows it; empty before it has one.
    pub fn host_key(&self, pod: &str) -> String {
        let line = self.seen()["keys"][pod].as_str().unwrap_or_default().to_owned();
        line.strip_prefix("greenroom-host-key ").unwrap_or_default().to_owned()
    }

    fn violations(&self) -> Vec<String> {
        strings(&self.seen()["violations"])
    }
}

fn strings(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).expect("a list of strings")
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let violations = if std::thread::panicking() { Vec::new() } else { self.violations() };
        drop(self.life.take());
        let _waited = self.child.wait();
        assert_eq!(violations, Vec::<String>::new(), "no correct client would have done this");
    }
}
