//! Pods as the API server lists them.

use greenroom_ports::provider::ProviderError;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;

use super::Kubernetes;
use super::client::{Call, encoded};
use super::condition::{self, Condition};
use super::errors::Failed;
use super::ordered;
use super::pod::{LAUNCH, OFFERING, VIA};
use crate::cloud::machine::{Addresses, Handle, Machine};
use crate::cloud::tags;
use crate::kubernetes::settings::PORT_FORWARD;

/// The size of a page. All pages of a list are of one version.
const PAGE: u32 = 500;

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
        let page: List<Pod> = match api.connection.call(&Call::get(path)).await {
            Ok(answer) => answer.read()?,
            Err(Failed { status: Some(410), .. }) if next.is_some() => return Ok(pods),
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

/// `None` if one of Greenroom's labels is missing.
pub(super) fn machine(pod: &Pod, condition: &Condition) -> Option<Machine> {
    let labels = pod.metadata.labels.as_ref()?;
    let (instance, tags) = tags::read(|name| labels.get(name).map(String::as_str))?;
    let handle = handle(pod)?;
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

/// A pod's name and uid: a name may be used again.
pub(super) fn handle(pod: &Pod) -> Option<Handle> {
    Some(Handle { name: pod.metadata.name.clone()?, zone: pod.metadata.uid.clone()? })
}

/// The token of the launch that made it.
pub(super) fn launched_by(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(LAUNCH).map(String::as_str)
}

/// Whether its SSH server listens where only a port-forward arrives.
pub(super) fn is_forwarded(pod: &Pod) -> bool {
    let way = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(VIA));
    way.is_some_and(|way| way == PORT_FORWARD)
}

/// `spot, node worker-3`, or what it waits for.
fn what(pod: &Pod, condition: &Condition) -> String {
    let offering = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(OFFERING));
    let offering = offering.map_or("pod", String::as_str);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let place = node.map_or_else(|| "no node yet".to_owned(), |node| format!("node {node}"));
    let waits = match condition {
        Condition::Unscheduled { message: Some(message) } => Some(message.clone()),
        _ => condition::delay(pod),
    };
    let notes = waits.into_iter().chain(ordered::restarts(pod)).map(|note| format!(", {note}"));
    format!("{offering}, {place}{}", notes.collect::<String>())
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

    fn read(pod: &Pod) -> Option<Machine> {
        machine(pod, &condition::of(pod))
    }

    #[test]
    fn a_pod_is_read_as_it_is_shown() {
        let one = pod("linux-c0ffee-7", &json!({ "phase": "Pending", "podIP": "10.1.2.3" }));
        let machine = read(&one).unwrap();
        assert_eq!((machine.handle.name.as_str(), machine.handle.zone.as_str()), ("linux-c0ffee-7", "u-1"));
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
}
