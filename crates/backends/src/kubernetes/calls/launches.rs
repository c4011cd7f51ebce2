//! Launches of pods: from the call that creates a pod until a node has it, or Greenroom gives it up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

use super::client::{ApiCall, encoded};
use super::lost::{self, ScaleUp};
use super::machines::{self, PodId, id, launched_by};
use super::pod::LaunchSpec;
use super::pod_state::{self, PodState};
use super::{Kubernetes, fault};
use crate::cloud::api::{Created, LaunchStatus};
use crate::cloud::tags;

/// The path that creates pods: unknown fields are refused instead of ignored.
pub(super) const CREATE: &str = "pods?fieldValidation=Strict&fieldManager=greenroom";

/// Creates a pod, with one call more if its name is taken.
pub(super) async fn create(api: &Kubernetes, spec: &LaunchSpec) -> Result<Created<PodId>, ProviderError> {
    let pod = with_owner(api, spec).await?;
    let made: Pod = match api.connection.call(&ApiCall::create(api.path(CREATE), &pod)).await {
        Ok(answer) => answer.read().map_err(|error| unreadable(&error))?,
        Err(failed) if failed.is(409, "AlreadyExists") => existing(api, spec).await?,
        Err(failed) => return Err(spec.refusal(failed)),
    };
    let handle = id(&made).ok_or_else(|| {
        ProviderError::new(ErrorClass::Unknown, "the API server's answer to the launch names no pod")
    })?;
    api.launches.begin(&spec.token);
    Ok(Created { handle, capacity_confirmed: false })
}

fn unreadable(error: &ProviderError) -> ProviderError {
    ProviderError::new(ErrorClass::Unknown, error.failure.message.clone())
}

/// The pod, owned by the operator's ConfigMap.
pub(super) async fn with_owner(api: &Kubernetes, spec: &LaunchSpec) -> Result<Value, ProviderError> {
    let mut pod = spec.pod.clone();
    let Some(name) = &spec.owner else { return Ok(pod) };
    let call = ApiCall::get(api.path(&format!("configmaps/{}", encoded(name))));
    let owner: ConfigMap = match api.connection.call(&call).await {
        Ok(answer) => answer.read()?,
        Err(failed) => {
            let class = match failed.error.class() {
                ErrorClass::NotFound => ErrorClass::Invalid,
                class => class.clone(),
            };
            let why = format!("the ConfigMap `{name}` cannot own pods: {}", failed.error.failure.message);
            return Err(ProviderError::new(class, why));
        }
    };
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner.metadata.uid,
    }]);
    Ok(pod)
}

/// The pod that has the name of this launch, if it is that of this launch: an earlier answer was lost.
async fn existing(api: &Kubernetes, spec: &LaunchSpec) -> Result<Pod, ProviderError> {
    let call = ApiCall::get(api.path(&format!("pods/{}", encoded(&spec.name))));
    let transient =
        |why: &str| Err(ProviderError::new(ErrorClass::Transient, format!("pod `{}` {why}", spec.name)));
    let found: Pod = match api.connection.call(&call).await {
        Ok(answer) => answer.read().map_err(|error| unreadable(&error))?,
        Err(failed) if failed.is_absent() => return transient("was deleted just now"),
        // Whether it is that of this launch is not known.
        Err(failed) => return Err(unreadable(&failed.error)),
    };
    let label = |name: &str| found.metadata.labels.as_ref().and_then(|labels| labels.get(name)).cloned();
    let is_ours = label(tags::POOL).as_deref() == Some(spec_label(spec, tags::POOL))
        && label(tags::OWNER).as_deref() == Some(spec_label(spec, tags::OWNER));
    if is_ours && launched_by(&found) == Some(spec.token.as_str()) {
        return Ok(found);
    }
    if is_ours && found.metadata.deletion_timestamp.is_some() {
        return transient("of an earlier launch is still being deleted");
    }
    let whose = label(tags::OWNER)
        .map_or_else(|| "Greenroom did not create it".to_owned(), |owner| format!("its owner is `{owner}`"));
    let why = format!("a pod `{}` exists that is not that of this launch: {whose}", spec.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}

fn spec_label<'a>(spec: &'a LaunchSpec, name: &str) -> &'a str {
    spec.pod["metadata"]["labels"][name].as_str().unwrap_or_default()
}

/// Gives a pod up that finds no place in time, or can never serve jobs. The launch is refused once the pod is gone.
pub(super) async fn launch_status(
    api: &Kubernetes,
    spec: &LaunchSpec,
) -> Result<LaunchStatus, ProviderError> {
    let call = ApiCall::get(api.path(&format!("pods/{}", encoded(&spec.name))));
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
    let refusal = match pod_state::of(&pod) {
        PodState::Unscheduled { message } => {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let said = lost::scale_up(&machines::events(api, uid).await.unwrap_or_default());
            if !api.launches.judge(&spec.token, said, api.settings.schedule_within) {
                return Ok(LaunchStatus::Pending);
            }
            let why = message.unwrap_or_else(|| "the scheduler has not answered".to_owned());
            ProviderError::new(ErrorClass::NoCapacity { scope: spec.offering.clone() }, why)
        }
        PodState::Unfit(why) => match fault::of(&pod) {
            Some(failure) => ProviderError { failure },
            None => ProviderError::new(ErrorClass::Invalid, format!("the pod {why}")),
        },
        PodState::Deleting { .. } => return Ok(LaunchStatus::Pending),
        PodState::Starting | PodState::Running | PodState::Ended(_) => return Ok(LaunchStatus::Confirmed),
    };
    let handle = id(&pod).ok_or_else(|| ProviderError::new(ErrorClass::Transient, "the pod has no uid"))?;
    // If it has changed meanwhile, it may just have found a place.
    match api.delete_pod(&handle, pod.metadata.resource_version.as_deref()).await {
        Ok(_) => {
            api.lost.expect_end(&handle.uid);
            api.launches.refuse(&spec.token, refusal);
        }
        Err(error) if *error.class() == ErrorClass::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(LaunchStatus::Pending)
}

/// The interval at which the events of a waiting pod are read: an autoscaler may report that it adds a node.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than any launch call takes.
const RETENTION: Duration = Duration::from_mins(30);

/// The launches whose pods have no node yet, or are being given up, by their tokens as pods show them.
pub(super) struct PendingLaunches {
    clock: Rc<dyn Clock>,
    all: RefCell<BTreeMap<String, PendingLaunch>>,
}

#[derive(Debug, Clone)]
struct PendingLaunch {
    begun: Stamp,
    /// The time since which lists show it without a node.
    waits_since: Option<Stamp>,
    checked: Option<Stamp>,
    /// The reason why it is given up; the pod is being deleted.
    refused: Option<ProviderError>,
}

impl std::fmt::Debug for PendingLaunches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingLaunches").field("all", &self.all).finish_non_exhaustive()
    }
}

impl PendingLaunches {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, all: RefCell::default() }
    }

    /// Records a launch that the API server has accepted. A repeat continues it.
    pub(super) fn begin(&self, token: &str) {
        let now = self.clock.now();
        let mut all = self.all.borrow_mut();
        all.retain(|_, launch| now.since(launch.begun) < RETENTION);
        let fresh = PendingLaunch { begun: now, waits_since: None, checked: None, refused: None };
        all.entry(token.to_owned()).or_insert(fresh).begun = now;
    }

    /// Records that a list shows its pod without a node.
    pub(super) fn note_waiting(&self, token: &str) {
        let now = self.clock.now();
        if let Some(launch) = self.all.borrow_mut().get_mut(token) {
            launch.waits_since.get_or_insert(now);
        }
    }

    /// True if it is being given up.
    pub(super) fn is_refused(&self, token: &str) -> bool {
        self.all.borrow().get(token).is_some_and(|launch| launch.refused.is_some())
    }

    /// True if it is time to read the pod and its events.
    pub(super) fn is_due(&self, token: &str, within: Duration) -> bool {
        let now = self.clock.now();
        self.all.borrow().get(token).is_some_and(|launch| {
            let waited = launch.waits_since.map(|since| now.since(since)).unwrap_or_default();
            let checked = launch.checked.is_none_or(|at| now.since(at) >= CHECK_INTERVAL.min(within));
            launch.refused.is_some() || (checked && waited >= CHECK_INTERVAL.min(within))
        })
    }

    /// Records that the pod and its events were read; true if the launch is to be given up.
    pub(super) fn judge(&self, token: &str, said: ScaleUp, within: Duration) -> bool {
        let now = self.clock.now();
        let mut all = self.all.borrow_mut();
        let Some(launch) = all.get_mut(token) else { return false };
        launch.checked = Some(now);
        match said {
            ScaleUp::Impossible => true,
            ScaleUp::Triggered => false,
            ScaleUp::Unknown => launch.waits_since.is_some_and(|since| now.since(since) >= within),
        }
    }

    /// Records why it is given up.
    pub(super) fn refuse(&self, token: &str, error: ProviderError) {
        if let Some(launch) = self.all.borrow_mut().get_mut(token) {
            launch.refused = Some(error);
        }
    }

    /// Ends a launch whose pod is gone; why, if it was given up.
    pub(super) fn end(&self, token: &str) -> Option<ProviderError> {
        self.all.borrow_mut().remove(token)?.refused
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::failure::ErrorClass;
    use greenroom_testkit::clock::ManualClock;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    #[test]
    fn a_pod_without_a_node_is_given_up_in_time_unless_a_node_is_on_its_way() {
        let clock = Rc::new(ManualClock::default());
        let launches = PendingLaunches::new(Rc::clone(&clock) as Rc<dyn Clock>);
        launches.begin("a");
        assert!(!launches.is_due("a", WITHIN), "it has not been seen waiting");
        launches.note_waiting("a");
        clock.pass(CHECK_INTERVAL);
        launches.note_waiting("a");
        assert!(launches.is_due("a", WITHIN) && !launches.judge("a", ScaleUp::Unknown, WITHIN));
        assert!(!launches.is_due("a", WITHIN), "it was checked");
        clock.pass(CHECK_INTERVAL);
        assert!(launches.judge("a", ScaleUp::Impossible, WITHIN), "no autoscaler helps");
        clock.pass(WITHIN);
        assert!(!launches.judge("a", ScaleUp::Triggered, WITHIN), "a node is being added");
        assert!(launches.judge("a", ScaleUp::Unknown, WITHIN));
        launches.refuse("a", ProviderError::new(ErrorClass::Quota, "x"));
        assert!(launches.is_refused("a") && launches.is_due("a", WITHIN));
        assert_eq!(launches.end("a").unwrap().class(), &ErrorClass::Quota);
        assert!(launches.end("a").is_none() && !launches.is_due("a", WITHIN));
    }

    #[test]
    fn a_repeat_continues_a_launch() {
        let clock = Rc::new(ManualClock::default());
        let launches = PendingLaunches::new(Rc::clone(&clock) as Rc<dyn Clock>);
        launches.begin("a");
        launches.note_waiting("a");
        clock.pass(WITHIN);
        launches.begin("a");
        assert!(launches.judge("a", ScaleUp::Unknown, WITHIN));
    }
}
