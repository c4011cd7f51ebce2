//! The words of a pod's status when the pod cannot begin, when it ends, and when others end it.

use serde_json::{Value, json};

use crate::api::{has_condition, is_ready};
use crate::cluster::{Cluster, cluster, wait_for};
use crate::manifests::{busybox, deletion, eviction, sleeper};
use crate::recording::{end_of, expect_recorded};

/// Creates a pod and records its status as soon as that is so.
fn record(cluster: &Cluster, namespace: &str, name: &str, pod: &Value, is_so: impl Fn(&Value) -> bool) {
    let pods = format!("{namespace}/pods");
    cluster.create(&pods, pod);
    let path = format!("{pods}/{}", pod["metadata"]["name"].as_str().expect("a name"));
    let seen = cluster.pod(&path, name, is_so);
    expect_recorded(&format!("pod-{name}"), &end_of(&seen));
}

fn state<'a>(pod: &'a Value, name: &str) -> &'a Value {
    &pod["status"]["containerStatuses"][0]["state"][name]
}

fn waits(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |pod| state(pod, "waiting")["reason"] == reason
}

/// The phase follows the container's state: for a moment, a pod with a terminated container is `Pending` or `Running`.
fn terminated(pod: &Value) -> bool {
    state(pod, "terminated").is_object()
        && matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}

/// A sleeper with one part of its container changed.
fn container(name: &str, part: &str, value: &Value) -> Value {
    let mut pod = sleeper(name);
    pod["spec"]["containers"][0][part] = value.clone();
    pod
}

#[test]
fn pods_that_cannot_begin() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("begin");
    let refused = |pod: &Value| has_condition(pod, "PodScheduled", "False");

    let big = container("cpu", "resources", &json!({"requests": {"cpu": "1000"}}));
    record(cluster, &namespace, "unschedulable-cpu", &big, refused);
    let mut elsewhere = sleeper("selector");
    elsewhere["spec"]["nodeSelector"] = json!({"pool": "none"});
    record(cluster, &namespace, "unschedulable-selector", &elsewhere, refused);

    let mut absent = container("absent", "image", &json!("greenroom.test/absent:1"));
    absent["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    record(cluster, &namespace, "image-never-pulled", &absent, waits("ErrImageNeverPull"));
    let misnamed = container("misnamed", "image", &json!("greenroom.test/UPPER:1"));
    record(cluster, &namespace, "image-invalid-name", &misnamed, waits("InvalidImageName"));
    let from = json!([{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "missing", "key": "key"}}}]);
    let secret = container("secret", "env", &from);
    record(cluster, &namespace, "missing-secret", &secret, waits("CreateContainerConfigError"));
    record(cluster, &namespace, "missing-program", &busybox("program", &["/missing"]), terminated);
}

/// A registry that does not answer: the message is the network's, so only the reasons are held.
#[test]
fn an_image_that_cannot_be_pulled_is_tried_again() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("pull"));
    cluster.create(&pods, &container("linux-1", "image", &json!("127.0.0.1:1/absent:1")));
    let path = format!("{pods}/linux-1");
    cluster.pod(&path, "unable to pull", waits("ErrImagePull"));
    let pod = cluster.pod(&path, "backing off", waits("ImagePullBackOff"));
    assert_eq!(pod["status"]["phase"], "Pending");
}

#[test]
fn pods_that_end() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("ends");
    record(cluster, &namespace, "succeeded", &busybox("good", &["true"]), terminated);
    record(cluster, &namespace, "failed", &busybox("bad", &["sh", "-c", "exit 3"]), terminated);

    let mut late = sleeper("late");
    late["spec"]["activeDeadlineSeconds"] = json!(1);
    let is_late = |pod: &Value| pod["status"]["reason"] == "DeadlineExceeded" && terminated(pod);
    record(cluster, &namespace, "deadline", &late, is_late);

    let mut greedy = busybox("memory", &["sh", "-c", "x=0123456789; while :; do x=$x$x; done"]);
    greedy["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "32Mi", "cpu": "1"}});
    record(cluster, &namespace, "out-of-memory", &greedy, terminated);
}

/// The kubelet looks at the disk every ten seconds. It gives no reason if the first process exits with 0 when it is told to end.
#[test]
fn a_pod_that_fills_its_disk_is_evicted_by_the_kubelet() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("disk");
    let pods = format!("{namespace}/pods");
    for (name, status) in [("out-of-disk", 143), ("out-of-disk-status-0", 0)] {
        let script = format!(
            "trap 'exit {status}' TERM; dd if=/dev/zero of=/fill bs=1M count=32; while :; do sleep 0.1; done"
        );
        let mut full = busybox(name, &["sh", "-c", &script]);
        full["spec"]["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "8Mi"}});
        cluster.create(&pods, &full);
        let mut end = end_of(&cluster.pod(&format!("{pods}/{name}"), "terminated", terminated));
        // Sometimes the kubelet has lost the container by now, and says 137 and `ContainerStatusUnknown`.
        end.as_object_mut().expect("an object").remove("state");
        expect_recorded(&format!("pod-{name}"), &end);
    }
}

/// A client that waits for the deletion of a pod sees its container end first.
#[test]
fn what_a_watch_shows_of_a_pod_that_is_deleted() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("watch"));
    let path = format!("{pods}/linux-1");
    let created = cluster
        .create(&pods, &busybox("linux-1", &["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]));
    let pod = cluster.pod(&path, "ready", is_ready);
    cluster.call("DELETE", &path, Some(&deletion(&pod["metadata"]["uid"]))).done();
    wait_for("the pod is gone", || cluster.is_gone(&path).then_some(()));

    let since = created["metadata"]["resourceVersion"].as_str().expect("a version");
    let watch = cluster.get(&format!("{pods}?watch=1&resourceVersion={since}&timeoutSeconds=1"));
    let mut seen: Vec<Value> = Vec::new();
    for line in watch.text.lines() {
        let event: Value = serde_json::from_str(line).expect("an event");
        let pod = &event["object"];
        let state =
            pod["status"]["containerStatuses"][0]["state"].as_object().and_then(|state| state.keys().next());
        let step = json!({
            "type": event["type"], "deleting": pod["metadata"]["deletionTimestamp"].is_string(),
            "phase": pod["status"]["phase"], "state": state,
        });
        if seen.last() != Some(&step) {
            seen.push(step);
        }
    }
    expect_recorded("watch-deleted", &json!(seen));
}

/// The condition lasts as long as the pod, which holds on here until it is killed.
#[test]
fn a_pod_that_is_evicted_or_preempted_says_by_whom() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("others");
    let pods = format!("{namespace}/pods");
    let disrupted = |pod: &Value| has_condition(pod, "DisruptionTarget", "True");
    let begin = |pod: &Value| {
        let path = format!("{pods}/{}", pod["metadata"]["name"].as_str().expect("a name"));
        cluster.create(&pods, pod);
        cluster.pod(&path, "ready", is_ready);
        path
    };
    let holding = |name: &str| {
        let mut pod = sleeper(name);
        pod["metadata"]["finalizers"] = json!(["greenroom.test/held"]);
        pod
    };
    let release = |path: &str| {
        wait_for("a pod without its finalizer", || {
            let mut pod = cluster.get(path).done();
            pod["metadata"]["finalizers"] = json!([]);
            (cluster.call("PUT", path, Some(&pod)).status == 200).then_some(())
        });
        wait_for("the pod is gone", || cluster.is_gone(path).then_some(()));
    };

    let path = begin(&holding("evicted"));
    cluster.call("POST", &format!("{path}/eviction"), Some(&eviction("evicted"))).done();
    let pod = cluster.pod(&path, "disrupted", |pod| disrupted(pod) && terminated(pod));
    expect_recorded("pod-evicted", &end_of(&pod));
    release(&path);

    for (name, value) in [("low", -1), ("high", 1000)] {
        let class =
            json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"});
        cluster.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class);
    }
    // A resource that the node has once, so that the two pods cannot both run, and others are not in their way.
    let mut node = cluster.get("/api/v1/nodes/node-1").done();
    node["status"]["capacity"]["greenroom.test/seat"] = json!("1");
    cluster.call("PUT", "/api/v1/nodes/node-1/status", Some(&node)).done();
    let seated = |name: &str, class: &str| {
        let mut pod = holding(name);
        pod["spec"]["priorityClassName"] = json!(class);
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"greenroom.test/seat": "1"}});
        pod
    };
    let path = begin(&seated("preempted", "low"));
    cluster.create(&pods, &seated("rival", "high"));
    let pod = cluster.pod(&path, "disrupted", |pod| disrupted(pod) && terminated(pod));
    expect_recorded("pod-preempted", &end_of(&pod));
    release(&path);
    let rival = format!("{pods}/rival");
    cluster.pod(&rival, "ready", is_ready);
    cluster.call("DELETE", &rival, None).done();
    release(&rival);
}

/// A cluster of its own, because a lost node loses the pods of other tests, too.
#[test]
fn a_lost_node_keeps_its_pod_listed_until_it_is_back() {
    let Some(cluster) = Cluster::of_its_own("lost") else { return };
    let mut neighbour = cluster.neighbour();
    let pods = format!("{}/pods", cluster.namespace("lost"));
    let path = format!("{pods}/linux-1");
    let mut pod = sleeper("linux-1");
    let unreachable = json!({
        "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1,
    });
    pod["spec"]["tolerations"] = json!([unreachable]);
    cluster.create(&pods, &pod);
    cluster.pod(&path, "ready", is_ready);
    cluster.on_node("touch /mnt/own/stopped/kubelet; kill -9 $(cat /mnt/own/pids/kubelet)");

    // The node counts as lost 50 s after its last sign of life. Its pod is deleted then, and still listed as running.
    let lost = cluster.pod(&path, "deleted", |pod| pod["metadata"]["deletionTimestamp"].is_string());
    expect_recorded("pod-node-lost", &end_of(&lost));
    cluster.on_node("rm /mnt/own/stopped/kubelet");
    wait_for("the pod is gone once its node is back", || cluster.is_gone(&path).then_some(()));
    neighbour.kill().and_then(|()| neighbour.wait()).expect("it ends");
}
