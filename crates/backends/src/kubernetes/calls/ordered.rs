//! The pod of a job's order: its image in the container `job`, and its services as sidecars.

use greenroom_core::container::image::runs_docker;
use greenroom_core::container::ordering::SERVICE;
use greenroom_core::container::settings::PullPolicy;
use greenroom_core::container::spec::starts_nothing;
use greenroom_core::order::{LaunchOrder, OrderService};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::pod_state::{JOB, statuses};
use crate::kubernetes::orders::Orders;

/// The annotation with the names of what a job ordered.
pub(super) const ORDER: &str = "greenroom-order";
/// The prefix of the names of volumes for a job's files.
const DIRECTORY: &str = "svc-dir-";
/// All containers of a pod share it.
const LOOPBACK: &str = "127.0.0.1";
/// The number of probes, one a second, that a service with a port may take: until `launch_timeout` at most.
const PROBES: u32 = 3600;

/// The content of the annotation.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OrderedNames {
    image: String,
    /// The services' names in messages, by the numbers of their containers.
    services: Vec<String>,
}

/// Changes Greenroom's own part of a pod to what a job ordered. `theirs`: the operator's part, which it is merged into.
pub(super) fn add(pod: &mut Value, order: &LaunchOrder, orders: &Orders, theirs: &Value) {
    let names = order.services.iter().map(|service| service.aliases.first().unwrap_or(&service.name).clone());
    let names = OrderedNames { image: order.image.clone(), services: names.collect() };
    pod["metadata"]["annotations"][ORDER] = json!(json!(names).to_string());
    let empty = Value::Null;
    let mut containers = theirs["spec"]["containers"].as_array().into_iter().flatten();
    let operators = containers.find(|one| one["name"] == JOB).unwrap_or(&empty);
    let (volumes, mounts) = directories(&order.dirs, operators);
    let job = &mut pod["spec"]["containers"][0];
    if !order.of_offering {
        job["image"] = json!(order.image);
    }
    if let Some(policy) = order.pull_policy {
        job["imagePullPolicy"] = json!(policy_name(policy));
    }
    extend(&mut job["env"], vec![json!({ "name": "GREENROOM_KEEP_USER", "value": "yes" })]);
    extend(&mut job["volumeMounts"], mounts.clone());
    extend(&mut pod["spec"]["volumes"], volumes);
    let default = job_policy(pod);
    let sidecars = order.services.iter().map(|service| {
        let mut sidecar = sidecar(service, orders, &mounts);
        if sidecar["imagePullPolicy"].is_null() {
            set(&mut sidecar, "imagePullPolicy", default.as_deref());
        }
        if let Some(context) = operators.get("securityContext") {
            sidecar["securityContext"] = context.clone();
        }
        sidecar
    });
    let sidecars = sidecars.collect();
    extend(&mut pod["spec"]["initContainers"], sidecars);
    let aliases: Vec<&String> = order.services.iter().flat_map(|service| &service.aliases).collect();
    if !aliases.is_empty() {
        let known = theirs["spec"]["hostAliases"].as_array().into_iter().flatten();
        let known = known.filter(|one| one["ip"] == LOOPBACK).filter_map(|one| one["hostnames"].as_array());
        let names: Vec<Value> =
            known.flatten().cloned().chain(aliases.into_iter().map(|one| json!(one))).collect();
        pod["spec"]["hostAliases"] = json!([{ "ip": LOOPBACK, "hostnames": names }]);
    }
}

/// The image of a service that has to be privileged, and is not.
pub(super) fn unprivileged(pod: &Value) -> Option<&str> {
    let services = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    let services = services.filter(|one| one["name"].as_str().is_some_and(|name| name.starts_with(SERVICE)));
    let unprivileged = services.filter(|one| one["securityContext"]["privileged"] != true);
    unprivileged.filter_map(|one| one["image"].as_str()).find(|image| runs_docker(image))
}

/// The pool's own policy, which its server has, too.
fn job_policy(pod: &Value) -> Option<String> {
    pod["spec"]["initContainers"][0]["imagePullPolicy"].as_str().map(str::to_owned)
}

/// Volumes and mounts for the directories of a job's files: an image's user may not be able to create them. Those that the
/// operator's container mounts are left alone.
fn directories(dirs: &[String], operators: &Value) -> (Vec<Value>, Vec<Value>) {
    let mounted = |dir: &str| {
        let mounts = operators["volumeMounts"].as_array().into_iter().flatten();
        let mut paths = mounts.filter_map(|mount| mount["mountPath"].as_str());
        paths.any(|path| std::path::Path::new(dir).starts_with(path))
    };
    let own = dirs.iter().enumerate().filter(|(_, dir)| !mounted(dir));
    own.map(|(number, dir)| {
        let name = format!("{DIRECTORY}{number}");
        (json!({ "name": name, "emptyDir": {} }), json!({ "name": name, "mountPath": dir }))
    })
    .unzip()
}

fn sidecar(service: &OrderService, orders: &Orders, mounts: &[Value]) -> Value {
    let texts = |words: &[String]| words.iter().map(|word| json!(literal(word))).collect::<Vec<Value>>();
    let env = service.variables.iter().map(|(name, value)| json!({ "name": name, "value": literal(value) }));
    let mut sidecar = json!({
        "name": service.name,
        "image": service.image,
        "restartPolicy": "Always",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": env.collect::<Vec<Value>>(),
        "volumeMounts": mounts,
    });
    // One empty word stands for no entry point, which Kubernetes cannot express: the command takes its place.
    let entrypoint = service.entrypoint.as_deref().filter(|words| !starts_nothing(words));
    let command = service.command.as_deref();
    let (command, arguments) = match (entrypoint, &service.entrypoint) {
        (Some(entrypoint), _) => (Some(entrypoint), command),
        (None, Some(_)) => (command, None),
        (None, None) => (None, command),
    };
    for (key, words) in [("command", command), ("args", arguments)] {
        if let Some(words) = words {
            sidecar[key] = json!(texts(words));
        }
    }
    set(&mut sidecar, "imagePullPolicy", service.pull_policy.map(policy_name));
    for (kind, resource, amount) in [
        ("requests", "cpu", &orders.service_cpu),
        ("requests", "memory", &orders.service_memory),
        ("limits", "cpu", &orders.service_cpu_limit),
        ("limits", "memory", &orders.service_memory),
    ] {
        if let Some(amount) = amount {
            sidecar["resources"][kind][resource] = json!(amount);
        }
    }
    if let Some(port) = service.port {
        sidecar["startupProbe"] = json!({
            "tcpSocket": { "port": port }, "periodSeconds": 1, "failureThreshold": PROBES,
        });
    }
    sidecar
}

fn set(object: &mut Value, key: &str, value: Option<&str>) {
    if let Some(value) = value {
        object[key] = json!(value);
    }
}

/// Appends to a list, which may be missing.
fn extend(list: &mut Value, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    if list.is_null() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.extend(more);
    }
}

/// Kubernetes replaces `$(NAME)`; `$$` stands for one `$`.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn policy_name(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

/// Returns true if a pod was launched for a job.
pub(super) fn is_ordered(pod: &Pod) -> bool {
    text(pod).is_some()
}

/// The name of a service in messages, by its container.
pub(super) fn service_name(pod: &Pod, container: &str) -> Option<String> {
    let number: usize = container.strip_prefix(SERVICE)?.parse().ok()?;
    let mut names: OrderedNames = serde_json::from_str(text(pod)?).ok()?;
    (number < names.services.len()).then(|| names.services.swap_remove(number))
}

fn text(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(ORDER).map(String::as_str)
}

/// The services that the kubelet has started again, as a clause.
pub(super) fn restarts(pod: &Pod) -> Option<String> {
    let restarted = |status: &&ContainerStatus| status.restart_count > 0;
    let told = |status: &ContainerStatus| {
        let name = service_name(pod, &status.name)?;
        let times = match status.restart_count {
            1 => "once".to_owned(),
            more => format!("{more} times"),
        };
        Some(format!("service `{name}` was restarted {times}"))
    };
    let all: Vec<String> = statuses(pod).filter(restarted).filter_map(told).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use greenroom_core::container::ordering::{AllowedOrders, OrderSettings};

    use super::*;

    fn orders() -> Orders {
        Orders {
            settings: OrderSettings::new(vec!["ci:12".to_owned()], AllowedOrders::default()),
            service_cpu: Some("100m".to_owned()),
            service_cpu_limit: Some("2".to_owned()),
            service_memory: Some("1Gi".to_owned()),
        }
    }

    fn service(number: u32) -> OrderService {
        OrderService {
            name: format!("svc-{number}"),
            image: "docker.io/library/postgres:17".to_owned(),
            aliases: vec![format!("db-{number}"), format!("pg-{number}")],
            entrypoint: None,
            command: None,
            variables: vec![("P".to_owned(), "a$(B)$$c".to_owned())],
            pull_policy: None,
            port: None,
        }
    }

    fn order(services: Vec<OrderService>) -> LaunchOrder {
        let dirs = ["/builds", "/cache"].map(str::to_owned).to_vec();
        LaunchOrder { image: "ruby:3.3".to_owned(), of_offering: false, pull_policy: None, services, dirs }
    }

    fn made(order: &LaunchOrder, theirs: &Value) -> Value {
        let mut pod = json!({
            "metadata": { "annotations": {} },
            "spec": {
                "containers": [{ "name": JOB, "image": "ci:12", "env": [], "volumeMounts": [] }],
                "initContainers": [{ "name": "greenroom-server", "imagePullPolicy": "Never" }],
                "volumes": [{ "name": "greenroom" }],
            },
        });
        add(&mut pod, order, &orders(), theirs);
        pod
    }

    #[test]
    fn services_are_sidecars_that_start_after_the_server_and_before_the_job() {
        let order = LaunchOrder {
            pull_policy: Some(PullPolicy::Always),
            ..order(vec![service(0), OrderService { port: Some(5432), ..service(1) }])
        };
        let pod = made(&order, &json!({}));
        let spec = &pod["spec"];
        let names =
            spec["initContainers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["greenroom-server", "svc-0", "svc-1"]);
        let job = &spec["containers"][0];
        let first = &spec["initContainers"][1];
        assert_eq!((&job["image"], &job["imagePullPolicy"]), (&json!("ruby:3.3"), &json!("Always")));
        assert_eq!(job["env"][0], json!({ "name": "GREENROOM_KEEP_USER", "value": "yes" }));
        assert_eq!((&first["restartPolicy"], &first["imagePullPolicy"]), (&json!("Always"), &json!("Never")));
        assert_eq!(first["env"], json!([{ "name": "P", "value": "a$$(B)$$$$c" }]));
        let requests = json!({ "cpu": "100m", "memory": "1Gi" });
        assert_eq!(
            first["resources"],
            json!({ "requests": requests, "limits": { "cpu": "2", "memory": "1Gi" } })
        );
        assert_eq!((&first["startupProbe"], &first["securityContext"]), (&Value::Null, &Value::Null));
        assert_eq!(spec["initContainers"][2]["startupProbe"]["tcpSocket"]["port"], 5432);
        let hosts = json!([{ "ip": "127.0.0.1", "hostnames": ["db-0", "pg-0", "db-1", "pg-1"] }]);
        assert_eq!(spec["hostAliases"], hosts);
        assert_eq!(first["volumeMounts"], job["volumeMounts"]);
        assert_eq!(job["volumeMounts"][1]["mountPath"], "/cache");
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 3);
        let read: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(service_name(&read, "svc-1").as_deref(), Some("db-1"));
        assert_eq!((service_name(&read, "svc-2"), service_name(&read, JOB)), (None, None));
        assert!(is_ordered(&read) && restarts(&read).is_none());
    }

    #[test]
    fn entry_point_and_command_mean_what_they_mean_to_an_engine() {
        let words =
            |list: Option<&[&str]>| list.map(|list| list.iter().map(|one| (*one).to_owned()).collect());
        for (entrypoint, command, expected) in [
            (None, None, (Value::Null, Value::Null)),
            (None, Some(&["-c", "$A"][..]), (Value::Null, json!(["-c", "$$A"]))),
            (Some(&["/e"][..]), None, (json!(["/e"]), Value::Null)),
            (Some(&["/e"][..]), Some(&["x"][..]), (json!(["/e"]), json!(["x"]))),
            (Some(&[""][..]), Some(&["sh", "x"][..]), (json!(["sh", "x"]), Value::Null)),
            (Some(&[][..]), None, (Value::Null, Value::Null)),
        ] {
            let service =
                OrderService { entrypoint: words(entrypoint), command: words(command), ..service(0) };
            let sidecar = &made(&order(vec![service]), &json!({}))["spec"]["initContainers"][1];
            assert_eq!((sidecar["command"].clone(), sidecar["args"].clone()), expected, "{entrypoint:?}");
        }
    }

    #[test]
    fn the_operators_pod_keeps_its_mounts_and_names_and_binds_services_too() {
        let context = json!({ "allowPrivilegeEscalation": false });
        let theirs = json!({ "spec": {
            "containers": [{ "name": JOB, "securityContext": context, "volumeMounts": [{ "name": "c", "mountPath": "/cache" }] }],
            "hostAliases": [{ "ip": "127.0.0.1", "hostnames": ["own"] }, { "ip": "10.0.0.1", "hostnames": ["x"] }],
        } });
        let mut of_offering = order(vec![service(0)]);
        of_offering.of_offering = true;
        let pod = made(&of_offering, &theirs);
        let spec = &pod["spec"];
        assert_eq!(spec["containers"][0]["image"], "ci:12", "each offering has its own");
        assert_eq!(spec["initContainers"][1]["securityContext"], context);
        let mounts = json!([{ "name": "svc-dir-0", "mountPath": "/builds" }]);
        assert_eq!(spec["initContainers"][1]["volumeMounts"], mounts);
        let hosts = json!([{ "ip": "127.0.0.1", "hostnames": ["own", "db-0", "pg-0"] }]);
        assert_eq!(spec["hostAliases"], hosts);
    }

    #[test]
    fn docker_in_docker_is_made_where_the_operators_pod_is_privileged() {
        let mut docker = order(vec![service(0), service(1)]);
        docker.services[1].image = "docker.io/library/docker:27-dind".to_owned();
        for (theirs, expected) in [
            (json!({}), Some("docker.io/library/docker:27-dind")),
            (json!({ "allowPrivilegeEscalation": true }), Some("docker.io/library/docker:27-dind")),
            (json!({ "privileged": true }), None),
        ] {
            let theirs = json!({ "spec": { "containers": [{ "name": JOB, "securityContext": theirs }] } });
            assert_eq!(unprivileged(&made(&docker, &theirs)), expected, "{theirs}");
        }
        assert_eq!(unprivileged(&made(&order(vec![service(0)]), &json!({}))), None);
    }

    #[test]
    fn a_service_that_was_started_again_is_named() {
        let mut pod = made(&order(vec![service(0), service(1)]), &json!({}));
        let status = |name: &str, count: u32| json!({ "name": name, "image": "i", "imageID": "", "ready": true, "restartCount": count });
        let statuses = [status("greenroom-server", 3), status("svc-0", 1), status("svc-1", 2)];
        pod["status"] = json!({ "initContainerStatuses": statuses });
        let told = restarts(&serde_json::from_value(pod).unwrap());
        let expected = "service `db-0` was restarted once, service `db-1` was restarted 2 times";
        assert_eq!(told.as_deref(), Some(expected));
    }
}
