//! The API's answers to each call that a provider makes, and to those that it must not survive unnoticed.

use serde_json::{Value, json};

use crate::api::{Caller, has_condition, is_ready};
use crate::cluster::{cluster, wait_for};
use crate::manifests::{busybox, deletion, eviction, sleeper};
use crate::recording::expect_answer;

#[test]
fn calls_for_one_pod() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("calls"));
    let path = format!("{pods}/linux-1");
    let manifest = sleeper("linux-1");

    let post = |path: &str, body: &Value| cluster.call("POST", path, Some(body));
    expect_answer("get-missing", "GET pod", &cluster.get(&path));
    expect_answer("create", "POST pods", &post(&pods, &manifest));
    expect_answer("create-again", "POST pods, of a name that exists", &post(&pods, &manifest));
    let pod = cluster.pod(&path, "ready", is_ready);
    expect_answer("get-ready", "GET pod", &cluster.get(&path));

    // A deletion of another pod with that name hits nothing.
    let other = deletion(&json!("0f3a6c1e-8f6d-4a3e-9a53-1d8c6e5b7a90"));
    expect_answer(
        "delete-another-uid",
        "DELETE pod, with another's uid",
        &cluster.call("DELETE", &path, Some(&other)),
    );
    assert_eq!(cluster.get(&path).done()["metadata"]["deletionTimestamp"], Value::Null);

    let options = deletion(&pod["metadata"]["uid"]);
    let deleted = cluster.call("DELETE", &path, Some(&options));
    expect_answer("delete", "DELETE pod, with its uid and a grace period of 1 s", &deleted);
    wait_for("the pod is gone", || cluster.is_gone(&path).then_some(()));
    expect_answer("delete-gone", "DELETE pod", &cluster.call("DELETE", &path, Some(&options)));

    // A pod without a node has nothing to end, so that it is gone immediately.
    let mut waiting = sleeper("linux-2");
    waiting["spec"]["nodeSelector"] = json!({"pool": "none"});
    let options = deletion(&cluster.create(&pods, &waiting)["metadata"]["uid"]);
    let path = format!("{pods}/linux-2");
    cluster.pod(&path, "looked at by the scheduler", |pod| has_condition(pod, "PodScheduled", "False"));
    let deleted = cluster.call("DELETE", &path, Some(&options));
    expect_answer("delete-unscheduled", "DELETE pod, which has no node", &deleted);
    assert!(cluster.is_gone(&path));
}

#[test]
fn a_dry_run_is_admitted_and_leaves_no_trace() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("dry"));
    let tried = cluster.call("POST", &format!("{pods}?dryRun=All"), Some(&sleeper("linux-1")));
    expect_answer("create-dry-run", "POST pods?dryRun=All", &tried);
    assert!(cluster.is_gone(&format!("{pods}/linux-1")));
}

#[test]
fn pods_that_cannot_be() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("invalid"));
    let post = |body: &Value| cluster.call("POST", &pods, Some(body));

    let nowhere = cluster.call("POST", "/api/v1/namespaces/nowhere/pods", Some(&sleeper("linux-1")));
    expect_answer("create-missing-namespace", "POST pods, in a namespace that does not exist", &nowhere);
    expect_answer("create-invalid-name", "POST pods, with an invalid name", &post(&sleeper("Linux_1")));
    let mut pod = sleeper("linux-1");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}});
    expect_answer("create-invalid-limit", "POST pods, with a request above its limit", &post(&pod));
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"memory": "lots"}});
    expect_answer("create-invalid-quantity", "POST pods, with an unreadable quantity", &post(&pod));
    expect_answer("create-invalid-json", "POST pods, with a string for a body", &post(&json!("no pod")));
}

#[test]
fn pods_that_admission_refuses() {
    let Some(cluster) = cluster() else { return };
    let post = |namespace: &str, body: &Value| cluster.call("POST", &format!("{namespace}/pods"), Some(body));

    let namespace = cluster.namespace("quota");
    let quota = json!({"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}});
    cluster.create(&format!("{namespace}/resourcequotas"), &quota);
    wait_for("the quota is counted", || {
        let quota = cluster.get(&format!("{namespace}/resourcequotas/pods")).body;
        quota["status"]["used"]["pods"].is_string().then_some(())
    });
    post(&namespace, &sleeper("linux-1")).done();
    // A dry run counts as well.
    let dry = cluster.call("POST", &format!("{namespace}/pods?dryRun=All"), Some(&sleeper("linux-2")));
    expect_answer("create-over-quota", "POST pods, one more than the quota", &dry);

    let namespace = cluster.namespace("limits");
    let limits = json!({"metadata": {"name": "small"}, "spec": {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}});
    cluster.create(&format!("{namespace}/limitranges"), &limits);
    let mut pod = sleeper("linux-1");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "1Gi"}});
    let refused = wait_for("the limit is known to admission", || {
        let answer = cluster.call("POST", &format!("{namespace}/pods?dryRun=All"), Some(&pod));
        (answer.status != 201).then_some(answer)
    });
    expect_answer(
        "create-over-limit-range",
        "POST pods, with more memory than a LimitRange allows",
        &refused,
    );

    let namespace =
        cluster.namespace_with("guarded", &json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    expect_answer(
        "create-pod-security",
        "POST pods, against PodSecurity",
        &post(&namespace, &sleeper("linux-1")),
    );

    let namespace = cluster.namespace("missing");
    let mut pod = sleeper("linux-1");
    pod["spec"]["serviceAccountName"] = json!("missing");
    expect_answer(
        "create-missing-account",
        "POST pods, for a service account that does not exist",
        &post(&namespace, &pod),
    );
    let mut pod = sleeper("linux-1");
    pod["spec"]["priorityClassName"] = json!("urgent");
    expect_answer(
        "create-missing-priority",
        "POST pods, with a priority class that does not exist",
        &post(&namespace, &pod),
    );

    let namespace = cluster.namespace("closing");
    let mut held = sleeper("held");
    held["metadata"]["finalizers"] = json!(["greenroom.test/held"]);
    post(&namespace, &held).done();
    cluster.call("DELETE", &namespace, None).done();
    let refused = post(&namespace, &sleeper("linux-1"));
    expect_answer("create-closing-namespace", "POST pods, in a namespace that is being deleted", &refused);
    let path = format!("{namespace}/pods/held");
    wait_for("only the finalizer holds the pod", || {
        cluster.get(&path).body["metadata"]["deletionTimestamp"].as_str().map(drop)
    });
    let mut held = cluster.get(&path).done();
    held["metadata"]["finalizers"] = json!([]);
    cluster.call("PUT", &path, Some(&held)).done();
    wait_for("the namespace is gone", || cluster.is_gone(&namespace).then_some(()));
}

#[test]
fn callers_without_rights() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("rights");
    let path = format!("{namespace}/pods/linux-1");
    let reader = json!({"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/rights";
    cluster.create(&format!("{namespace}/serviceaccounts"), &json!({"metadata": {"name": "reader"}}));
    cluster.create(&format!("{roles}/roles"), &reader);
    let binding = json!({
        "metadata": {"name": "reader"}, "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "rights"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
    });
    cluster.create(&format!("{roles}/rolebindings"), &binding);
    let token = cluster.create(&format!("{namespace}/serviceaccounts/reader/token"), &json!({"spec": {}}));
    let reader = Caller::Token(token["status"]["token"].as_str().expect("a token").to_owned());

    let stranger = Caller::Token("made up".into());
    expect_answer(
        "get-unknown-token",
        "GET pod, with an unknown token",
        &cluster.call_as(&stranger, "GET", &path, None),
    );
    wait_for("the role is in force", || {
        (cluster.call_as(&reader, "GET", &path, None).status == 404).then_some(())
    });
    let pods = format!("{namespace}/pods");
    let denied = cluster.call_as(&reader, "POST", &pods, Some(&sleeper("linux-1")));
    expect_answer("create-without-right", "POST pods, without the verb", &denied);
    expect_answer(
        "list-without-right",
        "GET pods, without the verb",
        &cluster.call_as(&reader, "GET", &pods, None),
    );
    let denied = cluster.call_as(&reader, "GET", &format!("{path}/log"), None);
    expect_answer("log-without-right", "GET log, without the verb", &denied);
    let denied = cluster.call_as(&reader, "DELETE", &path, None);
    expect_answer("delete-without-right", "DELETE pod, without the verb", &denied);

    for (verb, name) in [("get", "review-allowed"), ("create", "review-denied")] {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": "rights", "verb": verb, "resource": "pods"}},
        });
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = cluster.call_as(&reader, "POST", reviews, Some(&review));
        expect_answer(name, &format!("POST selfsubjectaccessreviews: may I {verb} pods?"), &answer);
    }
}

#[test]
fn lists_and_their_pages() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("lists"));
    for name in ["linux-1", "linux-2"] {
        let mut pod = sleeper(name);
        // No node has it: the pods stay as they are.
        pod["spec"]["nodeSelector"] = json!({"pool": "none"});
        cluster.create(&pods, &pod);
    }
    let label = "labelSelector=greenroom-pool%3Dlinux";
    let first = cluster.get(&format!("{pods}?{label}&limit=1"));
    expect_answer("list-first-page", "GET pods?labelSelector=…&limit=1", &first);
    let next = first.body["metadata"]["continue"].as_str().expect("a token").to_owned();
    let second = format!("{pods}?{label}&limit=1&continue={next}");
    expect_answer("list-last-page", "GET pods?labelSelector=…&limit=1&continue=TOKEN", &cluster.get(&second));
    let none = cluster.get(&format!("{pods}?labelSelector=greenroom-pool%3Dother"));
    expect_answer("list-empty", "GET pods, with a label that none has", &none);
    let wrong = cluster.get(&format!("{pods}?limit=1&continue=made-up"));
    expect_answer("list-invalid-token", "GET pods, with an invalid token", &wrong);

    // etcd forgets the version that the page belongs to, as it does every five minutes.
    let revision = cluster.create(&pods, &sleeper("linux-3"))["metadata"]["resourceVersion"].clone();
    let compact =
        format!("curl -sf -d '{{\"revision\": {revision}}}' http://127.0.0.1:2379/v3/kv/compaction");
    cluster.on_node(&compact);
    let expired = cluster.get(&second);
    expect_answer("list-expired", "GET pods, with a token of a version that is forgotten", &expired);
}

#[test]
fn logs() {
    let Some(cluster) = cluster() else { return };
    let pods = format!("{}/pods", cluster.namespace("logs"));
    expect_answer("log-missing", "GET log", &cluster.get(&format!("{pods}/linux-1/log")));
    let mut waiting = sleeper("linux-1");
    waiting["spec"]["nodeSelector"] = json!({"pool": "none"});
    cluster.create(&pods, &waiting);
    expect_answer(
        "log-unscheduled",
        "GET log of a pod without a node",
        &cluster.get(&format!("{pods}/linux-1/log")),
    );
    let mut waiting = sleeper("linux-3");
    waiting["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    waiting["spec"]["containers"][0]["image"] = json!("greenroom.test/absent:1");
    cluster.create(&pods, &waiting);
    let path = format!("{pods}/linux-3");
    cluster.pod(&path, "without an image", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    expect_answer("log-waiting", "GET log of a container that waits", &cluster.get(&format!("{path}/log")));
    cluster.create(&pods, &busybox("linux-2", &["sh", "-c", "echo one; echo two; sleep 1000"]));
    let log = wait_for("a pod's output is in its log", || {
        let log = cluster.get(&format!("{pods}/linux-2/log?limitBytes=4096"));
        log.text.contains("two").then_some(log)
    });
    expect_answer("log", "GET log?limitBytes=4096", &log);
}

/// The events of a pod say what its status does not: who looked at it, and what happened before.
#[test]
fn events() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("events");
    let mut waiting = sleeper("linux-1");
    waiting["spec"]["nodeSelector"] = json!({"pool": "none"});
    cluster.create(&format!("{namespace}/pods"), &waiting);
    let path = format!("{namespace}/events?fieldSelector=involvedObject.name%3Dlinux-1");
    let answer = wait_for("the scheduler's event", || {
        let answer = cluster.get(&path);
        (answer.body["items"].as_array().is_some_and(|items| !items.is_empty())).then_some(answer)
    });
    let event = &answer.body["items"][0];
    let kept = ["type", "reason", "message", "reportingComponent", "count", "firstTimestamp", "eventTime"];
    let mut kept: serde_json::Map<String, Value> =
        kept.iter().map(|key| ((*key).to_owned(), crate::recording::masked(key, &event[key]))).collect();
    kept.insert(
        "involvedObject".into(),
        json!({
            "kind": event["involvedObject"]["kind"], "name": event["involvedObject"]["name"],
            "uid": event["involvedObject"]["uid"].as_str().map(|_| "UID"),
        }),
    );
    let recorded = json!({"request": "GET events?fieldSelector=involvedObject.name=…", "status": answer.status, "item": kept});
    crate::recording::expect_recorded("events-unschedulable", &recorded);
}

#[test]
fn evictions() {
    let Some(cluster) = cluster() else { return };
    let namespace = cluster.namespace("evictions");
    let pods = format!("{namespace}/pods");
    let evict = |name: &str| cluster.call("POST", &format!("{pods}/{name}/eviction"), Some(&eviction(name)));
    let mut kept = sleeper("kept");
    kept["metadata"]["labels"]["app"] = json!("kept");
    for pod in [&kept, &sleeper("linux-1")] {
        let name = cluster.create(&pods, pod)["metadata"]["name"].as_str().expect("a name").to_owned();
        cluster.pod(&format!("{pods}/{name}"), "ready", is_ready);
    }
    let budget = json!({"metadata": {"name": "kept"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}});
    let budgets = "/apis/policy/v1/namespaces/evictions/poddisruptionbudgets";
    cluster.create(budgets, &budget);
    wait_for("the budget is counted", || {
        let budget = cluster.get(&format!("{budgets}/kept")).body;
        (budget["status"]["currentHealthy"] == 1).then_some(())
    });
    expect_answer("evict-over-budget", "POST eviction, against a PodDisruptionBudget", &evict("kept"));
    expect_answer("evict", "POST eviction", &evict("linux-1"));
    wait_for("the pod is gone", || cluster.is_gone(&format!("{pods}/linux-1")).then_some(()));
}
