//! The ends of pods on a real cluster, in three moments of a job: the class of the failure, and one sentence in the job
//! log.

use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::exit_code::Failure;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::CallRecord;
use serde_json::{Value, json};

use super::site::{ADDRESS, FORWARD, PATIENCE, Site, Way};
use super::{Namespace, kubectl};

/// All containers lose their power.
const POWER_CUT: &str = "for pid in $(ctr --address /run/containerd/containerd.sock --namespace k8s.io tasks ls | awk 'NR > 1 { \
                         print $2 }'); do kill -9 $pid; done";

/// An end of a pod.
struct Ending {
    name: &'static str,
    /// The class of failure that a job's failed stage counts as.
    class: Class,
    /// The job log's sentence about the instance contains one of these pairs, the first one behind its name.
    sentences: &'static [[&'static str; 2]],
    /// The keys that the pool's table and pod need for it.
    table: &'static [(&'static str, &'static str)],
    pod: &'static str,
    act: fn(&Site, &str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    System,
    /// Build failures come with a status.
    Build,
}

/// A job that uses up the memory or the disk of its pod.
const USED_UP: Class = Class::Build;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// `prepare` waits for the pod, which does not count as ready yet.
    Prepare,
    MidStage,
    BetweenStages,
}

/// The moments of an end, with the way to the pod. A port-forward ends with its pod; a connection to an address may
/// find out late.
const MOMENTS: [(Moment, Way); 4] = [
    (Moment::Prepare, FORWARD),
    (Moment::MidStage, ADDRESS),
    (Moment::MidStage, FORWARD),
    (Moment::BetweenStages, ADDRESS),
];
/// The pod is still listed, or is gone.
const DELETED: &[[&str; 2]] = &[
    ["was deleted in the cluster, not by Greenroom", ""],
    ["is being deleted in the cluster, not by Greenroom", ""],
];
pub(super) const DISK: &[[&str; 2]] = &[["exceeded its disk limit: ", ""]];
/// A pod counts as ready when the test says so.
const GATE: &str = "greenroom.test/go";

const EVICTED: Ending = Ending {
    name: "evicted",
    class: Class::System,
    sentences: &[["was reclaimed at ", ": its node was drained"]],
    table: &[],
    pod: "{}",
    act: evict,
};
const PREEMPTED: Ending = Ending {
    name: "preempted",
    class: Class::System,
    sentences: &[["was preempted at ", ": a pod of a higher priority took its place"]],
    table: &[("priority_class", "greenroom-low")],
    pod: r#"{ "spec": { "containers": [{ "resources": { "limits": { "greenroom.test/seat": "1" } } }] } }"#,
    act: preempt,
};
const OUT_OF_MEMORY: Ending = Ending {
    name: "out of memory",
    class: USED_UP,
    sentences: &[["ran out of its 64Mi of memory", ""]],
    // With as much reserved as allowed, the kernel has no preference among processes.
    table: &[("memory", "64Mi"), ("cpu", "500m"), ("cpu_limit", "500m")],
    pod: "{}",
    // Of all processes, the kernel ends the pod's first.
    act: |site, pod| {
        exec(site, pod, "echo 1000 >/proc/1/oom_score_adj; x=0123456789; while :; do x=$x$x; done");
    },
};
const OUT_OF_DISK: Ending = Ending {
    name: "out of disk",
    class: USED_UP,
    sentences: DISK,
    table: &[("disk", "20Mi")],
    pod: "{}",
    act: |site, pod| exec(site, pod, "head -c 60000000 /dev/zero >/var/tmp/full"),
};
const DEADLINE: Ending = Ending {
    name: "deadline",
    class: Class::System,
    sentences: &[["reached its lifetime", ""]],
    table: &[],
    pod: "{}",
    act: |site, pod| {
        let patch = r#"{ "spec": { "activeDeadlineSeconds": 1 } }"#;
        drop(site.namespace.kubectl(&["patch", "pod", pod, "--patch", patch]));
    },
};
const BY_HAND: Ending = Ending {
    name: "deleted by hand",
    class: Class::System,
    sentences: DELETED,
    table: &[],
    pod: "{}",
    act: |site, pod| drop(site.namespace.kubectl(&["delete", "pod", pod, "--wait=false"])),
};
const HELD: Ending = Ending {
    name: "a finalizer of others",
    class: Class::System,
    sentences: DELETED,
    table: &[],
    pod: "{}",
    act: |site, pod| {
        finalizers(site, pod, r#"["greenroom.test/held"]"#);
        drop(site.namespace.kubectl(&["delete", "pod", pod, "--wait=false"]));
    },
};

const NODE_GONE: Ending = Ending {
    name: "node gone",
    class: Class::System,
    sentences: &[["was reclaimed at ", ": its node went away"]],
    table: &[],
    pod: "{}",
    act: |site, _| drop(site.namespace.cluster.on_node(POWER_CUT)),
};

fn evict(site: &Site, pod: &str) {
    let namespace = &site.namespace.name;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": namespace },
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    kubectl(&["create", "--raw", &path, "-f", "-"], Some(&eviction));
}

/// A pod of a higher priority takes the only seat, and leaves it again.
fn preempt(site: &Site, pod: &str) {
    let rival = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": format!("rival-of-{pod}") },
        "spec": {
            "priorityClassName": "greenroom-high", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "greenroom.test/busybox:1", "command": ["sleep", "1000"],
                "resources": { "limits": { "greenroom.test/seat": "1" } },
            }],
        },
    });
    site.namespace.apply(&rival);
    let path = format!("/api/v1/namespaces/{}/pods/rival-of-{pod}", site.namespace.name);
    site.namespace.cluster.pod(&path, "placed", |pod| pod["spec"]["nodeName"].is_string());
    site.namespace.kubectl(&["delete", "pod", &format!("rival-of-{pod}")]);
}

/// The seat, and the priorities.
fn provide_seats(site: &Namespace) {
    for (name, value) in [("greenroom-low", -1), ("greenroom-high", 1000)] {
        let class = json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value });
        kubectl(&["apply", "-f", "-"], Some(&class));
    }
    let patch = r#"{ "status": { "capacity": { "greenroom.test/seat": "1" } } }"#;
    kubectl(&["patch", "node", "node-1", "--subresource=status", "--type=merge", "--patch", patch], None);
    site.cluster.pod("/api/v1/nodes/node-1", "with a seat", |node| {
        node["status"]["allocatable"]["greenroom.test/seat"] == "1"
    });
}

fn exec(site: &Site, pod: &str, line: &str) {
    site.namespace.kubectl(&["exec", pod, "-c", "job", "--", "sh", "-c", line]);
}

fn finalizers(site: &Site, pod: &str, list: &str) {
    let patch = format!(r#"{{ "metadata": {{ "finalizers": {list} }} }}"#);
    site.namespace.kubectl(&["patch", "pod", pod, "--type=merge", "--patch", &patch]);
}

impl Ending {
    fn open(&self, namespace: Namespace, moment: Moment, way: Way) -> Site {
        let mut pod: Value = serde_json::from_str(self.pod).expect("JSON");
        if moment == Moment::Prepare {
            pod["spec"]["readinessGates"] = json!([{ "conditionType": GATE }]);
        }
        Site::by(way, namespace, &pod, |setting: Setting| {
            self.table.iter().fold(setting, |setting, (key, value)| setting.provider(key, *value))
        })
    }

    fn expect(&self, moment: Moment, attempt: &Attempt, pod: &str, call: &CallRecord) {
        let label = format!("{} in {moment:?}", self.name);
        let text = call.stderr_text();
        match (self.class, attempt.verdict(call)) {
            (Class::System, Err(Failure::System(_))) | (Class::Build, Err(Failure::Build { .. })) => {}
            (_, other) => panic!("{label}: {other:?}\n{text}"),
        }
        let sentences: Vec<&str> = text.lines().filter(|line| line.starts_with("greenroom: ")).collect();
        let is_one = sentences.len() == 1 && self.is_said_by(pod, sentences[0]);
        assert!(is_one, "{label}: one sentence: {sentences:#?}");
    }

    fn is_said_by(&self, pod: &str, line: &str) -> bool {
        let holds = |[begin, end]: &[&str; 2]| line.contains(&format!("{pod} {begin}")) && line.contains(end);
        self.sentences.iter().any(holds)
    }
}

/// The pod of the running job, or of the one that waits.
fn only_pod(site: &Site) -> String {
    let name = || site.pod_names().into_iter().find(|name| !name.starts_with("rival"));
    wait_for("a pod", PATIENCE, name)
}

fn has_job_running(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array();
    statuses.is_some_and(|all| all.iter().any(|one| !one["state"]["running"].is_null()))
}

/// Lets all pods count as ready.
fn open_gate(site: &Site) {
    for pod in site.namespace.pods().iter().filter(|pod| has_job_running(pod)) {
        let patch = json!({ "status": { "conditions": [{ "type": GATE, "status": "True" }] } }).to_string();
        let name = pod["metadata"]["name"].as_str().expect("a name");
        site.namespace.kubectl(&["patch", "pod", name, "--subresource=status", "--patch", &patch]);
    }
}

/// The pod has ended, or will. With a finalizer, it stays.
fn has_ended(site: &Site, pod: &str) -> bool {
    let pods = site.namespace.pods();
    let found = pods.iter().find(|one| one["metadata"]["name"] == pod);
    found.is_none_or(|pod| !has_job_running(pod))
}

fn in_a_stage(ending: &Ending, (moment, way): (Moment, Way), namespace: Namespace) {
    let site = ending.open(namespace, moment, way);
    let attempt = site.prepared(1);
    let pod = site.instance_of(&attempt).to_string();
    let call = if moment == Moment::MidStage {
        let ticking = "for i in $(seq 10000); do echo tick; sleep 0.2; done";
        let stage = attempt.start_run("build_script", ticking);
        stage.wait_for_output("tick", PATIENCE);
        (ending.act)(&site, &pod);
        stage.wait(PATIENCE)
    } else {
        assert_eq!(attempt.run("prepare_script", "true").exit_code(), Some(0));
        (ending.act)(&site, &pod);
        wait_for("its end", PATIENCE, || has_ended(&site, &pod).then_some(()));
        attempt.run("build_script", "true")
    };
    ending.expect(moment, &attempt, &pod, &call);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    release(&site, &pod, ending);
    site.expect_nothing_left();
}

/// Checks a pod that others hold: it stays recorded and is never taken for gone. Then releases it.
fn release(site: &Site, pod: &str, ending: &Ending) {
    if ending.name != HELD.name {
        return;
    }
    assert!(site.reap().lines().count() > 0, "it reports what it waits for");
    assert!(site.state().instances.keys().any(|id| id.as_str() == pod), "{:?}", site.state());
    assert!(site.pod_names().contains(pod));
    finalizers(site, pod, "[]");
}

/// Another pod serves the job, which does not fail.
fn in_prepare(ending: &Ending, way: Way, namespace: Namespace) {
    let site = ending.open(namespace, Moment::Prepare, way);
    let attempt = site.runner().attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.start_prepare();
    let pod = only_pod(&site);
    let path = format!("/api/v1/namespaces/{}/pods/{pod}", site.namespace.name);
    site.namespace.cluster.pod(&path, "running", has_job_running);
    // The keeper has to have seen it, to know what it lost.
    wait_for("a list with the pod", PATIENCE, || {
        site.order(&["pool", "status"]).contains(&pod).then_some(())
    });
    (ending.act)(&site, &pod);
    wait_for("its end", PATIENCE, || has_ended(&site, &pod).then_some(()));
    wait_for("another pod", PATIENCE, || {
        open_gate(&site);
        prepare.record().ended
    });
    let record = prepare.record();
    let told = record.stderr_text();
    assert_eq!(record.exit_code(), Some(0), "{}: {told}", ending.name);
    assert_ne!(site.instance_of(&attempt).as_str(), pod, "{told}");
    let said = told.lines().filter(|line| ending.is_said_by(&pod, line)).count();
    assert_eq!(said, 1, "{} in Prepare: one sentence: {told}", ending.name);
    assert_eq!(attempt.run("build_script", "true").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    release(&site, &pod, ending);
    site.expect_nothing_left();
}

fn in_each_moment(ending: &Ending) {
    for (moment, way) in MOMENTS {
        let Some(namespace) = Namespace::open() else { return };
        if ending.name == PREEMPTED.name {
            provide_seats(&namespace);
        }
        match moment {
            Moment::Prepare => in_prepare(ending, way, namespace),
            Moment::MidStage | Moment::BetweenStages => in_a_stage(ending, (moment, way), namespace),
        }
    }
}

macro_rules! each_ending {
    ($($test:ident: $ending:expr;)*) => {
        $(#[test]
        fn $test() {
            in_each_moment(&$ending);
        })*
    };
}

each_ending! {
    an_eviction_is_named: EVICTED;
    a_preemption_is_named: PREEMPTED;
    memory_that_is_used_up_is_named: OUT_OF_MEMORY;
    a_disk_that_is_full_is_named: OUT_OF_DISK;
    a_deadline_is_named: DEADLINE;
    a_deletion_by_hand_is_named: BY_HAND;
    a_pod_that_others_hold_is_named_and_waited_for: HELD;
}

/// All three moments with one lost node, which takes a minute and a half: Kubernetes waits 50 s, and pods 30 s more.
#[test]
fn a_lost_node_is_named() {
    let Some(namespace) = Namespace::open_alone() else { return };
    let cluster = namespace.cluster;
    let site = NODE_GONE.open(namespace, Moment::MidStage, ADDRESS);
    let mut neighbour = cluster.neighbour();
    let (running, between) = (site.prepared(1), site.prepared(2));
    let pods = [&running, &between].map(|attempt| site.instance_of(attempt).to_string());
    let stage = running.start_run("build_script", "for i in $(seq 10000); do echo tick; sleep 0.2; done");
    stage.wait_for_output("tick", PATIENCE);
    assert_eq!(between.run("prepare_script", "true").exit_code(), Some(0));
    cluster.on_node("touch /mnt/own/stopped/kubelet; kill -9 $(cat /mnt/own/pids/kubelet)");

    let waiting = site.runner().attempt(&Job::new(3));
    assert_eq!(waiting.config().exit_code(), Some(0));
    let prepare = waiting.start_prepare();
    let mine = |name: &String| !pods.contains(name);
    let booting = wait_for("a pod", PATIENCE, || site.pod_names().into_iter().find(mine));
    wait_for("the deletion of all pods", PATIENCE, || {
        let is_deleted = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
        site.namespace.pods().iter().all(is_deleted).then_some(())
    });
    // Until now, the job had noticed nothing.
    assert_eq!(stage.record().ended, None);
    (NODE_GONE.act)(&site, "");
    NODE_GONE.expect(Moment::MidStage, &running, &pods[0], &stage.wait(PATIENCE));
    let late = between.run("build_script", "true");
    NODE_GONE.expect(Moment::BetweenStages, &between, &pods[1], &late);
    // Without the kubelet, Kubernetes cannot confirm the end: the pods stay.
    assert!(pods.iter().all(|pod| site.pod_names().contains(pod)));
    cluster.on_node("rm /mnt/own/stopped/kubelet");
    let record = prepare.wait(PATIENCE);
    let told = record.stderr_text();
    assert_eq!(record.exit_code(), Some(0), "{told}");
    assert_eq!(told.lines().filter(|line| NODE_GONE.is_said_by(&booting, line)).count(), 1, "{told}");
    for attempt in [running, between, waiting] {
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
    }
    neighbour.kill().and_then(|()| neighbour.wait()).expect("it ends");
    site.expect_nothing_left();
}
