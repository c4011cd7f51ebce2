//! The faults for which a pod can never serve the job that ordered it.

use greenroom_core::container::failure::{Blame, Cause, short};
use greenroom_core::failure::{ErrorClass, Failure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::ordered::{self, service_name};
use super::pod_state::{self, JOB, PodState, UNFIT, line, statuses, terminated, with};

/// Texts of runtimes about a container that its own image or command keeps from starting.
const BY_IMAGE: [&str; 3] = ["exec format error", "unable to find user", "no users found"];
/// Texts of runtimes about a container's program, if the message has one of [`OF_PROGRAM`], too: mounts have such errors as
/// well.
const BY_PROGRAM: [&str; 3] = ["not found", "o such file or directory", "ermission denied"];
const OF_PROGRAM: [&str; 3] = ["container process", "container init", "executable file `"];

/// The fault of a pod; `None`: no job ordered the pod, or it may still serve the job.
pub(super) fn of(pod: &Pod) -> Option<Failure> {
    if !ordered::is_ordered(pod) {
        return None;
    }
    let fault = |by_job, message| Failure { class: ErrorClass::Order { by_job }, message };
    if let Some(why) = statuses(pod).find_map(|status| of_container(pod, status)) {
        return Some(fault(true, why));
    }
    match pod_state::of(pod) {
        PodState::Unfit(why) => Some(fault(false, format!("the job's pod {why}"))),
        PodState::Ended(_) => ended(pod).map(|why| fault(false, why)),
        PodState::Unscheduled { .. } | PodState::Starting | PodState::Running | PodState::Deleting { .. } => {
            None
        }
    }
}

/// The fault of an image that the job names.
fn of_container(pod: &Pod, status: &ContainerStatus) -> Option<String> {
    let service = service_name(pod, &status.name);
    if status.name != JOB && service.is_none() {
        return None;
    }
    let image = image(pod, status);
    let why =
        not_pulled(status, image).or_else(|| as_root(status, image)).or_else(|| not_run(status, image))?;
    Some(service.map_or_else(|| why.clone(), |service| format!("service `{service}`: {why}")))
}

/// The image as the pod names it: the status of a container that has not started may name it differently.
fn image<'a>(pod: &'a Pod, status: &'a ContainerStatus) -> &'a str {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let all = spec.into_iter().flat_map(|spec| &spec.containers).chain(init);
    let named = all.filter(|container| container.name == status.name).find_map(|one| one.image.as_deref());
    named.unwrap_or(&status.image)
}

fn waiting(status: &ContainerStatus) -> Option<(&str, &str)> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    Some((waiting.reason.as_deref()?, waiting.message.as_deref().unwrap_or_default()))
}

fn not_pulled(status: &ContainerStatus, image: &str) -> Option<String> {
    let (reason, message) = waiting(status)?;
    let cause = match reason {
        "InvalidImageName" => Cause::InvalidName,
        "ErrImageNeverPull" => Cause::Absent,
        "ErrImagePull" | "ImagePullBackOff" => Cause::of_kubelet(message, image),
        _ => return None,
    };
    (cause.blame() == Blame::Job).then(|| cause.of_pod(image, &line(message)))
}

/// The operator's pod forbids root, and the image has no other user that the kubelet can check.
fn as_root(status: &ContainerStatus, image: &str) -> Option<String> {
    let (reason, message) = waiting(status)?;
    let is_root = reason == "CreateContainerConfigError" && message.contains("runAsNonRoot");
    is_root.then(|| {
        format!(
            "this pool runs no images as root, and image `{}` names no other user by its number: {}",
            short(image),
            line(message)
        )
    })
}

/// The container did not start, or its first process found that it cannot serve jobs.
fn not_run(status: &ContainerStatus, image: &str) -> Option<String> {
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = terminated(status).or(last);
    let start_error =
        ended.filter(|one| matches!(one.reason.as_deref(), Some("StartError" | "ContainerCannotRun")));
    let message = match waiting(status) {
        Some(("RunContainerError" | "CreateContainerError", message)) => Some(message),
        _ => start_error.and_then(|ended| ended.message.as_deref()),
    };
    if let Some(message) = message.filter(|message| is_by_image(message)) {
        return Some(with(&format!("image `{}` cannot be started", short(image)), Some(message)));
    }
    let unfit = ended.filter(|ended| status.name == JOB && ended.exit_code == UNFIT)?;
    // The server's own words, in a sentence that names the image.
    let message = unfit.message.as_deref().unwrap_or_default().trim_start_matches("greenroom: ");
    let message = message.strip_prefix("the image cannot run jobs: ").unwrap_or(message);
    Some(with(&format!("image `{}` cannot run jobs", short(image)), Some(message)))
}

fn is_by_image(message: &str) -> bool {
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    says(&BY_IMAGE) || (says(&OF_PROGRAM) && says(&BY_PROGRAM))
}

/// The container `job` ended although neither the cluster nor a limit ended it.
fn ended(pod: &Pod) -> Option<String> {
    let job = statuses(pod).find(|status| status.name == JOB).and_then(terminated)?;
    let by_itself = job.reason.as_deref() != Some("OOMKilled") && pod_state::is_undisturbed(pod);
    by_itself.then(|| {
        let why = format!("the job's pod ended at its start with status {}", job.exit_code);
        with(&why, job.message.as_deref())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::calls::ordered::ORDER;

    fn pod(name: &str, state: &Value, last: &Value) -> Pod {
        let names = json!({ "image": "ruby", "services": ["db"] }).to_string();
        let status = json!([{
            "name": name, "image": "sha256:1", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            "lastState": last,
        }]);
        let list = if name == JOB { "containerStatuses" } else { "initContainerStatuses" };
        let scheduled = json!([{ "type": "PodScheduled", "status": "True" }]);
        serde_json::from_value(json!({
            "metadata": { "name": "linux-3f-1", "annotations": { ORDER: names } },
            "spec": {
                "containers": [{ "name": JOB, "image": "docker.io/library/ruby:3.3" }],
                "initContainers": [{ "name": "svc-0", "image": "docker.io/library/postgres:17" }],
            },
            "status": { "phase": "Pending", "conditions": scheduled, list: status },
        }))
        .unwrap()
    }

    fn waits(reason: &str, message: &str) -> Value {
        json!({ "waiting": { "reason": reason, "message": message } })
    }

    fn ends(reason: &str, status: i32, message: &str) -> Value {
        json!({ "terminated": { "reason": reason, "exitCode": status, "message": message } })
    }

    #[test]
    fn what_is_the_jobs_fault_is_told_from_what_may_pass() {
        let user = "container has runAsNonRoot and image will run as root";
        let program = "unable to start container process: exec: \"nope\": executable file not found in $PATH";
        let shim =
            "failed to start shim: exec: \"containerd-shim-runc-v2\": executable file not found in $PATH";
        for (container, state, expected) in [
            (
                JOB,
                waits("ErrImagePull", "ruby:3.3: not found"),
                Some("image `ruby:3.3` does not exist in registry `docker.io`"),
            ),
            (
                "svc-0",
                waits("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: 401 Unauthorized"),
                Some("service `db`: registry `docker.io` denies access to image `postgres:17`"),
            ),
            (JOB, waits("ImagePullBackOff", "Back-off pulling image \"x\""), None),
            (JOB, waits("ErrImagePull", "dial tcp 10.0.0.1:443: connect: connection refused"), None),
            (JOB, waits("ErrImagePull", "unexpected status: 502 Bad Gateway"), None),
            (
                JOB,
                waits("ErrImageNeverPull", ""),
                Some("image `ruby:3.3` is not on the instance, and the pull policy is"),
            ),
            (JOB, waits("InvalidImageName", ""), Some("image `ruby:3.3` has an invalid name")),
            (
                JOB,
                waits("CreateContainerConfigError", user),
                Some("this pool runs no images as root, and image"),
            ),
            (JOB, ends("StartError", 128, program), Some("image `ruby:3.3` cannot be started: unable")),
            (
                JOB,
                ends("Error", 78, "greenroom: the image cannot run jobs: it has no /bin/sh"),
                Some("image `ruby:3.3` cannot run jobs: it has no /bin/sh"),
            ),
            (
                "svc-0",
                waits("RunContainerError", program),
                Some("service `db`: image `postgres:17` cannot be started"),
            ),
            (
                "svc-0",
                waits(
                    "RunContainerError",
                    "executable file `nope` not found in $PATH: No such file or directory",
                ),
                Some("service `db`: image `postgres:17` cannot be started"),
            ),
            // The node's own faults.
            (JOB, waits("RunContainerError", shim), None),
            (JOB, waits("CreateContainerError", "mount /var/lib/x: no such file or directory"), None),
            ("svc-0", ends("Error", 78, ""), None),
            ("svc-0", waits("CrashLoopBackOff", "back-off 10s restarting failed container"), None),
            ("greenroom-server", waits("ErrImagePull", "timeout"), None),
        ] {
            let found = of(&pod(container, &state, &json!({})));
            match (&found, expected) {
                (None, None) => {}
                (Some(Failure { class: ErrorClass::Order { by_job: true }, message }), Some(begin)) => {
                    assert!(message.starts_with(begin), "{message}");
                }
                _ => panic!("{state}: {found:?}"),
            }
        }
        let again = pod("svc-0", &waits("CrashLoopBackOff", ""), &ends("StartError", 128, program));
        assert!(of(&again).is_some(), "it is about to be started again, in vain");
    }

    #[test]
    fn what_is_not_the_jobs_fault_ends_the_order_all_the_same() {
        for (container, state, expected) in [
            (
                JOB,
                waits("CreateContainerConfigError", "secret \"x\" not found"),
                "the job's pod refers to something that",
            ),
            (JOB, ends("StartError", 128, "cgroup"), "the job's pod could not start its container: cgroup"),
            (JOB, ends("Error", 3, "boom"), "the job's pod ended at its start with status 3: boom"),
            (
                "greenroom-server",
                ends("StartError", 128, "x"),
                "the job's pod cannot get the SSH server of `server_image`",
            ),
        ] {
            let found = of(&pod(container, &state, &json!({}))).unwrap();
            assert_eq!(found.class, ErrorClass::Order { by_job: false });
            assert!(found.message.starts_with(expected), "{}", found.message);
        }
        assert_eq!(
            of(&pod(JOB, &ends("OOMKilled", 137, ""), &json!({}))),
            None,
            "a pod like it may do better"
        );
        let mut evicted = pod(JOB, &ends("Error", 143, ""), &json!({}));
        evicted.status.as_mut().unwrap().reason = Some("Evicted".to_owned());
        assert_eq!(of(&evicted), None);
        let mut plain = pod(JOB, &waits("InvalidImageName", ""), &json!({}));
        plain.metadata.annotations = None;
        assert_eq!(of(&plain), None, "the pool's own pods are judged elsewhere");
    }
}
