//! Whether an accepted pod has found a place.

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use k8s_openapi::api::core::v1::Pod;

use super::client::{Call, encoded};
use super::condition::{self, Condition};
use super::machines::{handle, launched_by};
use super::pod::LaunchSpec;
use super::{Kubernetes, console, fault, lost};
use crate::cloud::api::LaunchStatus;

/// Gives a pod up that finds no place in time, or can never serve jobs. The launch is refused once the pod is gone.
pub(super) async fn launch_status(
    api: &Kubernetes,
    spec: &LaunchSpec,
) -> Result<LaunchStatus, ProviderError> {
    let call = Call::get(api.path(&format!("pods/{}", encoded(&spec.name))));
    let found = match api.connection.call(&call).await {
        Ok(answer) => Some(answer.read::<Pod>()?),
        Err(failed) if failed.is_absent() => None,
        Err(failed) => return Err(failed.into()),
    };
    let Some(pod) = found.filter(|pod| launched_by(pod) == Some(spec.token.as_str())) else {
        let vanished =
            || ProviderError::new(ErrorClass::Transient, "the pod was deleted before it found a place");
        return Ok(LaunchStatus::Refused(api.launches.end(&spec.token).unwrap_or_else(vanished)));
    };
    let refusal = match condition::of(&pod) {
        Condition::Unscheduled { message } => {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let said = lost::scale_up(&console::events(api, uid).await.unwrap_or_default());
            if !api.launches.judge(&spec.token, said, api.settings.schedule_within) {
                return Ok(LaunchStatus::Pending);
            }
            let why = message.unwrap_or_else(|| "the scheduler has not answered".to_owned());
            ProviderError::new(ErrorClass::NoCapacity { scope: spec.offering.clone() }, why)
        }
        Condition::Unfit(why) => match fault::of(&pod) {
            Some(failure) => ProviderError { failure },
            None => ProviderError::new(ErrorClass::Invalid, format!("the pod {why}")),
        },
        Condition::Deleting { .. } => return Ok(LaunchStatus::Pending),
        Condition::Starting | Condition::Running | Condition::Ended(_) => return Ok(LaunchStatus::Confirmed),
    };
    let handle =
        handle(&pod).ok_or_else(|| ProviderError::new(ErrorClass::Transient, "the pod has no uid"))?;
    // If it has changed meanwhile, it may just have found a place.
    match api.delete_pod(&handle, pod.metadata.resource_version.as_deref()).await {
        Ok(_) => {
            api.lost.expect_end(&handle.zone);
            api.launches.refuse(&spec.token, refusal);
        }
        Err(error) if *error.class() == ErrorClass::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(LaunchStatus::Pending)
}
