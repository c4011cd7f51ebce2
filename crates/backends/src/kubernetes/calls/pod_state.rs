//! The state of a pod, as its conditions, its containers and the kubelet report it.

use greenroom_core::text::clean_line;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};

use super::pod::{SERVER, SERVER_IN_IMAGE};
use crate::cloud::machine::MachineState;

/// The container that jobs run in.
pub(super) const JOB: &str = "job";
/// The exit status of entry.sh for an image that cannot serve jobs.
pub(super) const UNFIT: i32 = 78;
/// Maximum length of a quoted message, in characters.
const QUOTED: usize = 200;

/// A pod's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodState {
    /// The pod has no node. `message`: the scheduler's, once it has found none.
    Unscheduled {
        message: Option<String>,
    },
    Starting,
    Running,
    /// The pod can never serve jobs. The reason is the predicate of a sentence about the instance.
    Unfit(String),
    /// The container of jobs has ended, or is about to be killed.
    Ended(PodEnd),
    /// The pod is being deleted. `None`: no reason is known but the request.
    Deleting {
        why: Option<PodEnd>,
    },
}

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodEnd {
    /// The reason, as the predicate of a sentence about the instance.
    pub(super) why: String,
    /// True if the pod's job used up its memory or disk.
    pub(super) by_job: bool,
}

impl From<String> for PodEnd {
    /// An end that the job did not cause.
    fn from(why: String) -> Self {
        Self { why, by_job: false }
    }
}

impl PodState {
    pub(super) fn state(&self) -> MachineState {
        match self {
            Self::Unscheduled { .. } => MachineState::Accepted,
            Self::Starting => MachineState::Starting,
            Self::Running => MachineState::Running,
            Self::Unfit(_) | Self::Ended(_) => MachineState::Stopped,
            Self::Deleting { .. } => MachineState::Ending,
        }
    }

    /// The end of the pod, if it ended.
    pub(super) fn end(&self) -> Option<PodEnd> {
        match self {
            Self::Unfit(why) => Some(why.clone().into()),
            Self::Ended(end) => Some(end.clone()),
            Self::Deleting { why } => why.clone(),
            Self::Unscheduled { .. } | Self::Starting | Self::Running => None,
        }
    }
}

/// The condition of a pod.
pub(super) fn of(pod: &Pod) -> PodState {
    if pod.metadata.deletion_timestamp.is_some() {
        // Its containers end because it is deleted.
        return PodState::Deleting { why: disrupted(pod).or_else(|| by_status(pod)) };
    }
    if let Some(why) = missing_server(pod).or_else(|| unfit(pod)) {
        return PodState::Unfit(why);
    }
    if let Some(why) = disrupted(pod).or_else(|| by_status(pod)).or_else(|| by_container(pod)) {
        return PodState::Ended(why);
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if phase == "Running" && is(pod, "Ready") && main(pod).is_some_and(is_running) {
        return PodState::Running;
    }
    if is(pod, "PodScheduled") || pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
        return PodState::Starting;
    }
    let refused = condition(pod, "PodScheduled").filter(|one| one.reason.as_deref() == Some("Unschedulable"));
    PodState::Unscheduled { message: refused.map(|one| line(one.message.as_deref().unwrap_or_default())) }
}

/// The reason why the kubelet cannot start the pod now, though it may later, such as an image that it cannot pull.
pub(super) fn delay(pod: &Pod) -> Option<String> {
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        matches!(reason, "ErrImagePull" | "ImagePullBackOff" | "CreateContainerError" | "RunContainerError")
            .then_some((reason, waiting.message.as_deref().unwrap_or_default()))
    });
    waiting.map(|(reason, message)| line(&format!("{reason}: {message}")))
}

/// The permanent fault of a pod, by the waiting reason of a container, or because a container that has just started ended.
fn unfit(pod: &Pod) -> Option<String> {
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let why = match waiting.reason.as_deref()? {
            "InvalidImageName" => "has an invalid image name",
            "ErrImageNeverPull" => "has an image that is not on its node and may not be pulled",
            "CreateContainerConfigError" => "refers to something that does not exist",
            _ => return None,
        };
        Some(with(why, waiting.message.as_deref()))
    });
    waiting.or_else(|| {
        let ended = terminated(main(pod)?)?;
        match (ended.reason.as_deref(), ended.exit_code) {
            (Some("StartError" | "ContainerCannotRun"), _) => {
                Some(with("could not start its container", ended.message.as_deref()))
            }
            (_, UNFIT) => Some(with("cannot serve jobs", ended.message.as_deref())),
            _ => None,
        }
    })
}

/// The reason why the pod does not get Greenroom's SSH server, as the predicate of a sentence about the instance.
fn missing_server(pod: &Pod) -> Option<String> {
    let status = statuses(pod).find(|status| status.name == SERVER)?;
    let why = absent_image(status).or_else(|| failed_server(status))?;
    Some(format!("cannot get the SSH server of `server_image`: {why}"))
}

/// An image that a registry does not have. All other troubles with a registry may pass.
fn absent_image(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let is_pull = matches!(waiting.reason.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"));
    let is_absent =
        ["not found", "does not exist", "manifest unknown"].iter().any(|text| message.contains(text));
    (is_pull && is_absent).then(|| format!("the image {} does not exist: {}", status.image, line(message)))
}

fn failed_server(status: &ContainerStatus) -> Option<String> {
    let ended = terminated(status).filter(|ended| ended.exit_code != 0)?;
    let message = ended.message.as_deref();
    Some(match ended.reason.as_deref() {
        Some("StartError" | "ContainerCannotRun") => with(
            &format!("the image {} has no program {SERVER_IN_IMAGE} for this node", status.image),
            message,
        ),
        _ => with(&format!("its init container exited with status {}", ended.exit_code), message),
    })
}

/// The end of a pod that the cluster ends.
fn disrupted(pod: &Pod) -> Option<PodEnd> {
    let target = condition(pod, "DisruptionTarget").filter(|one| one.status == "True")?;
    let at = target.last_transition_time.as_ref().map(|at| clock(at.0)).unwrap_or_default();
    let why = match target.reason.as_deref().unwrap_or_default() {
        "EvictionByEvictionAPI" => format!("was reclaimed{at}: its node was drained"),
        "PreemptionByScheduler" => format!("was preempted{at}: a pod of a higher priority took its place"),
        "DeletionByTaintManager" | "DeletionByPodGC" => format!("was reclaimed{at}: its node went away"),
        // The kubelet ends pods of a node that shuts down, and of one that runs out of something.
        "TerminationByKubelet" => match by_status(pod) {
            Some(end) => return Some(end),
            None => format!("was reclaimed{at}: its node went away"),
        },
        other => format!("was reclaimed{at} ({})", line(other)),
    };
    Some(why.into())
}

/// True if neither the cluster nor the kubelet ends it.
pub(super) fn is_undisturbed(pod: &Pod) -> bool {
    disrupted(pod).or_else(|| by_status(pod)).is_none()
}

/// The end of a pod by the reason that the kubelet gives for the whole pod.
fn by_status(pod: &Pod) -> Option<PodEnd> {
    let status = pod.status.as_ref()?;
    let message = status.message.as_deref().unwrap_or_default();
    let why = match status.reason.as_deref()? {
        "Evicted" => return Some(evicted(message)),
        "DeadlineExceeded" => "reached its lifetime".to_owned(),
        "NodeLost" => "was reclaimed: its node went away".to_owned(),
        "Terminated" | "NodeShutdown" | "Shutdown" => "was reclaimed: its node was shut down".to_owned(),
        other if status.phase.as_deref() == Some("Failed") => {
            with(&format!("was refused by its node ({})", line(other)), Some(message))
        }
        _ => return None,
    };
    Some(why.into())
}

/// The end of a pod by the kubelet's message about an eviction. A node that is low on disk names `ephemeral-storage`, too.
pub(super) fn evicted(message: &str) -> PodEnd {
    if let Some((_, rest)) = message.split_once("low on resource: ") {
        let resource = rest.split(['.', ' ']).next().unwrap_or_default();
        return format!("was evicted: its node ran out of {}", line(resource)).into();
    }
    if message.contains("ephemeral") {
        // Other containers than that of the jobs have limits of their own.
        let of_jobs = format!("Container {JOB} exceeded");
        let by_job = message.starts_with("Pod ") || message.starts_with(&of_jobs);
        return PodEnd { why: with("exceeded its disk limit", Some(message)), by_job };
    }
    with("was evicted", Some(message)).into()
}

fn by_container(pod: &Pod) -> Option<PodEnd> {
    if let Some(ended) = main(pod).and_then(terminated) {
        let at = ended.finished_at.as_ref().map(|at| clock(at.0)).unwrap_or_default();
        return Some(match (ended.reason.as_deref(), memory_limit(pod)) {
            (Some("OOMKilled"), Some(limit)) => {
                PodEnd { why: format!("ran out of its {limit} of memory{at}"), by_job: true }
            }
            // Without a limit, the node had none left: any of its pods may have taken it.
            (Some("OOMKilled"), None) => format!("ran out of memory{at}").into(),
            _ => format!("ended{at}: its container exited with status {}", ended.exit_code).into(),
        });
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    match phase {
        Some("Failed") => {
            let init = statuses(pod).find_map(|status| {
                let ended = terminated(status).filter(|ended| ended.exit_code != 0)?;
                Some(format!(
                    "failed: its container `{}` exited with status {}",
                    status.name, ended.exit_code
                ))
            });
            Some(init.unwrap_or_else(|| "failed".to_owned()).into())
        }
        Some("Succeeded") => Some("ended by itself".to_owned().into()),
        _ => None,
    }
}

/// The memory limit of the container that jobs run in.
fn memory_limit(pod: &Pod) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers
        .filter(|container| container.name == JOB)
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    limits.filter_map(|limits| limits.get("memory")).map(|limit| limit.0.clone()).next()
}

fn condition<'a>(pod: &'a Pod, name: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == name)
}

fn is(pod: &Pod, name: &str) -> bool {
    condition(pod, name).is_some_and(|one| one.status == "True")
}

fn main(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == JOB)
}

/// All containers, those that come first in a start first.
pub(super) fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

fn is_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

pub(super) fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

fn clock(at: Timestamp) -> String {
    at.strftime(" at %H:%M:%S UTC").to_string()
}

pub(super) fn with(why: &str, message: Option<&str>) -> String {
    match message.map(line).filter(|message| !message.is_empty()) {
        Some(message) => format!("{why}: {}", message.trim_end_matches('.')),
        None => why.to_owned(),
    }
}

pub(super) fn line(text: &str) -> String {
    clean_line(text.as_bytes(), QUOTED)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> Pod {
        let limits = json!({ "limits": { "memory": "4Gi" } });
        serde_json::from_value(json!({
            "metadata": { "name": "linux-3f-1" },
            "spec": { "containers": [{ "name": "job", "resources": limits }] },
            "status": status,
        }))
        .unwrap()
    }

    fn job(state: &Value) -> Value {
        json!([{ "name": "job", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    fn conditions(all: &[(&str, &str, &str)]) -> Value {
        let at = "2026-11-26T14:03:07Z";
        all.iter()
            .map(|(name, status, reason)| {
                json!({ "type": name, "status": status, "reason": reason, "message": "0/3 nodes", "lastTransitionTime": at })
            })
            .collect()
    }

    #[test]
    fn a_pod_starts_runs_or_waits_for_a_node() {
        let ready = conditions(&[("PodScheduled", "True", ""), ("Ready", "True", "")]);
        let running = job(&json!({ "running": { "startedAt": "2026-11-26T14:03:07Z" } }));
        for (status, expected) in [
            (json!({ "phase": "Pending" }), PodState::Unscheduled { message: None }),
            (
                json!({ "phase": "Pending", "conditions": conditions(&[("PodScheduled", "False", "Unschedulable")]) }),
                PodState::Unscheduled { message: Some("0/3 nodes".to_owned()) },
            ),
            (
                json!({ "phase": "Pending", "conditions": conditions(&[("PodScheduled", "False", "SchedulingGated")]) }),
                PodState::Unscheduled { message: None },
            ),
            (
                json!({ "phase": "Pending", "conditions": conditions(&[("PodScheduled", "True", "")]) }),
                PodState::Starting,
            ),
            (
                json!({ "phase": "Pending", "conditions": conditions(&[("PodScheduled", "True", "")]),
                        "containerStatuses": job(&json!({ "waiting": { "reason": "ImagePullBackOff", "message": "not found" } })) }),
                PodState::Starting,
            ),
            (
                json!({ "phase": "Running", "conditions": ready, "containerStatuses": running }),
                PodState::Running,
            ),
            (
                json!({ "phase": "Running", "conditions": conditions(&[("PodScheduled", "True", "")]), "containerStatuses": running }),
                PodState::Starting,
            ),
        ] {
            assert_eq!(of(&pod(&status)), expected, "{status}");
        }
    }

    #[test]
    fn what_will_not_pass_is_unfit() {
        let waiting =
            |reason: &str| json!({ "waiting": { "reason": reason, "message": "secret \"x\" not found." } });
        let ended = |reason: &str, status: i32, message: &str| json!({ "terminated": { "reason": reason, "exitCode": status, "message": message } });
        for (state, expected) in [
            (waiting("InvalidImageName"), Some("has an invalid image name: secret \"x\" not found")),
            (
                waiting("ErrImageNeverPull"),
                Some("has an image that is not on its node and may not be pulled: secret \"x\" not found"),
            ),
            (
                waiting("CreateContainerConfigError"),
                Some("refers to something that does not exist: secret \"x\" not found"),
            ),
            (waiting("ErrImagePull"), None),
            (waiting("ContainerCreating"), None),
            (ended("StartError", 128, "no such file"), Some("could not start its container: no such file")),
            (
                ended("Error", 78, "greenroom: the image has no sshd"),
                Some("cannot serve jobs: greenroom: the image has no sshd"),
            ),
        ] {
            let seen = of(&pod(&json!({ "phase": "Pending", "containerStatuses": job(&state) })));
            let why = match &seen {
                PodState::Unfit(why) => Some(why.as_str()),
                _ => None,
            };
            assert_eq!(why, expected, "{state}");
        }
        let pulling =
            pod(&json!({ "phase": "Pending", "containerStatuses": job(&waiting("ImagePullBackOff")) }));
        assert_eq!(delay(&pulling).as_deref(), Some("ImagePullBackOff: secret \"x\" not found."));
    }

    #[test]
    fn each_end_has_its_sentence() {
        let disrupted = |reason: &str| json!({ "phase": "Running", "conditions": conditions(&[("DisruptionTarget", "True", reason)]) });
        let failed =
            |reason: &str, message: &str| json!({ "phase": "Failed", "reason": reason, "message": message });
        let ended = |reason: &str, status: i32| {
            let state = json!({ "terminated": { "reason": reason, "exitCode": status, "finishedAt": "2026-11-26T14:03:07Z" } });
            json!({ "phase": "Failed", "containerStatuses": job(&state) })
        };
        let disk = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi.";
        let node = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi.";
        let full = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi. Container job was using 20Mi, \
                    request is 0, has larger consumption of ephemeral-storage.";
        let own = "Container job exceeded its local ephemeral storage limit \"20Mi\".";
        let others = "Container cache exceeded its local ephemeral storage limit \"20Mi\".";
        for (status, expected) in [
            (disrupted("EvictionByEvictionAPI"), "was reclaimed at 14:03:07 UTC: its node was drained"),
            (
                disrupted("PreemptionByScheduler"),
                "was preempted at 14:03:07 UTC: a pod of a higher priority took its place",
            ),
            (disrupted("DeletionByTaintManager"), "was reclaimed at 14:03:07 UTC: its node went away"),
            (disrupted("DeletionByPodGC"), "was reclaimed at 14:03:07 UTC: its node went away"),
            (disrupted("TerminationByKubelet"), "was reclaimed at 14:03:07 UTC: its node went away"),
            (disrupted("SomethingNew"), "was reclaimed at 14:03:07 UTC (SomethingNew)"),
            (
                failed("Evicted", disk),
                "exceeded its disk limit: Pod ephemeral local storage usage exceeds the total limit of containers 20Mi",
            ),
            (failed("Evicted", node), "was evicted: its node ran out of memory"),
            (failed("Evicted", full), "was evicted: its node ran out of ephemeral-storage"),
            (
                failed("Evicted", own),
                "exceeded its disk limit: Container job exceeded its local ephemeral storage limit \"20Mi\"",
            ),
            (
                failed("Evicted", others),
                "exceeded its disk limit: Container cache exceeded its local ephemeral storage limit \"20Mi\"",
            ),
            (failed("Evicted", ""), "was evicted"),
            (
                failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
                "reached its lifetime",
            ),
            (
                failed("OutOfcpu", "Node didn't have enough resource"),
                "was refused by its node (OutOfcpu): Node didn't have enough resource",
            ),
            (ended("OOMKilled", 137), "ran out of its 4Gi of memory at 14:03:07 UTC"),
            (ended("Error", 255), "ended at 14:03:07 UTC: its container exited with status 255"),
            (json!({ "phase": "Failed" }), "failed"),
            (json!({ "phase": "Succeeded" }), "ended by itself"),
        ] {
            let mut pod = pod(&status);
            let by_jobs =
                ["exceeded its disk limit: Pod", "exceeded its disk limit: Container job", "ran out of its"];
            let by_job = by_jobs.iter().any(|begin| expected.starts_with(begin));
            let end = PodEnd { why: expected.to_owned(), by_job };
            assert_eq!(of(&pod), PodState::Ended(end.clone()), "{status}");
            pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-26T14:03:08Z")).unwrap();
            // What a container says then is a consequence.
            let is_cause = status.get("reason").is_some() || status.get("conditions").is_some();
            let why = is_cause.then_some(end);
            assert_eq!(of(&pod), PodState::Deleting { why }, "{status}");
        }
        let mut unlimited = pod(&ended("OOMKilled", 137));
        unlimited.spec.as_mut().unwrap().containers[0].resources = None;
        let of_node = PodEnd { why: "ran out of memory at 14:03:07 UTC".to_owned(), by_job: false };
        assert_eq!(of(&unlimited), PodState::Ended(of_node), "any pod of the node may have taken it");
        let mut deleted = pod(&json!({ "phase": "Running" }));
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-26T14:03:08Z")).unwrap();
        assert_eq!(of(&deleted), PodState::Deleting { why: None });
    }

    #[test]
    fn a_wrong_image_of_the_server_is_named() {
        let waiting =
            |reason: &str, message: &str| json!({ "waiting": { "reason": reason, "message": message } });
        let ended = |reason: &str, status: i32, message: &str| json!({ "terminated": { "reason": reason, "exitCode": status, "message": message } });
        for (state, expected) in [
            (
                waiting("ErrImagePull", "failed to resolve reference \"r/s:1\": r/s:1: not found"),
                Some(
                    "the image r/s:1 does not exist: failed to resolve reference \"r/s:1\": r/s:1: not found",
                ),
            ),
            (waiting("ErrImagePull", "dial tcp: i/o timeout"), None),
            (waiting("PodInitializing", "not found"), None),
            (
                ended("StartError", 128, "exec: \"/greenroom-server\": no such file or directory."),
                Some(
                    "the image r/s:1 has no program /greenroom-server for this node: exec: \"/greenroom-server\": no such file \
                     or directory",
                ),
            ),
            (
                ended("Error", 78, "greenroom: cannot copy the program"),
                Some("its init container exited with status 78: greenroom: cannot copy the program"),
            ),
            (ended("Completed", 0, ""), None),
        ] {
            let status = json!({ "name": SERVER, "image": "r/s:1", "imageID": "", "ready": false, "restartCount": 0, "state": state });
            let pod = json!({ "metadata": {}, "status": { "initContainerStatuses": [status] } });
            let why = missing_server(&serde_json::from_value(pod).unwrap());
            let expected =
                expected.map(|text| format!("cannot get the SSH server of `server_image`: {text}"));
            assert_eq!(why, expected, "{state}");
        }
    }
}
