//! Pods as the API server shows them: lists, logs with their host keys, and events.

use std::fmt::Write as _;

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde::{Deserialize, Serialize};

use super::client::{ApiCall, encoded};
use super::errors::FailedCall;
use super::pod::{LAUNCH, OFFERING, VIA};
use super::pod_state::{self, JOB, PodState};
use super::{Kubernetes, ordered};
use crate::cloud::machine::{Addresses, Machine, MachineId};
use crate::cloud::tags;
use crate::kubernetes::settings::PORT_FORWARD;

/// The size of a page. All pages of a list are of one version.
const PAGE: u32 = 500;

/// The name and the uid of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct PodId {
    pub(super) name: String,
    /// Stored as `zone`, as other clouds' identifiers have it.
    #[serde(rename = "zone")]
    pub(super) uid: String,
}

impl MachineId for PodId {
    fn name(&self) -> &str {
        &self.name
    }
}

/// One list of a pool's pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods {
    pub(super) all: Vec<Pod>,
    /// False if the rest of the list expired.
    pub(super) complete: bool,
    /// The version of the list.
    pub(super) version: Option<String>,
}

/// All pods with the pool's label. Without a version in the request, the answer is as new as the last change.
pub(super) async fn list(api: &Kubernetes) -> Result<Pods, ProviderError> {
    let selector = encoded(&format!("{}={}", tags::POOL, api.pool));
    let mut pods = Pods::default();
    let mut next: Option<String> = None;
    loop {
        let from = next.as_deref().map(|token| format!("&continue={}", encoded(token))).unwrap_or_default();
        let path = api.path(&format!("pods?labelSelector={selector}&limit={PAGE}{from}"));
        let page: List<Pod> = match api.connection.call(&ApiCall::get(path)).await {
            Ok(answer) => answer.read()?,
            Err(FailedCall { status: Some(410), .. }) if next.is_some() => return Ok(pods),
            Err(failed) => return Err(failed.into()),
        };
        pods.version = pods.version.take().or(page.metadata.resource_version);
        pods.all.extend(page.items);
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            pods.complete = true;
            return Ok(pods);
        }
    }
}

/// A listed pod as a machine; `None` if one of Greenroom's labels is missing.
pub(super) fn machine(pod: &Pod, condition: &PodState) -> Option<Machine<PodId>> {
    let labels = pod.metadata.labels.as_ref()?;
    let (instance, tags) = tags::read(|name| labels.get(name).map(String::as_str))?;
    let handle = id(pod)?;
    let addresses =
        pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()));
    let address =
        pod.status.as_ref().and_then(|status| status.pod_ip.clone()).or_else(|| addresses.clone().next());
    let end = condition.end();
    Some(Machine {
        // A copy has the annotation, but a name of its own.
        token: launched_by(pod).filter(|_| handle.name == instance.as_str()).map(str::to_owned),
        disks: Vec::new(),
        handle,
        instance,
        tags,
        state: condition.state(),
        created_ms: pod.metadata.creation_timestamp.as_ref().map(|at| at.0.as_millisecond()),
        addresses: Addresses {
            private: address.filter(|address| !address.is_empty()),
            ..Addresses::default()
        },
        what: what(pod, condition),
        by_job: end.as_ref().is_some_and(|end| end.by_job),
        refused: None,
        why: end.map(|end| end.why),
        notice: None,
        metadata: None,
    })
}

/// The identifier of a pod. Another pod may have the same name later.
pub(super) fn id(pod: &Pod) -> Option<PodId> {
    Some(PodId { name: pod.metadata.name.clone()?, uid: pod.metadata.uid.clone()? })
}

/// The token of the launch that made it.
pub(super) fn launched_by(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(LAUNCH).map(String::as_str)
}

/// Returns true if the pod's SSH server listens where only a port-forward arrives.
pub(super) fn is_forwarded(pod: &Pod) -> bool {
    let way = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(VIA));
    way.is_some_and(|way| way == PORT_FORWARD)
}

/// `spot, node worker-3`, or what it waits for.
fn what(pod: &Pod, condition: &PodState) -> String {
    let offering = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(OFFERING));
    let offering = offering.map_or("pod", String::as_str);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = node.map_or_else(|| "no node yet".to_owned(), |node| format!("node {node}"));
    let waits = match condition {
        PodState::Unscheduled { message: Some(message) } => Some(message.clone()),
        _ => pod_state::delay(pod),
    };
    let notes = waits.into_iter().chain(ordered::restarts(pod)).map(|note| format!(", {note}"));
    format!("{offering}, {place}{}", notes.collect::<String>())
}

/// Lines of a container's log, and the most bytes of all of a console.
const LINES: u32 = 200;
const CONSOLE: usize = 60 * 1024;
/// Bytes in which the first line of a log ends.
const FIRST: u32 = 4096;
/// The beginning of the line with the host key.
const HOST_KEY: &str = "greenroom-host-key ";

/// The pod with this identifier; [`ErrorClass::NotFound`] if another has its name.
pub(super) async fn pod_of(api: &Kubernetes, machine: &PodId) -> Result<Pod, ProviderError> {
    let pod: Pod =
        api.connection.call(&ApiCall::get(api.path(&format!("pods/{}", machine.name)))).await?.read()?;
    if id(&pod).as_ref() != Some(machine) {
        let why = format!("pod `{}` is another one than that of the launch", machine.name);
        return Err(ProviderError::new(ErrorClass::NotFound, why));
    }
    Ok(pod)
}

/// The events of a pod, the oldest first.
pub(super) async fn events(api: &Kubernetes, uid: &str) -> Result<Vec<Event>, ProviderError> {
    let selector = encoded(&format!("involvedObject.uid={uid}"));
    let path = api.path(&format!("events?fieldSelector={selector}&limit=100"));
    let list: List<Event> = api.connection.call(&ApiCall::get(path)).await?.read()?;
    let mut events = list.items;
    events
        .sort_by_key(|event| event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|at| at.0));
    Ok(events)
}

/// The logs of a pod's containers and its events.
pub(super) async fn console(api: &Kubernetes, machine: &PodId) -> Result<String, ProviderError> {
    let pod = pod_of(api, machine).await?;
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let names: Vec<&str> = init.map(|container| container.name.as_str()).chain([JOB]).collect();
    let mut text = String::new();
    for name in &names {
        // A container that has not started has no log.
        let limits = format!("tailLines={LINES}&limitBytes={CONSOLE}");
        let Ok(log) = log(api, machine, name, &limits).await else { continue };
        if !log.is_empty() && names.len() > 1 {
            // Writing to a string cannot fail.
            writeln!(text, "container `{name}`:").ok();
        }
        text.push_str(&log);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        // A job chooses the number of services, and what they write.
        text = tail(&text, CONSOLE).to_owned();
    }
    // Without its events, the log is still useful.
    let events = events(api, &machine.uid).await.unwrap_or_default();
    for event in &events {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        writeln!(text, "event {}: {}", part(&event.reason), part(&event.message)).ok();
    }
    Ok(tail(&text, CONSOLE).to_owned())
}

/// The host key that a pod has printed as its first line. Its jobs may write later lines.
pub(super) async fn host_key(api: &Kubernetes, machine: &PodId) -> Result<String, ProviderError> {
    let text = log(api, machine, JOB, &format!("limitBytes={FIRST}")).await.map_err(|error| {
        let class =
            if *error.class() == ErrorClass::Denied { ErrorClass::Denied } else { ErrorClass::Transient };
        ProviderError::new(
            class,
            format!("the log with the pod's host key cannot be read: {}", error.failure.message),
        )
    })?;
    key_in(&text).ok_or_else(|| {
        ProviderError::new(ErrorClass::Transient, "the first line of the pod's log is not its host key yet")
    })
}

async fn log(
    api: &Kubernetes,
    machine: &PodId,
    container: &str,
    limits: &str,
) -> Result<String, ProviderError> {
    let path = api.path(&format!("pods/{}/log?container={container}&{limits}", machine.name));
    let answer = api.connection.call(&ApiCall::get(path)).await?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

fn key_in(log: &str) -> Option<String> {
    // A line without its end may be cut off.
    let (first, _) = log.split_once('\n')?;
    let mut words = first.strip_prefix(HOST_KEY)?.split_ascii_whitespace();
    let kind = words.next()?;
    let key = words.next()?;
    let is_key = kind == "ssh-ed25519" && key.starts_with("AAAA") && words.next().is_none();
    is_key.then(|| format!("{kind} {key}"))
}

/// The last `most` bytes, from the beginning of a line.
fn tail(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let mut from = text.len() - most;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let rest = &text[from..];
    rest.split_once('\n').map_or(rest, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cloud::machine::MachineState;

    fn pod(name: &str, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "uid": "u-1", "creationTimestamp": "2026-11-26T14:03:07Z",
                "labels": { "greenroom-pool": "linux", "greenroom-owner": "owner", "greenroom-generation": "c0ffee", "greenroom-number": "7" },
                "annotations": { LAUNCH: "5d3a", OFFERING: "spot" },
            },
            "spec": { "containers": [], "nodeName": "worker-3" },
            "status": status,
        }))
        .unwrap()
    }

    fn read(pod: &Pod) -> Option<Machine<PodId>> {
        machine(pod, &pod_state::of(pod))
    }

    #[test]
    fn a_pod_is_read_as_it_is_shown() {
        let one = pod("linux-c0ffee-7", &json!({ "phase": "Pending", "podIP": "10.1.2.3" }));
        let machine = read(&one).unwrap();
        assert_eq!((machine.handle.name.as_str(), machine.handle.uid.as_str()), ("linux-c0ffee-7", "u-1"));
        assert_eq!(
            (machine.instance.as_str(), machine.what.as_str()),
            ("linux-c0ffee-7", "spot, node worker-3")
        );
        assert_eq!(
            (machine.state, machine.addresses.private.as_deref()),
            (MachineState::Starting, Some("10.1.2.3"))
        );
        assert_eq!((machine.created_ms, machine.token.as_deref()), (Some(1_795_701_787_000), Some("5d3a")));
        assert_eq!(
            read(&pod("copy", &json!({}))).unwrap().token,
            None,
            "a copy has the annotation, but not the name"
        );
        let mut foreign = one;
        foreign.metadata.labels.as_mut().unwrap().remove("greenroom-owner");
        assert_eq!(read(&foreign), None);
    }

    #[test]
    fn what_it_waits_for_is_shown() {
        let waiting = json!({ "phase": "Pending", "containerStatuses": [{
            "name": "job", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ErrImagePull", "message": "unauthorized" } },
        }] });
        let machine = read(&pod("linux-c0ffee-7", &waiting)).unwrap();
        assert_eq!(machine.what, "spot, node worker-3, ErrImagePull: unauthorized");
    }

    #[test]
    fn only_the_first_line_shows_the_host_key() {
        for (log, expected) in [
            ("greenroom-host-key ssh-ed25519 AAAAkey\nServer listening\n", Some("ssh-ed25519 AAAAkey")),
            ("greenroom-host-key ssh-ed25519 AAAAk", None),
            ("x\ngreenroom-host-key ssh-ed25519 AAAAforged\n", None),
            ("greenroom-host-key ssh-rsa AAAAkey\n", None),
            ("greenroom-host-key ssh-ed25519 AAAAkey more\n", None),
            ("", None),
        ] {
            assert_eq!(key_in(log).as_deref(), expected, "{log}");
        }
    }

    #[test]
    fn the_tail_of_a_text_begins_with_a_line() {
        assert_eq!(tail("short", 10), "short");
        assert_eq!(tail("first\nsecond\nthird\n", 12), "third\n");
        assert_eq!(tail("éééé", 3), "é");
    }
}
