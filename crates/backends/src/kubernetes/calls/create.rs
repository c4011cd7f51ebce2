//! The launch of one pod.

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

use super::Kubernetes;
use super::client::{Call, encoded};
use super::machines::{handle, launched_by};
use super::pod::LaunchSpec;
use crate::cloud::api::Created;
use crate::cloud::tags;

/// How pods are created: unknown fields are refused instead of ignored.
pub(super) const CREATE: &str = "pods?fieldValidation=Strict&fieldManager=greenroom";

/// One call, and one more if its name is taken.
pub(super) async fn create(api: &Kubernetes, spec: &LaunchSpec) -> Result<Created, ProviderError> {
    let pod = with_owner(api, spec).await?;
    let made: Pod = match api.connection.call(&Call::create(api.path(CREATE), &pod)).await {
        Ok(answer) => answer.read().map_err(|error| unreadable(&error))?,
        Err(failed) if failed.is(409, "AlreadyExists") => existing(api, spec).await?,
        Err(failed) => return Err(spec.refusal(failed)),
    };
    let handle = handle(&made).ok_or_else(|| {
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
    let call = Call::get(api.path(&format!("configmaps/{}", encoded(name))));
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
    let call = Call::get(api.path(&format!("pods/{}", encoded(&spec.name))));
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
        && label(OWNER).as_deref() == Some(spec_label(spec, OWNER));
    if is_ours && launched_by(&found) == Some(spec.token.as_str()) {
        return Ok(found);
    }
    if is_ours && found.metadata.deletion_timestamp.is_some() {
        return transient("of an earlier launch is still being deleted");
    }
    let whose = label(OWNER)
        .map_or_else(|| "Greenroom did not create it".to_owned(), |owner| format!("its owner is `{owner}`"));
    let why = format!("a pod `{}` exists that is not that of this launch: {whose}", spec.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}

const OWNER: &str = "greenroom-owner";

fn spec_label<'a>(spec: &'a LaunchSpec, name: &str) -> &'a str {
    spec.pod["metadata"]["labels"][name].as_str().unwrap_or_default()
}
