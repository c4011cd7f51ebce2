//! The contract of every provider on a real cluster, and what the stand-in may have wrong.
//!
//! The cluster is that of tests/cluster: it starts with the first of these tests, and ends with the process. Where it is not built,
//! they are skipped.

#![cfg(test)]

mod endings;
mod figures;
mod images;
mod in_cluster;
mod jobs;
mod kills;
mod orders;
mod recipe;
mod site;
mod throttled;
mod ways;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::Status;
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture, Part, gone, listed, request, running, until};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider};
use greenroom_providers::registration::BuildContext;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use self::site::{ADDRESS, Way};
use crate::cluster::{Cluster, cluster};

/// An image with an SSH server, which the cluster has.
const IMAGE: &str = "greenroom.test/machine:1";
static NAMESPACES: AtomicU32 = AtomicU32::new(0);
/// Tests that end parts of the cluster have it to themselves.
static USE: RwLock<()> = RwLock::new(());

/// A namespace of its own, which is deleted at the end.
struct Namespace {
    name: String,
    state: tempfile::TempDir,
    cluster: &'static Cluster,
    _use: Use,
}

/// The way in which a test uses the cluster.
#[expect(dead_code, reason = "each holds its lock")]
enum Use {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Drop for Namespace {
    fn drop(&mut self) {
        kubectl(&["delete", "namespace", &self.name, "--wait=false"], None);
    }
}

/// `kubectl` in the cluster of this process.
fn kubectl_command() -> Command {
    let dir = &cluster().expect("a namespace is open").dir;
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/kubectl"));
    command.env("KUBECONFIG", dir.join("kubeconfig")).env("KUBECACHEDIR", dir.join("kubectl"));
    command
}

/// Runs it; its output.
fn kubectl(arguments: &[&str], input: Option<&Value>) -> String {
    let mut command = kubectl_command();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("kubectl starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    if let Some(input) = input {
        std::io::Write::write_all(&mut stdin, input.to_string().as_bytes()).expect("it reads");
    }
    drop(stdin);
    let output = child.wait_with_output().expect("kubectl ends");
    String::from_utf8(output.stdout).expect("text")
}

/// Moves the calling thread, and all that it starts from now on, into the cluster's network.
fn enter(cluster: &Cluster) {
    let pid = std::fs::read_to_string(cluster.dir.join("pid")).expect("the cluster runs");
    let network = File::open(format!("/proc/{}/ns/net", pid.trim())).expect("its network");
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("this is root");
}

impl Namespace {
    /// A namespace of the test's own. `None`: there can be no cluster here, and the test is skipped.
    fn open() -> Option<Self> {
        cluster()
            .map(|cluster| Self::of(cluster, Use::Shared(USE.read().unwrap_or_else(PoisonError::into_inner))))
    }

    /// A namespace of the test's own, while no other test of this process uses the cluster.
    fn open_alone() -> Option<Self> {
        cluster()
            .map(|cluster| Self::of(cluster, Use::Alone(USE.write().unwrap_or_else(PoisonError::into_inner))))
    }

    fn of(cluster: &'static Cluster, using: Use) -> Self {
        enter(cluster);
        let state = tempfile::tempdir().unwrap();
        make_keys(state.path());
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("contract-{}-{number}", std::process::id());
        let path = cluster.namespace(&name);
        assert!(path.ends_with(&name));
        Self { name, state, cluster, _use: using }
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        kubectl(&[&["-n", &self.name], arguments].concat(), None)
    }

    fn apply(&self, object: &Value) {
        kubectl(&["-n", &self.name, "apply", "-f", "-"], Some(object));
    }

    fn pods(&self) -> Vec<Value> {
        let list: Value = serde_json::from_str(&self.kubectl(&["get", "pods", "-o", "json"])).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The first lines of a provider's table, whose jobs reach pods this way.
    fn table_by(&self, way: Way) -> String {
        if way.is_served {
            images::bring(self.cluster);
        }
        let kubeconfig = self.cluster.dir.join("kubeconfig");
        let context = kubectl(&["config", "current-context"], None);
        format!(
            "context = '{}'\nkubeconfig = '{}'\nnamespace = '{}'\nimage_pull_policy = 'Never'\n{}",
            context.trim(),
            kubeconfig.display(),
            self.name,
            way.lines()
        )
    }

    /// The requests of Greenroom in the namespace, as the API server noted them: verb and resource.
    fn calls(&self) -> Vec<String> {
        let log = self.cluster.dir.join("log/audit.jsonl");
        let text = std::fs::read_to_string(log).expect("the log");
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ours = lines.filter(|line| {
            let agent = line["userAgent"].as_str().unwrap_or_default();
            let at = &line["objectRef"];
            at["namespace"] == self.name.as_str()
                && !agent.starts_with("kubectl")
                && !agent.starts_with("curl")
        });
        let name = |line: Value| {
            let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let at = &line["objectRef"];
            format!("{} {}/{}", of(&line["verb"]), of(&at["resource"]), of(&at["subresource"]))
        };
        ours.map(name).collect()
    }

    fn context(&self) -> BuildContext {
        BuildContext {
            pool: self.pool(),
            state_dir: self.state.path().to_owned(),
            program: env!("CARGO_BIN_EXE_greenroom").into(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    fn build(&self, more: &str) -> Rc<dyn Provider> {
        self.build_by(ADDRESS, more)
    }

    fn build_by(&self, way: Way, more: &str) -> Rc<dyn Provider> {
        self.build_of(&format!("{}{more}", self.table_by(way)))
    }

    fn build_of(&self, table: &str) -> Rc<dyn Provider> {
        let text = format!("schedule_within = '1s'\n{table}");
        (crate::fixture::registration().build)(&self.context(), &text.parse().unwrap()).unwrap()
    }
}

impl Fixture for Namespace {
    fn pool(&self) -> PoolName {
        PoolName::new("linux")
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => Some(self.build("")),
            Behaviour::Full => Some(self.build("node_selector = { no = 'where' }")),
            Behaviour::Refuses(_) | Behaviour::SlowBoot | Behaviour::LosesAnswer => None,
        }
    }

    fn lacks(&self, part: &Part) -> Option<&'static str> {
        match part {
            Part::Fault(Behaviour::Refuses(_)) => {
                Some("a real cluster refuses until it is changed, not once")
            }
            Part::Fault(Behaviour::SlowBoot | Behaviour::LosesAnswer) => {
                Some("a real cluster can be made neither slow nor silent; the stand-in is")
            }
            Part::Fault(_) | Part::Break | Part::Banner | Part::OwnAddress => None,
        }
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        read_keys(self.state.path())
    }

    fn boot_deadline(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn break_instance(&self, id: &InstanceId) -> bool {
        self.kubectl(&["exec", id.as_str(), "--", "kill", "-TERM", "1"]);
        true
    }

    fn living(&self) -> BTreeSet<String> {
        let is_running = |pod: &Value| !pod["status"]["containerStatuses"][0]["state"]["running"].is_null();
        let pods = self.pods().into_iter().filter(is_running);
        pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    fn remains(&self) -> Vec<String> {
        self.pods().iter().map(|pod| pod["metadata"]["name"].to_string()).collect()
    }

    fn host_key(&self, request: &LaunchRequest) -> String {
        let log = self.kubectl(&["logs", request.instance.as_str()]);
        log.lines().next().unwrap_or_default().trim_start_matches("greenroom-host-key ").to_owned()
    }
}

greenroom_harness::provider_contract!(match Namespace::open() {
    Some(namespace) => namespace,
    None => return,
});

#[tokio::test]
async fn each_refusal_of_admission_has_its_class() {
    let Some(namespace) = Namespace::open() else { return };
    for (table, object, class, text) in [
        (
            "",
            json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" }, "spec": { "hard": { "pods": "0" } } }),
            ErrorClass::Quota,
            "exceeded quota: few",
        ),
        ("service_account = 'nobody'", Value::Null, ErrorClass::Invalid, "error looking up service account"),
        ("priority_class = 'nothing'", Value::Null, ErrorClass::Invalid, "no PriorityClass"),
        (
            "memory = '1Gi'",
            json!({ "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
                    "spec": { "limits": [{ "type": "Container", "max": { "memory": "64Mi" } }] } }),
            ErrorClass::Invalid,
            "maximum memory usage per Container",
        ),
    ] {
        if !object.is_null() {
            namespace.apply(&object);
        }
        let provider = namespace.build(table);
        // An object takes effect some moments after its creation.
        let tries = std::cell::Cell::new(0);
        let refuses = async || {
            tries.set(tries.get() + 1);
            provider
                .launch(&request(&namespace, tries.get()))
                .await
                .err()
                .filter(|error| *error.class() == class)
        };
        let refused = until("the refusal", Duration::from_secs(30), refuses).await;
        assert!(refused.to_string().contains(text), "{refused}");
        if !object.is_null() {
            let kind = object["kind"].as_str().unwrap();
            namespace.kubectl(&["delete", kind, "--all"]);
        }
    }
}

#[tokio::test]
async fn an_evicted_pod_is_named_with_its_reason_although_it_is_gone() {
    let Some(namespace) = Namespace::open() else { return };
    let provider = namespace.build("");
    let request = request(&namespace, 1);
    provider.launch(&request).await.unwrap();
    running(&namespace, &*provider, &request.instance).await;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": request.instance.as_str(), "namespace": namespace.name },
    });
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", namespace.name, request.instance);
    kubectl(&["create", "--raw", &path, "-f", "-"], Some(&eviction));
    until("its end", Duration::from_secs(30), async || namespace.pods().is_empty().then_some(())).await;
    let seen = listed(&*provider, &namespace.pool()).await;
    assert_eq!(seen[0].status, Status::Stopping);
    assert!(seen[0].detail.as_deref().unwrap().ends_with("its node was drained"), "{seen:?}");
    gone(&namespace, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_lifetime_and_a_full_disk_are_named() {
    let Some(namespace) = Namespace::open() else { return };
    let run = |id: &InstanceId, command: &str| {
        drop(namespace.kubectl(&["exec", id.as_str(), "--", "sh", "-c", command]));
    };
    let fill = "(head -c 60000000 /dev/zero >/var/tmp/full) & sleep 1";
    for (number, table, lifetime, command, expected) in
        [(1, "", 3, "", "reached its lifetime"), (2, "disk = '20Mi'", 600, fill, "exceeded its disk limit: ")]
    {
        let provider = namespace.build(table);
        let mut request = request(&namespace, number);
        request.lifetime = Some(Duration::from_secs(lifetime));
        provider.launch(&request).await.unwrap();
        running(&namespace, &*provider, &request.instance).await;
        if !command.is_empty() {
            run(&request.instance, command);
        }
        let told = until("its end", Duration::from_mins(1), async || {
            let seen = listed(&*provider, &namespace.pool()).await;
            seen.into_iter().find(|one| one.id == request.instance && one.status == Status::Stopping)?.detail
        })
        .await;
        let is_gap =
            || endings::DISK.iter().any(|[begin, end]| told.starts_with(begin) && told.ends_with(end));
        assert!(told.starts_with(expected) || number == 2 && is_gap(), "{told}");
        gone(&namespace, &*provider, &request.instance).await;
    }
}
