//! Calls of the API server for `doctor`; they leave no trace.

use std::fmt;

use greenroom_core::container::ordering::SERVICE;
use greenroom_core::failure::ErrorClass;
use greenroom_core::order::{LaunchOrder, OrderService};
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use k8s_openapi::List;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{ApiCall, encoded};
use super::errors::FailedCall;
use super::launches::{CREATE, with_owner};
use super::pod::LaunchSpec;
use super::pod_state::JOB;
use super::{Kubernetes, machines};
use crate::cloud::findings::sample_request;
use crate::kubernetes::findings::{ClusterFacts, NamespaceQuota, judge};
use crate::kubernetes::limit_ranges::{Amounts, LimitRangeItem, PodResources};
use crate::kubernetes::placement::Placement;
use crate::kubernetes::settings::PORT_FORWARD;

/// A permission in the namespace.
struct Permission {
    verb: &'static str,
    resource: &'static str,
    subresource: &'static str,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        write!(f, "{} {}{slash}{}", self.verb, self.resource, self.subresource)
    }
}

const fn permission(verb: &'static str, resource: &'static str, subresource: &'static str) -> Permission {
    Permission { verb, resource, subresource }
}

/// The permissions that the role needs.
const NEEDED: [Permission; 7] = [
    permission("create", "pods", ""),
    permission("delete", "pods", ""),
    permission("get", "pods", ""),
    permission("list", "pods", ""),
    permission("watch", "pods", ""),
    permission("get", "pods", "log"),
    permission("list", "events", ""),
];

/// The permissions that the role needs in addition for port-forwards. Newer servers require both for a forward over a WebSocket.
const NEEDED_TO_FORWARD: [Permission; 2] =
    [permission("create", "pods", "portforward"), permission("get", "pods", "portforward")];

/// The server's version.
#[derive(Debug, Deserialize)]
struct ServerVersion {
    major: String,
    minor: String,
}

pub(super) async fn examine(api: &Kubernetes, demand: &Demand) -> Vec<Finding> {
    let namespace = api.settings.namespace.clone();
    let mut facts =
        ClusterFacts { namespace, each: api.settings.resources.clone(), ..ClusterFacts::default() };
    if let Err(error) = check(api, demand, &mut facts).await {
        facts.unreachable = Some(error.failure.message);
    }
    judge(&api.pool, &facts, demand)
}

/// Fails if no call is possible.
async fn check(api: &Kubernetes, demand: &Demand, facts: &mut ClusterFacts) -> Result<(), ProviderError> {
    let answer = api.connection.call(&ApiCall::get("/version")).await?;
    facts.clock_ahead_s = answer.ahead_s;
    facts.version = answer.read::<ServerVersion>().ok().and_then(|version| {
        // Some providers write `34+`.
        let digits = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some((digits(&version.major)?, digits(&version.minor)?))
    });
    let to_forward: &[_] = if api.settings.via == PORT_FORWARD { &NEEDED_TO_FORWARD } else { &[] };
    for permission in NEEDED.iter().chain(to_forward) {
        if !allowed(api, permission, "").await? {
            facts.denied.push(permission.to_string());
        }
    }
    if facts.denied.len() == NEEDED.len() + to_forward.len() {
        // Rights are looked up by the namespace's name, whether it exists or not.
        facts.no_namespace = Some("does not exist, or these credentials have no role in it");
        return Ok(());
    }
    if let Some(owner) = &api.settings.owner
        && !allowed(api, &permission("get", "configmaps", ""), owner).await?
    {
        facts.denied.push(format!("get configmaps `{owner}`"));
    }
    machines::list(api)
        .await
        .map(drop)
        .or_else(|error| if *error.class() == ErrorClass::Denied { Ok(()) } else { Err(error) })?;
    if let Some(orders) = &api.settings.orders {
        let limits = [
            ("service_cpu_limit", "cpu", &orders.service_cpu_limit),
            ("service_memory", "memory", &orders.service_memory),
        ];
        let lacking = limits.into_iter().filter(|(_, _, limit)| limit.is_none());
        facts.unlimited = lacking.map(|(key, resource, _)| (key, resource)).collect();
    }
    quotas(api, facts).await;
    limit_ranges(api, facts).await;
    for placement in &api.settings.placements {
        let spec = match pod_of(api, demand, placement, None) {
            Ok(spec) => spec,
            Err(error) => {
                facts.refused.push((placement.name.clone(), error.failure.message));
                continue;
            }
        };
        facts.wanted = wanted(&spec.pod);
        match dry_run(api, &spec).await {
            Err(failed) if failed.lacks_namespace => facts.no_namespace = Some("does not exist"),
            Err(failed) if !facts.denied.iter().any(|denied| denied == "create pods") => {
                facts.refused.push((placement.name.clone(), failed.error.failure.message));
            }
            Ok(()) | Err(_) => {}
        }
    }
    // Otherwise, it is refused for the same reason.
    let is_clear = facts.refused.is_empty() && facts.denied.is_empty() && facts.no_namespace.is_none();
    if let (Some(_), true, [placement, ..]) =
        (&api.settings.orders, is_clear, api.settings.placements.as_slice())
    {
        let refused = match pod_of(api, demand, placement, Some(with_service(placement))) {
            Ok(spec) => dry_run(api, &spec).await.err().map(|failed| failed.error),
            Err(error) => Some(error),
        };
        facts.refused_order = refused.map(|error| error.failure.message);
    }
    Ok(())
}

/// An order with one service.
fn with_service(placement: &Placement) -> LaunchOrder {
    let service = OrderService {
        name: format!("{SERVICE}0"),
        image: placement.image.clone(),
        aliases: vec!["service".to_owned()],
        entrypoint: None,
        command: None,
        variables: Vec::new(),
        pull_policy: None,
        port: Some(80),
    };
    LaunchOrder {
        image: placement.image.clone(),
        of_offering: true,
        pull_policy: None,
        services: vec![service],
        dirs: vec!["/builds".to_owned()],
    }
}

/// True if the credentials have a permission, for the object with this name if there is one.
async fn allowed(api: &Kubernetes, permission: &Permission, name: &str) -> Result<bool, ProviderError> {
    let Permission { verb, resource, subresource } = permission;
    let attributes = json!({
        "namespace": api.settings.namespace, "verb": verb, "resource": resource, "subresource": subresource, "name": name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": attributes },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer: SelfSubjectAccessReview = api.connection.call(&ApiCall::ask(path, &review)).await?.read()?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn quotas(api: &Kubernetes, facts: &mut ClusterFacts) {
    let call = ApiCall::get(api.path("resourcequotas"));
    let list: Option<List<ResourceQuota>> = match api.connection.call(&call).await {
        Ok(answer) => answer.read().ok(),
        Err(_) => None,
    };
    let Some(list) = list else {
        facts.not_checked.push("list resourcequotas");
        return;
    };
    // Whether a quota with scopes counts these pods is not known here.
    let unscoped = list.items.into_iter().filter(|quota| {
        quota.spec.as_ref().is_none_or(|spec| spec.scopes.is_none() && spec.scope_selector.is_none())
    });
    facts.quotas.extend(unscoped.map(|quota| {
        let status = quota.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let of = |(name, hard): (String, Quantity)| {
            let used = used.get(&name).map_or_else(|| "0".to_owned(), |used| used.0.clone());
            (name, (hard.0, used))
        };
        let resources = status.hard.unwrap_or_default().into_iter().map(of).collect();
        NamespaceQuota { name: quota.metadata.name.unwrap_or_default(), resources }
    }));
}

async fn limit_ranges(api: &Kubernetes, facts: &mut ClusterFacts) {
    let call = ApiCall::get(api.path("limitranges"));
    let list: Option<List<LimitRange>> = match api.connection.call(&call).await {
        Ok(answer) => answer.read().ok(),
        Err(_) => None,
    };
    let Some(list) = list else {
        facts.not_checked.push("list limitranges");
        return;
    };
    let amounts = |of: Option<std::collections::BTreeMap<String, Quantity>>| -> Amounts {
        of.unwrap_or_default().into_iter().map(|(name, amount)| (name, amount.0)).collect()
    };
    for range in list.items {
        let name = range.metadata.name.unwrap_or_default();
        facts.ranges.extend(range.spec.into_iter().flat_map(|spec| spec.limits).map(|item| LimitRangeItem {
            name: name.clone(),
            kind: item.type_,
            min: amounts(item.min),
            max: amounts(item.max),
            default: amounts(item.default),
            default_request: amounts(item.default_request),
            ratio: amounts(item.max_limit_request_ratio),
        }));
    }
}

/// The resources of the container that jobs run in.
fn wanted(pod: &Value) -> PodResources {
    let containers = pod["spec"]["containers"].as_array();
    let Some(job) = containers.into_iter().flatten().find(|one| one["name"] == JOB) else {
        return PodResources::default();
    };
    let amounts = |kind: &str| -> Amounts {
        let all = job["resources"][kind].as_object().into_iter().flatten();
        // In YAML, a number needs no quotes.
        let text = |amount: &Value| amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        all.map(|(name, amount)| (name.clone(), text(amount))).collect()
    };
    PodResources { requests: amounts("requests"), limits: amounts("limits") }
}

/// The pod of an offering, as `doctor` launches it.
fn pod_of(
    api: &Kubernetes,
    demand: &Demand,
    placement: &Placement,
    order: Option<LaunchOrder>,
) -> Result<LaunchSpec, ProviderError> {
    let request = LaunchRequest { lifetime: demand.max_lifetime, order, ..sample_request(&api.pool) };
    LaunchSpec::new(&api.settings, &request, placement)
}

/// Creates a pod as far as admission and validation, but not in the cluster.
async fn dry_run(api: &Kubernetes, spec: &LaunchSpec) -> Result<(), FailedCall> {
    let owned = with_owner(api, spec).await;
    let path = format!("{}&dryRun={}", api.path(CREATE), encoded("All"));
    // Without its owner, the pod still shows whether there is such a namespace.
    let pod = owned.as_ref().unwrap_or(&spec.pod);
    match (api.connection.call(&ApiCall::create(path, pod)).await, owned) {
        (Err(failed), _) if failed.lacks_namespace => Err(failed),
        (_, Err(error)) => Err(error.into()),
        // The check of the quotas reports it.
        (Err(failed), Ok(_)) if *failed.error.class() == ErrorClass::Quota => Ok(()),
        (answer, Ok(_)) => answer.map(drop),
    }
}
