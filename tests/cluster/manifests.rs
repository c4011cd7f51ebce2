//! The objects that tests create.

use serde_json::{Value, json};

/// A pod of one container, as Greenroom makes them in all that does not depend on the pool.
fn pod(name: &str, container: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"greenroom-pool": "linux"}},
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1, "containers": [container],
        },
    })
}

/// A pod that waits.
pub fn sleeper(name: &str) -> Value {
    busybox(name, &["sleep", "1000"])
}

/// A pod that runs a command. Busybox as process 1 ignores SIGTERM.
pub fn busybox(name: &str, command: &[&str]) -> Value {
    pod(name, &json!({"name": "main", "image": "greenroom.test/busybox:1", "command": command}))
}

/// A pod with an SSH server for one key and one user.
pub fn machine(name: &str, key: &str, user: &str) -> Value {
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let variables = [variable("GREENROOM_AUTHORIZED_KEY", key), variable("GREENROOM_USER", user)];
    let container = json!({"name": "main", "image": "greenroom.test/machine:1", "env": variables});
    let mut machine = pod(name, &container);
    machine["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 22}, "periodSeconds": 1});
    machine
}

/// The options of a deletion of exactly that pod.
pub fn deletion(uid: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1,
        "preconditions": {"uid": uid}, "propagationPolicy": "Background",
    })
}

pub fn eviction(name: &str) -> Value {
    json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})
}
