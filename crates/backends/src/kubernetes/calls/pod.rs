//! The pod of a launch.

use std::fmt;
use std::time::Duration;

use greenroom_core::container::failure::short;
use greenroom_core::container::image::NEEDS;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::OwnerId;
use greenroom_core::text::hex;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::errors::FailedCall;
use super::ordered;
use super::pod_state::JOB;
use super::template::{self, TemplateError};
use crate::cloud::tags;
use crate::kubernetes::placement::{Placement, Toleration};
use crate::kubernetes::settings::{JobResources, PORT_FORWARD, Settings};

/// The annotation with the token of the launch that made a pod.
pub(super) const LAUNCH: &str = "greenroom-launch";
/// The annotation with the offering.
pub(super) const OFFERING: &str = "greenroom-offering";
/// The annotation with the way to its SSH server.
pub(super) const VIA: &str = "greenroom-via";
/// The first process of the container that jobs run in.
const ENTRY: &str = include_str!("entry.sh");
/// The time for which a pod stays on a node that is lost. Kubernetes' own default of 5 minutes would hide the loss for as long.
const LOST_NODE_S: u64 = 30;
/// The shortest lifetime that makes sense, in seconds.
const SHORTEST_LIFE_S: u64 = 1;

/// The init container.
pub(super) const SERVER: &str = "greenroom-server";
/// The volume that the container of jobs reads; with an image's own sshd, it holds the host key.
pub(super) const VOLUME: &str = "greenroom";
/// The directory of the volume in both containers.
const DIR: &str = "/run/greenroom";
/// The program in its image.
pub(super) const SERVER_IN_IMAGE: &str = "/greenroom-server";
/// The resources of the init container. Requests are limits, so that it changes no pod's class of quality.
const SERVER_CPU: &str = "100m";
const SERVER_MEMORY: &str = "64Mi";
const SERVER_DISK: &str = "32Mi";

/// Everything that a launch call sends.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LaunchSpec {
    pub(super) name: String,
    /// The token in the form that pods show.
    pub(super) token: String,
    /// The offering's name, for messages about capacity.
    pub(super) offering: String,
    pub(super) pod: Value,
    /// The ConfigMap that owns the pod.
    pub(super) owner: Option<String>,
    /// True if a job ordered it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) ordered: bool,
}

impl fmt::Debug for LaunchSpec {
    /// Shows the name only: the pod's variables may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LaunchSpec {
    pub(super) fn new(
        settings: &Settings,
        request: &LaunchRequest,
        placement: &Placement,
    ) -> Result<Self, ProviderError> {
        let invalid = |wrong: TemplateError| ProviderError::new(ErrorClass::Invalid, wrong.to_string());
        let mut pod = match &settings.template {
            Some(path) => template::read(path).map_err(invalid)?,
            None => json!({}),
        };
        let token = shown_token(&request.tags.owner, &request.token);
        let mut own = own(settings, request, placement, &token);
        match (&request.order, &settings.orders) {
            (Some(order), Some(orders)) => ordered::add(&mut own, order, orders, &pod),
            (Some(_), None) => {
                let why = "the pool no longer makes pods for jobs: `image_from_job` is off";
                return Err(ProviderError::new(ErrorClass::Order { by_job: false }, why));
            }
            (None, _) => {}
        }
        template::merge(&mut pod, own);
        if let Some(image) = ordered::unprivileged(&pod) {
            let why = format!(
                "image `{}` {NEEDS}, and the file of `pod` makes none: a pool that runs jobs in containers on machines can \
                 run this job",
                short(image)
            );
            return Err(ProviderError::new(ErrorClass::Order { by_job: true }, why));
        }
        Ok(Self {
            name: request.instance.to_string(),
            token,
            offering: placement.name.clone(),
            pod,
            owner: settings.owner.clone(),
            ordered: request.order.is_some(),
        })
    }

    /// The error of a launch that the API server refused. If a job ordered the pod, that says nothing about other pods; a
    /// policy of the cluster that denies it judges what the job named.
    pub(super) fn refusal(&self, failed: FailedCall) -> ProviderError {
        let by_job = failed.by_policy;
        let error = ProviderError::from(failed);
        if !self.ordered || !(by_job || *error.class() == ErrorClass::Invalid) {
            return error;
        }
        let why = format!("the cluster refuses the job's pod: {}", error.failure.message);
        ProviderError::new(ErrorClass::Order { by_job }, why)
    }
}

/// The form in which pods show a launch's token.
pub(super) fn shown_token(owner: &OwnerId, token: &str) -> String {
    hex(&tags::token_digest(owner, token)[..16])
}

/// Greenroom's own part of a pod, which is merged into the operator's.
fn own(settings: &Settings, request: &LaunchRequest, placement: &Placement, token: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.instance.as_str(),
            "labels": labels(request),
            "annotations": {
                LAUNCH: token,
                OFFERING: placement.name,
                VIA: settings.via,
                // A warm pod is lost cheaply, but a job is not: autoscalers keep its node until the pod is deleted.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "shareProcessNamespace": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            "tolerations": tolerations(placement),
            "containers": [container(settings, request, placement)],
            "volumes": [{ "name": VOLUME, "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }],
        },
    });
    let spec = &mut pod["spec"];
    if let Some(image) = &settings.server_image {
        let mut bringing = server_container(image);
        if let Some(policy) = settings.pull_policy {
            bringing["imagePullPolicy"] = json!(policy);
        }
        spec["initContainers"] = json!([bringing]);
        spec["volumes"] = json!([server_volume()]);
    }
    if let Some(lifetime) = request.lifetime {
        spec["activeDeadlineSeconds"] = json!(seconds(lifetime));
    }
    if !settings.pull_secrets.is_empty() {
        spec["imagePullSecrets"] = settings.pull_secrets.iter().map(|name| json!({ "name": name })).collect();
    }
    for (key, value) in [
        ("serviceAccountName", &settings.service_account),
        ("runtimeClassName", &placement.runtime_class),
        ("priorityClassName", &placement.priority_class),
    ] {
        if let Some(value) = value {
            spec[key] = json!(value);
        }
    }
    let mut selector: Vec<(&str, &str)> =
        placement.node_selector.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    selector.extend(placement.architecture.as_deref().map(|arch| ("kubernetes.io/arch", arch)));
    for (key, value) in selector {
        spec["nodeSelector"][key] = json!(value);
    }
    pod
}

fn labels(request: &LaunchRequest) -> Value {
    tags::written(&request.tags).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

fn tolerations(placement: &Placement) -> Value {
    let lost = ["not-ready", "unreachable"].map(|taint| {
        json!({
            "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        })
    });
    let chosen = placement.tolerations.iter().map(|Toleration { key, value, effect }| {
        let mut one = json!({ "key": key, "operator": if value.is_some() { "Equal" } else { "Exists" } });
        if let Some(value) = value {
            one["value"] = json!(value);
        }
        if let Some(effect) = effect {
            one["effect"] = json!(effect);
        }
        one
    });
    chosen.chain(lost).collect()
}

fn container(settings: &Settings, request: &LaunchRequest, placement: &Placement) -> Value {
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    // A port-forward arrives on the pod's own loopback interface: then nothing else can connect.
    let address = if settings.via == PORT_FORWARD {
        variable("GREENROOM_LISTEN", "127.0.0.1")
    } else {
        json!({ "name": "GREENROOM_LISTEN", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } })
    };
    let mut container = json!({
        "name": JOB,
        "image": placement.image,
        "command": ["/bin/sh", "-c", ENTRY],
        // What entry.sh says is then part of the container's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            variable("GREENROOM_AUTHORIZED_KEY", request.keys.authorized_key.trim()),
            variable("GREENROOM_USER", &settings.common.user),
            variable("GREENROOM_PORT", &settings.common.ssh_port.to_string()),
            address,
        ],
        "volumeMounts": [{ "name": VOLUME, "mountPath": DIR }],
    });
    if settings.server_image.is_some() {
        container["command"] = json!([server_program()]);
        container["volumeMounts"][0]["readOnly"] = json!(true);
        if let (Some(lifetime), Some(variables)) = (request.lifetime, container["env"].as_array_mut()) {
            variables.push(variable("GREENROOM_LIFETIME", &seconds(lifetime).to_string()));
        }
    }
    if let Some(policy) = settings.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    let JobResources { cpu, cpu_limit, memory, disk } = &settings.resources;
    for (kind, resource, amount) in [
        ("requests", "cpu", cpu),
        ("limits", "cpu", cpu_limit),
        ("requests", "memory", memory),
        ("limits", "memory", memory),
        ("requests", "ephemeral-storage", disk),
        ("limits", "ephemeral-storage", disk),
    ] {
        if let Some(amount) = amount {
            container["resources"][kind][resource] = json!(amount);
        }
    }
    container
}

/// The program in the pod.
fn server_program() -> String {
    format!("{DIR}/{SERVER}")
}

/// The init container, which copies the program from its image into the volume. It needs no right at all.
fn server_container(image: &str) -> Value {
    let amounts = json!({ "cpu": SERVER_CPU, "memory": SERVER_MEMORY, "ephemeral-storage": SERVER_DISK });
    json!({
        "name": SERVER,
        "image": image,
        "command": [SERVER_IN_IMAGE, "install", server_program()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": { "requests": amounts, "limits": amounts },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [{ "name": VOLUME, "mountPath": DIR }],
    })
}

fn server_volume() -> Value {
    json!({ "name": VOLUME, "emptyDir": { "sizeLimit": SERVER_DISK } })
}

fn seconds(lifetime: Duration) -> u64 {
    lifetime.as_secs().clamp(SHORTEST_LIFE_S, i64::MAX.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::cloud::user_data::tests::launch_request;

    fn request() -> LaunchRequest {
        let lifetime = Some(Duration::from_hours(2));
        LaunchRequest { lifetime, ..launch_request("linux", "0123456789abcdef", 7) }
    }

    fn spec(text: &str) -> Result<LaunchSpec, ProviderError> {
        let table = format!("namespace = \"ci\"\nimage = \"ci:12\"\n{text}").parse().unwrap();
        let settings = Settings::read(&PoolName::new("linux"), &table).unwrap();
        LaunchSpec::new(&settings, &request(), &settings.placements[0])
    }

    #[test]
    fn a_pod_has_what_is_fixed_and_nothing_secret() {
        let spec = spec(
            "memory = \"4Gi\"\ncpu = \"2\"\nnode_selector = { pool = \"ci\" }\narchitecture = \"arm64\"\n\
                         tolerations = \"spot=true:NoSchedule\"\nuser = \"ci\"",
        )
        .unwrap();
        let pod: Pod = serde_json::from_value(spec.pod.clone()).unwrap();
        let inner = pod.spec.unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("linux-c0ffee-7"));
        assert_eq!(pod.metadata.labels.unwrap().len(), 4);
        assert_eq!(inner.restart_policy.as_deref(), Some("Never"));
        assert_eq!(
            (inner.automount_service_account_token, inner.enable_service_links),
            (Some(false), Some(false))
        );
        assert_eq!(
            (inner.active_deadline_seconds, inner.termination_grace_period_seconds),
            (Some(7_200), Some(1))
        );
        assert_eq!(inner.tolerations.unwrap().len(), 3);
        assert_eq!(inner.node_selector.unwrap().len(), 2);
        let resources = inner.containers[0].resources.clone().unwrap();
        assert_eq!((resources.requests.unwrap().len(), resources.limits.unwrap().len()), (2, 1));
        assert!(!spec.pod.to_string().contains("secret"), "the private key stays here");
        assert_eq!(spec.token.len(), 32);
    }

    #[test]
    fn the_server_listens_where_the_way_arrives() {
        for (table, way) in
            [("", PORT_FORWARD), ("via = \"port-forward\"", PORT_FORWARD), ("via = \"address\"", "address")]
        {
            let pod: Pod = serde_json::from_value(spec(table).unwrap().pod).unwrap();
            assert_eq!(pod.metadata.annotations.unwrap()[VIA], way);
            let variables = pod.spec.unwrap().containers.remove(0).env.unwrap();
            let listens = variables.into_iter().find(|one| one.name == "GREENROOM_LISTEN").unwrap();
            let loopback = (way == PORT_FORWARD).then(|| "127.0.0.1".to_owned());
            assert_eq!((listens.value_from.is_none(), listens.value), (loopback.is_some(), loopback));
        }
    }

    #[test]
    fn with_an_image_of_the_server_an_init_container_brings_it() {
        let spec =
            spec("server_image = \"r/server:1\"\nimage_pull_policy = \"Always\"\nmemory = \"4Gi\"").unwrap();
        let inner = serde_json::from_value::<Pod>(spec.pod).unwrap().spec.unwrap();
        let [bringing] = inner.init_containers.as_deref().unwrap() else { panic!("one init container") };
        assert_eq!(
            (bringing.name.as_str(), bringing.image.as_deref()),
            ("greenroom-server", Some("r/server:1"))
        );
        assert_eq!(bringing.image_pull_policy.as_deref(), Some("Always"));
        let job = &inner.containers[0];
        let command = bringing.command.clone().unwrap();
        assert_eq!(job.command.clone().unwrap(), command[2..], "it runs what was copied");
        let resources = bringing.resources.clone().unwrap();
        assert_eq!(resources.requests, resources.limits);
        assert_eq!(resources.requests.unwrap().len(), 3);
        let context = bringing.security_context.clone().unwrap();
        assert_eq!(
            (context.allow_privilege_escalation, context.capabilities.unwrap().drop),
            (Some(false), Some(vec!["ALL".to_owned()]))
        );
        let [mount] = job.volume_mounts.as_deref().unwrap() else { panic!("one mount") };
        assert_eq!(mount.read_only, Some(true));
        let lifetime = job.env.clone().unwrap().pop().unwrap();
        assert_eq!((lifetime.name.as_str(), lifetime.value.as_deref()), ("GREENROOM_LIFETIME", Some("7200")));
        let [volume] = inner.volumes.as_deref().unwrap() else { panic!("one volume") };
        assert_eq!(
            volume.empty_dir.clone().unwrap().medium,
            None,
            "programs on tmpfs would use the job's memory"
        );
    }

    #[test]
    fn the_entry_is_a_script_for_any_shell() {
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.arg("-n").stdin(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), ENTRY.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success());
    }

    #[test]
    fn the_operators_pod_is_merged_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod.yaml");
        let launch = |text: &str| {
            fs_err::write(&path, text).unwrap();
            spec(&format!("pod = '{}'", path.display()))
        };
        let merged = launch(
            "spec: { containers: [{ name: job, env: [{ name: A, value: b }] }, { name: side, image: s }] }",
        )
        .unwrap();
        let containers = merged.pod["spec"]["containers"].as_array().unwrap();
        assert_eq!((containers.len(), containers[0]["env"].as_array().unwrap().len()), (2, 5));
        let refused = launch("spec: { hostNetwork: true }").unwrap_err();
        assert_eq!(refused.class(), &ErrorClass::Invalid);
        assert!(
            refused.to_string().contains("sets `spec.hostNetwork`, which Greenroom does not allow"),
            "{refused}"
        );
    }
}
