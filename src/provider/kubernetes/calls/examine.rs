//! Calls of the API server for `doctor`; they leave no trace.

use k8s_openapi::List;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ResourceQuota;
use serde::Deserialize;
use serde_json::json;

use super::client::{Call, encoded};
use super::create::{self, CREATE};
use super::pod::LaunchSpec;
use super::{Kubernetes, machines};
use crate::core::failure::ErrorClass;
use crate::core::ids::{Generation, InstanceId, OwnerId};
use crate::core::inventory::Tags;
use crate::port::finding::Finding;
use crate::port::provider::{Demand, InstanceKeys, LaunchRequest, ProviderError};
use crate::provider::kubernetes::findings::{Facts, Quota, judge};
use crate::provider::kubernetes::placement::Placement;
use crate::provider::kubernetes::settings::PORT_FORWARD;

/// What the role has to allow: verb, resource, subresource.
const NEEDED: [(&str, &str, &str); 7] = [
    ("create", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("get", "pods", "log"),
    ("list", "events", ""),
];

/// What it has to allow in addition for port-forwards. Newer servers require both for a forward over a WebSocket.
const NEEDED_TO_FORWARD: [(&str, &str, &str); 2] =
    [("create", "pods", "portforward"), ("get", "pods", "portforward")];

/// The server's version.
#[derive(Debug, Deserialize)]
struct Version {
    major: String,
    minor: String,
}

pub(super) async fn examine(api: &Kubernetes, demand: &Demand) -> Vec<Finding> {
    let namespace = api.settings.namespace.clone();
    let mut facts = Facts { namespace, each: api.settings.resources.clone(), ..Facts::default() };
    if let Err(error) = check(api, demand, &mut facts).await {
        facts.unreachable = Some(error.failure.message);
    }
    judge(&api.pool, &facts, demand)
}

/// Fails if no call is possible.
async fn check(api: &Kubernetes, demand: &Demand, facts: &mut Facts) -> Result<(), ProviderError> {
    let answer = api.connection.call(&Call::get("/version")).await?;
    facts.clock_ahead_s = answer.ahead_s;
    facts.version = answer.read::<Version>().ok().and_then(|version| {
        // Some providers write `34+`.
        let digits = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some((digits(&version.major)?, digits(&version.minor)?))
    });
    let to_forward: &[_] = if api.settings.via == PORT_FORWARD { &NEEDED_TO_FORWARD } else { &[] };
    for &(verb, resource, subresource) in NEEDED.iter().chain(to_forward) {
        if !allowed(api, verb, resource, subresource, "").await? {
            let slash = if subresource.is_empty() { "" } else { "/" };
            facts.denied.push(format!("{verb} {resource}{slash}{subresource}"));
        }
    }
    if let Some(owner) = &api.settings.owner
        && !allowed(api, "get", "configmaps", "", owner).await?
    {
        facts.denied.push(format!("get configmaps `{owner}`"));
    }
    // A missing namespace is a mistake in the table that each call meets.
    machines::list(api)
        .await
        .map(drop)
        .or_else(|error| if *error.class() == ErrorClass::Denied { Ok(()) } else { Err(error) })?;
    quotas(api, facts).await;
    for placement in &api.settings.placements {
        if let Err(error) = dry_run(api, demand, placement).await
            && !facts.denied.iter().any(|denied| denied == "create pods")
        {
            facts.refused.push((placement.name.clone(), error.failure.message));
        }
    }
    Ok(())
}

/// Whether the credentials allow something in the namespace.
async fn allowed(
    api: &Kubernetes,
    verb: &str,
    resource: &str,
    subresource: &str,
    name: &str,
) -> Result<bool, ProviderError> {
    let attributes = json!({
        "namespace": api.settings.namespace, "verb": verb, "resource": resource, "subresource": subresource, "name": name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": attributes },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer: SelfSubjectAccessReview = api.connection.call(&Call::ask(path, &review)).await?.read()?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn quotas(api: &Kubernetes, facts: &mut Facts) {
    let call = Call::get(api.path("resourcequotas"));
    let list: Option<List<ResourceQuota>> = match api.connection.call(&call).await {
        Ok(answer) => answer.read().ok(),
        Err(_) => None,
    };
    let Some(list) = list else {
        facts.not_checked.push("list resourcequotas".to_owned());
        return;
    };
    // Whether a quota with scopes counts these pods is not known here.
    let unscoped = list.items.into_iter().filter(|quota| {
        quota.spec.as_ref().is_none_or(|spec| spec.scopes.is_none() && spec.scope_selector.is_none())
    });
    facts.quotas.extend(unscoped.map(|quota| {
        let status = quota.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let of = |(name, hard): (String, k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
            let used = used.get(&name).map_or_else(|| "0".to_owned(), |used| used.0.clone());
            (name, (hard.0, used))
        };
        let resources = status.hard.unwrap_or_default().into_iter().map(of).collect();
        Quota { name: quota.metadata.name.unwrap_or_default(), resources }
    }));
}

/// Creates the pod of an offering as far as admission and validation, but not in the cluster.
async fn dry_run(api: &Kubernetes, demand: &Demand, placement: &Placement) -> Result<(), ProviderError> {
    let tags = Tags {
        pool: api.pool.clone(),
        owner: OwnerId::new("doctor"),
        generation: Generation::new("doctor"),
        number: 0,
    };
    let instance = InstanceId::launched(&tags.pool, &tags.generation, tags.number);
    let keys = InstanceKeys {
        authorized_key: "ssh-ed25519 AAAA".to_owned(),
        host_key: String::new(),
        host_key_public: String::new(),
    };
    let token = instance.token(1);
    let request =
        LaunchRequest { instance, token, tags, offering: None, keys, lifetime: demand.max_lifetime };
    let spec = LaunchSpec::new(&api.settings, &request, placement)?;
    let pod = create::with_owner(api, &spec).await?;
    let path = format!("{}&dryRun={}", api.path(CREATE), encoded("All"));
    match api.connection.call(&Call::create(path, &pod)).await {
        Ok(_) => Ok(()),
        // The check of the quotas reports it.
        Err(failed) if *failed.error.class() == ErrorClass::Quota => Ok(()),
        Err(failed) => Err(failed.into()),
    }
}
