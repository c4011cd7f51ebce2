//! The init container that brings Greenroom's own SSH server into a pod, for images without one.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use super::condition::{line, statuses, terminated, with};

/// The init container.
pub(super) const SERVER: &str = "greenroom-server";
/// The volume that the container of jobs reads; with an image's own sshd, it holds the host key.
pub(super) const VOLUME: &str = "greenroom";
/// Where the volume is in both containers.
pub(super) const DIR: &str = "/run/greenroom";
/// The program in its image.
const IN_IMAGE: &str = "/greenroom-server";
/// What the init container may use. Requests are limits, so that it changes no pod's class of quality.
const CPU: &str = "100m";
const MEMORY: &str = "64Mi";
const DISK: &str = "32Mi";

/// The program in the pod.
pub(super) fn program() -> String {
    format!("{DIR}/{SERVER}")
}

/// The init container, which copies the program from its image into the volume. It needs no right at all.
pub(super) fn container(image: &str) -> Value {
    let amounts = json!({ "cpu": CPU, "memory": MEMORY, "ephemeral-storage": DISK });
    json!({
        "name": SERVER,
        "image": image,
        "command": [IN_IMAGE, "install", program()],
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

pub(super) fn volume() -> Value {
    json!({ "name": VOLUME, "emptyDir": { "sizeLimit": DISK } })
}

/// Why the program does not come; worded to follow "instance X".
pub(super) fn missing(pod: &Pod) -> Option<String> {
    let status = statuses(pod).find(|status| status.name == SERVER)?;
    let why = absent(status).or_else(|| failed(status))?;
    Some(format!("cannot get the SSH server of `server_image`: {why}"))
}

/// An image that a registry does not have. All other troubles with a registry may pass.
fn absent(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let is_pull = matches!(waiting.reason.as_deref(), Some("ErrImagePull" | "ImagePullBackOff"));
    let is_absent =
        ["not found", "does not exist", "manifest unknown"].iter().any(|text| message.contains(text));
    (is_pull && is_absent).then(|| format!("the image {} does not exist: {}", status.image, line(message)))
}

fn failed(status: &ContainerStatus) -> Option<String> {
    let ended = terminated(status).filter(|ended| ended.exit_code != 0)?;
    let message = ended.message.as_deref();
    Some(match ended.reason.as_deref() {
        Some("StartError" | "ContainerCannotRun") => {
            with(&format!("the image {} has no program {IN_IMAGE} for this node", status.image), message)
        }
        _ => with(&format!("its init container exited with status {}", ended.exit_code), message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let why = missing(&serde_json::from_value(pod).unwrap());
            let expected =
                expected.map(|text| format!("cannot get the SSH server of `server_image`: {text}"));
            assert_eq!(why, expected, "{state}");
        }
    }
}
