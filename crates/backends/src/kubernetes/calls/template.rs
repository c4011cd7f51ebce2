//! The operator's pod, and how Greenroom's own is merged into it.

use std::io;
use std::path::{Path, PathBuf};

use greenroom_core::container::ordering::SERVICE;
use serde_json::{Map, Value};

use super::pod::{SERVER, VOLUME};
use super::pod_state::JOB;
use crate::cloud::tags;

/// Lists whose entries are merged by a key; other lists are replaced.
const MERGED: [(&str, &str); 9] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("imagePullSecrets", "name"),
    ("ownerReferences", "uid"),
    ("ports", "containerPort"),
    ("hostAliases", "ip"),
];

/// The fields that Greenroom sets, and those that would open the node to jobs.
const REFUSED: [&str; 20] = [
    "metadata.name",
    "metadata.generateName",
    "metadata.namespace",
    "metadata.ownerReferences",
    "metadata.finalizers",
    "spec.activeDeadlineSeconds",
    "spec.automountServiceAccountToken",
    "spec.enableServiceLinks",
    "spec.hostIPC",
    "spec.hostNetwork",
    "spec.hostPID",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.securityContext.seccompProfile",
    "spec.serviceAccount",
    "spec.shareProcessNamespace",
    "spec.terminationGracePeriodSeconds",
    "spec.ephemeralContainers",
    "spec.schedulingGates",
    "status",
];

/// The refused fields of the container of jobs.
const REFUSED_IN_JOB: [&str; 10] = [
    "args",
    "command",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "securityContext.seccompProfile",
    "startupProbe",
    "terminationMessagePolicy",
    "tty",
];

/// Names in lists of a pod that are Greenroom's.
const RESERVED: [(&str, &str); 4] =
    [("containers", SERVER), ("initContainers", SERVER), ("initContainers", JOB), ("volumes", VOLUME)];

/// The error of an operator's pod that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("the pod cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("the pod in `{}` {defect}", .path.display())]
    Defective {
        path: PathBuf,
        #[source]
        defect: Box<TemplateDefect>,
    },
}

/// A defect in the content of an operator's pod. Its sentence has no subject: [`TemplateError`] puts the file before it.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateDefect {
    #[error("is not valid YAML: {0}")]
    Syntax(#[source] serde_saphyr::Error),
    #[error("is not a table of YAML")]
    NoTable,
    #[error("has another `{key}` than {expected}")]
    OtherObject { key: &'static str, expected: &'static str },
    #[error("sets `{path}`, which Greenroom does not allow: remove it")]
    Refused { path: &'static str },
    #[error(
        "sets `metadata.{kind}.{name}`, whose prefix `{}` is reserved for Greenroom: remove it",
        tags::PREFIX
    )]
    ReservedPrefix { kind: &'static str, name: String },
    #[error("has `{name}` in `spec.{list}`, a name that is reserved for Greenroom: rename it")]
    ReservedName { list: &'static str, name: &'static str },
    #[error("has `{name}` in `spec.{list}`, a name that is reserved for services of jobs: rename it")]
    ServiceName { list: &'static str, name: String },
    #[error("sets `{path}` of the container `{}`, which Greenroom does not allow: remove it", JOB)]
    RefusedInJob { path: &'static str },
    #[error("sets `{name}` in `env` of the container `{}`, which is reserved for Greenroom", JOB)]
    ReservedVariable { name: String },
}

/// Reads an operator's pod, and checks it.
pub(super) fn read(path: &Path) -> Result<Value, TemplateError> {
    let text = fs_err::read_to_string(path).map_err(TemplateError::Unreadable)?;
    let pod = parsed(&text).and_then(|pod| check(&pod).map(|()| pod));
    pod.map_err(|defect| TemplateError::Defective { path: path.to_owned(), defect: Box::new(defect) })
}

fn parsed(text: &str) -> Result<Value, TemplateDefect> {
    let pod: Value = serde_saphyr::from_str(text).map_err(TemplateDefect::Syntax)?;
    if pod.is_object() { Ok(pod) } else { Err(TemplateDefect::NoTable) }
}

fn check(pod: &Value) -> Result<(), TemplateDefect> {
    for (key, expected) in [("apiVersion", "v1"), ("kind", "Pod")] {
        if pod.get(key).is_some_and(|value| value != expected) {
            return Err(TemplateDefect::OtherObject { key, expected });
        }
    }
    if let Some(path) = REFUSED.into_iter().find(|path| has(pod, path)) {
        return Err(TemplateDefect::Refused { path });
    }
    for kind in ["labels", "annotations"] {
        let mut names = pod["metadata"][kind].as_object().into_iter().flat_map(Map::keys);
        if let Some(name) = names.find(|name| name.starts_with(tags::PREFIX)) {
            return Err(TemplateDefect::ReservedPrefix { kind, name: name.clone() });
        }
    }
    for (list, name) in RESERVED {
        if names_in(&pod["spec"][list]).any(|known| known == name) {
            return Err(TemplateDefect::ReservedName { list, name });
        }
    }
    for list in ["containers", "initContainers", "volumes"] {
        if let Some(name) = names_in(&pod["spec"][list]).find(|name| name.starts_with(SERVICE)) {
            return Err(TemplateDefect::ServiceName { list, name: name.to_owned() });
        }
    }
    let containers = pod["spec"]["containers"].as_array();
    for container in containers.into_iter().flatten().filter(|container| container["name"] == JOB) {
        if let Some(path) = REFUSED_IN_JOB.into_iter().find(|path| has(container, path)) {
            return Err(TemplateDefect::RefusedInJob { path });
        }
        if let Some(name) = names_in(&container["env"]).find(|name| name.starts_with("GREENROOM_")) {
            return Err(TemplateDefect::ReservedVariable { name: name.to_owned() });
        }
    }
    Ok(())
}

/// The names of the entries of a list, which may be missing.
fn names_in(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str())
}

fn has(value: &Value, path: &str) -> bool {
    path.split('.').try_fold(value, |inner, key| inner.get(key)).is_some()
}

/// Merges `ours` into the operator's pod; `ours` wins.
pub(super) fn merge(theirs: &mut Value, ours: Value) {
    merge_at("", theirs, ours);
}

fn merge_at(key: &str, theirs: &mut Value, ours: Value) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (name, value) in ours {
                match theirs.get_mut(&name) {
                    Some(known) => merge_at(&name, known, value),
                    None => drop(theirs.insert(name, value)),
                }
            }
        }
        // Several may have one key.
        (Value::Array(theirs), Value::Array(ours)) if key == "tolerations" => {
            theirs.retain(|known| ours.iter().all(|entry| entry["key"] != known["key"]));
            theirs.extend(ours);
        }
        (Value::Array(theirs), Value::Array(ours)) if merge_key(key).is_some() => {
            let by = merge_key(key).unwrap_or_default();
            for entry in ours {
                match theirs.iter_mut().find(|known| known[by] == entry[by]) {
                    Some(known) => merge_at("", known, entry),
                    None => theirs.push(entry),
                }
            }
        }
        (theirs, ours) => *theirs = ours,
    }
}

fn merge_key(list: &str) -> Option<&'static str> {
    MERGED.iter().find(|(name, _)| *name == list).map(|(_, by)| *by)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_merged_by_name_and_ours_wins() {
        let mut pod = parsed(
            "metadata: { labels: { team: ci } }\n\
             spec:\n  containers:\n  - name: job\n    env: [{ name: A, value: '1' }]\n    resources: { limits: { gpu: 1, memory: 1Gi } }\n  \
             - name: proxy\n    image: proxy:1\n  dnsPolicy: None\n  volumes: [{ name: cache, emptyDir: {} }]\n",
        )
        .unwrap();
        merge(
            &mut pod,
            json!({
                "metadata": { "labels": { "greenroom-pool": "linux" } },
                "spec": {
                    "containers": [{ "name": "job", "image": "ci:12", "env": [{ "name": "B", "value": "2" }],
                                     "resources": { "limits": { "memory": "4Gi" } } }],
                    "volumes": [{ "name": "greenroom", "emptyDir": {} }],
                    "restartPolicy": "Never",
                },
            }),
        );
        assert_eq!(
            pod,
            json!({
                "metadata": { "labels": { "team": "ci", "greenroom-pool": "linux" } },
                "spec": {
                    "containers": [
                        { "name": "job", "image": "ci:12", "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                          "resources": { "limits": { "gpu": 1, "memory": "4Gi" } } },
                        { "name": "proxy", "image": "proxy:1" },
                    ],
                    "dnsPolicy": "None",
                    "volumes": [{ "name": "cache", "emptyDir": {} }, { "name": "greenroom", "emptyDir": {} }],
                    "restartPolicy": "Never",
                },
            })
        );
    }

    #[test]
    fn what_may_not_be_set_is_refused_by_name() {
        for path in REFUSED {
            let of = |inner: Value, key: &str| json!({ key: inner });
            let pod = path.rsplit('.').fold(json!(true), of);
            let wrong = check(&pod).unwrap_err().to_string();
            assert_eq!(wrong, format!("sets `{path}`, which Greenroom does not allow: remove it"));
        }
        for path in REFUSED_IN_JOB {
            let of = |inner: Value, key: &str| json!({ key: inner });
            let mut container = path.rsplit('.').fold(json!(true), of);
            container["name"] = json!("job");
            let wrong = check(&json!({ "spec": { "containers": [container] } })).unwrap_err().to_string();
            assert!(wrong.starts_with(&format!("sets `{path}` of the container `job`")), "{wrong}");
        }
        for (list, name) in RESERVED {
            let wrong = check(&json!({ "spec": { list: [{ "name": name }] } })).unwrap_err().to_string();
            assert!(
                wrong.starts_with(&format!("has `{name}` in `spec.{list}`, a name that is reserved")),
                "{wrong}"
            );
        }
        for (text, expected) in [
            ("kind: Deployment", "has another `kind` than Pod"),
            (
                "metadata: { labels: { greenroom-owner: x } }",
                "sets `metadata.labels.greenroom-owner`, whose prefix",
            ),
            (
                "metadata: { annotations: { greenroom-launch: x } }",
                "sets `metadata.annotations.greenroom-launch`",
            ),
            (
                "spec: { initContainers: [{ name: svc-db, image: i }] }",
                "has `svc-db` in `spec.initContainers`, a name that is reserved for services of jobs",
            ),
            (
                "spec: { containers: [{ name: job, env: [{ name: GREENROOM_USER }] }] }",
                "sets `GREENROOM_USER` in `env`",
            ),
        ] {
            let wrong = check(&parsed(text).unwrap()).unwrap_err().to_string();
            assert!(wrong.starts_with(expected), "{text}: {wrong}");
        }
        let good = "apiVersion: v1\nkind: Pod\nspec: { containers: [{ name: side, command: [a] }] }";
        check(&parsed(good).unwrap()).unwrap();
        assert!(parsed("- a").unwrap_err().to_string().contains("is not a table"));
        assert!(parsed("a: [").unwrap_err().to_string().contains("is not valid YAML"));
    }
}
