//! Findings of `doctor` from the API server's answers.

use std::collections::BTreeMap;

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use super::limit_ranges::{self, Range, Wanted};
use super::quantity;
use super::settings::Resources;
use crate::cloud::clock;
use crate::cloud::doctor::group_by_message;
use crate::cloud::headroom::{QuotaHeadroom, shortage};

/// The oldest version whose behaviour is known.
const OLDEST: (u32, u32) = (1, 31);

/// The API server's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) namespace: String,
    /// Its error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// Why it seems to lack the namespace; worded to follow its name.
    pub(super) no_namespace: Option<&'static str>,
    /// Its version, as `1.34`.
    pub(super) version: Option<(u32, u32)>,
    /// What the role does not allow, as `delete pods`.
    pub(super) denied: Vec<String>,
    /// What only `doctor` needs.
    pub(super) not_checked: Vec<String>,
    /// Offerings whose pods it would refuse, and why.
    pub(super) refused: Vec<(String, String)>,
    /// Why it would refuse a pod of a job with a service.
    pub(super) refused_order: Option<String>,
    /// The limits that services of jobs lack, by the key that sets each, and the resource.
    pub(super) unlimited: Vec<(&'static str, &'static str)>,
    /// The quotas of the namespace.
    pub(super) quotas: Vec<Quota>,
    /// The LimitRanges of the namespace, and what a pod requests.
    pub(super) ranges: Vec<Range>,
    pub(super) wanted: Wanted,
    /// What one pod uses of quotas.
    pub(super) each: Resources,
    /// The server's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
}

/// A ResourceQuota.
#[derive(Debug, Clone, Default)]
pub(super) struct Quota {
    pub(super) name: String,
    /// By resource: its limit, and what is used of it.
    pub(super) resources: BTreeMap<String, (String, String)>,
}

/// The number of further pods that a quota allows, by its tightest resource; `None` without a limit for pods.
fn room(namespace: &str, quota: &Quota, each: &Resources) -> Option<QuotaHeadroom> {
    let one = Some("1".to_owned());
    let uses = [
        (["pods", "count/pods"], &one),
        (["requests.cpu", "cpu"], &each.cpu),
        (["limits.cpu", ""], &each.cpu_limit),
        (["requests.memory", "memory"], &each.memory),
        (["limits.memory", ""], &each.memory),
        (["requests.ephemeral-storage", "ephemeral-storage"], &each.disk),
        (["limits.ephemeral-storage", ""], &each.disk),
    ];
    let fits = uses.iter().flat_map(|(names, use_)| names.iter().map(move |name| (*name, *use_)));
    let fits = fits.filter_map(|(name, use_)| {
        let (hard, used) = quota.resources.get(name)?;
        let left = quantity::milli(hard)?.saturating_sub(quantity::milli(used)?);
        let each = quantity::milli(use_.as_deref()?).filter(|each| *each > 0)?;
        Some((u32::try_from(left / each).unwrap_or(u32::MAX), name))
    });
    let (machines, resource) = fits.min_by_key(|(machines, _)| *machines)?;
    Some(QuotaHeadroom { machines, of: format!("in `{namespace}` (quota `{}`, {resource})", quota.name) })
}

/// True for the API server's sentence about a pod that a LimitRange refuses.
fn is_of_limit_range(error: &str) -> bool {
    let of_range = ["usage per Container is", "usage per Pod is", "limit to request ratio per Container is"];
    of_range.iter().any(|part| error.contains(part)) || error.contains("must be less than or equal to")
}

/// What the LimitRanges of the namespace do to the pods.
fn range_findings(pool: &PoolName, facts: &Facts) -> Vec<Finding> {
    let namespace = &facts.namespace;
    let of_range = |(range, effects): (String, limit_ranges::Effects)| {
        let refused = effects.refused.into_iter().map({
            let range = range.clone();
            move |why| Finding {
                code: "kubernetes-limit-range",
                severity: Severity::Error,
                message: format!(
                    "LimitRange `{range}` in `{namespace}` refuses the pods of pool `{pool}`: it {why}"
                ),
                remedy: Some("change the amounts in the pool's table, or the LimitRange".to_owned()),
            }
        });
        let set = effects.set.into_iter().map(move |what| Finding {
            code: "kubernetes-limit-default",
            severity: Severity::Note,
            message: format!(
                "LimitRange `{range}` in `{namespace}` {what} for each pod of pool `{pool}`, which sets none"
            ),
            remedy: Some("set the amount in the pool's table, unless the LimitRange's is wanted".to_owned()),
        });
        refused.chain(set).collect::<Vec<_>>()
    };
    limit_ranges::effects(&facts.ranges, &facts.wanted).into_iter().flat_map(of_range).collect()
}

/// Services of jobs that may take all processors or memory of a node.
fn unlimited_services(pool: &PoolName, facts: &Facts) -> Option<Finding> {
    // A LimitRange gives a limit to containers that have none.
    let is_set = |resource: &str| facts.ranges.iter().any(|range| range.limits_containers(resource));
    let unlimited = facts.unlimited.iter().filter(|(_, resource)| !is_set(resource));
    let (keys, resources): (Vec<_>, Vec<_>) =
        unlimited.map(|(key, resource)| (format!("`{key}`"), *resource)).unzip();
    let (keys, resources) = (keys.join(" and "), resources.join(" and "));
    (!keys.is_empty()).then(|| Finding {
        code: "kubernetes-service-limits",
        severity: Severity::Warning,
        message: format!(
            "services of jobs in pool `{pool}` have no limit of {resources}: one of them may take a node's from all other \
             pods"
        ),
        remedy: Some(format!("set {keys}, or a LimitRange in the namespace")),
    })
}

/// The findings.
pub(super) fn judge(pool: &PoolName, facts: &Facts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Note, Warning};
    const ROLE: &str = "apply the role of docs/providers/kubernetes.md";
    let mut found = Vec::new();
    let mut add = |code, severity, message: String, remedy: &str| {
        found.push(Finding { code, severity, message, remedy: Some(remedy.to_owned()) });
    };
    if demand.max_lifetime.is_none() {
        let message = format!(
            "`max_lifetime` of pool `{pool}` is 0: if this runner host is lost for good, its pods keep running"
        );
        add(
            "kubernetes-no-lifetime",
            Warning,
            message,
            "remove `max_lifetime` or set a limit: Kubernetes then ends pods by itself",
        );
    }
    if let Some(off) = clock::off(facts.clock_ahead_s) {
        let message = format!("the runner host's clock is {off} the API server's: ages of pods are wrong");
        add(
            "kubernetes-clock",
            Warning,
            message,
            "synchronize the clock with NTP: `timedatectl set-ntp true`",
        );
    }
    if let Some(error) = &facts.unreachable {
        let message = format!("cannot query the API server for pool `{pool}`: {error}");
        add(
            "kubernetes-unreachable",
            Error,
            message,
            "check `context`, `kubeconfig`, the credentials and the network",
        );
        return found;
    }
    if let Some((major, minor)) = facts.version.filter(|version| *version < OLDEST) {
        let message =
            format!("the cluster of pool `{pool}` has Kubernetes {major}.{minor}, untested with Greenroom");
        let remedy = format!("use Kubernetes {}.{} or later", OLDEST.0, OLDEST.1);
        add("kubernetes-version", Warning, message, &remedy);
    }
    if let Some(why) = facts.no_namespace {
        let namespace = &facts.namespace;
        let message = format!("namespace `{namespace}` of pool `{pool}` {why}");
        let remedy =
            format!("correct `namespace`, or create it: `kubectl create namespace {namespace}`; then {ROLE}");
        add("kubernetes-namespace", Error, message, &remedy);
        return found;
    }
    if !facts.denied.is_empty() {
        let message = format!(
            "pool `{pool}` is not allowed to {} in namespace `{}`",
            facts.denied.join(", "),
            facts.namespace
        );
        add("kubernetes-denied", Error, message, ROLE);
    }
    let of_ranges = range_findings(pool, facts);
    // The server's own sentence about a LimitRange says less.
    let is_told = of_ranges.iter().any(|finding| finding.severity == Error);
    let refused: Vec<_> =
        facts.refused.iter().filter(|(_, error)| !(is_told && is_of_limit_range(error))).cloned().collect();
    for (offerings, error) in group_by_message(&refused) {
        let message = format!("Kubernetes would refuse {offerings} of pool `{pool}`: {error}");
        add(
            "kubernetes-refused",
            Error,
            message,
            "correct the pool's table, its `pod`, or the namespace's policies",
        );
    }
    if let Some(error) = &facts.refused_order {
        let message = format!("Kubernetes would refuse pods of jobs with services in pool `{pool}`: {error}");
        let remedy =
            "set `service_cpu` and `service_memory`, or correct the pool's `pod` or the namespace's policies";
        add("kubernetes-order", Error, message, remedy);
    }
    let wanted = demand.max_instances.saturating_sub(demand.recorded);
    // Each quota holds for all pods, so that the tightest one counts.
    let rooms = facts.quotas.iter().filter_map(|quota| room(&facts.namespace, quota, &facts.each));
    if let Some(tightest) = rooms.min_by_key(|room| room.machines)
        && let Some(message) = shortage(pool, &[tightest], wanted)
    {
        add(
            "kubernetes-quota",
            Warning,
            message,
            "raise the quota of the namespace, or lower `max_instances`",
        );
    }
    for purpose in &facts.not_checked {
        let message =
            format!("doctor is not allowed to {purpose} for pool `{pool}`; the pool itself works without");
        add("kubernetes-not-checked", Note, message, ROLE);
    }
    found.extend(unlimited_services(pool, facts).into_iter().chain(of_ranges));
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn codes(facts: &Facts, demand: &Demand) -> Vec<&'static str> {
        judge(&PoolName::new("linux"), facts, demand).iter().map(|finding| finding.code).collect()
    }

    fn quota(name: &str, resources: &[(&str, &str, &str)]) -> Quota {
        let resource = |(name, hard, used): &(&str, &str, &str)| {
            ((*name).to_owned(), ((*hard).to_owned(), (*used).to_owned()))
        };
        Quota { name: name.to_owned(), resources: resources.iter().map(resource).collect() }
    }

    #[test]
    fn a_pool_that_is_well_has_nothing_said_of_it() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let facts = Facts { version: Some((1, 34)), ..Facts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = Facts {
            version: Some((1, 30)),
            denied: vec!["delete pods".to_owned(), "get pods/log".to_owned()],
            refused: vec![("spot".to_owned(), "no PriorityClass".to_owned())],
            refused_order: Some("must specify limits.memory for: svc-0".to_owned()),
            quotas: vec![quota("few", &[("pods", "4", "2")])],
            clock_ahead_s: Some(400),
            not_checked: vec!["list resourcequotas".to_owned()],
            ..Facts::default()
        };
        let wanted = [
            "kubernetes-no-lifetime",
            "kubernetes-clock",
            "kubernetes-version",
            "kubernetes-denied",
            "kubernetes-refused",
            "kubernetes-order",
            "kubernetes-quota",
            "kubernetes-not-checked",
        ];
        assert_eq!(codes(&facts, &demand), wanted);
        let silent = Facts { unreachable: Some("no route".to_owned()), ..facts };
        assert_eq!(
            codes(&silent, &demand),
            ["kubernetes-no-lifetime", "kubernetes-clock", "kubernetes-unreachable"]
        );
    }

    #[test]
    fn services_without_limits_are_named_unless_the_namespace_sets_them() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let unlimited = vec![("service_cpu_limit", "cpu"), ("service_memory", "memory")];
        let range = |resource: &str| Range {
            kind: "Container".to_owned(),
            default: BTreeMap::from([(resource.to_owned(), "1".to_owned())]),
            ..Range::default()
        };
        let messages = |ranges: Vec<Range>| {
            let wanted = Wanted {
                limits: BTreeMap::from([
                    ("cpu".to_owned(), "1".to_owned()),
                    ("memory".to_owned(), "1".to_owned()),
                ]),
                ..Wanted::default()
            };
            let facts = Facts { unlimited: unlimited.clone(), ranges, wanted, ..Facts::default() };
            let found = judge(&PoolName::new("linux"), &facts, &demand);
            let of_services = found.into_iter().filter(|finding| finding.code == "kubernetes-service-limits");
            of_services.map(|finding| (finding.message, finding.remedy.unwrap())).collect::<Vec<_>>()
        };
        let [(message, remedy)] = &messages(Vec::new())[..] else { panic!() };
        assert!(message.contains("have no limit of cpu and memory"), "{message}");
        assert_eq!(remedy, "set `service_cpu_limit` and `service_memory`, or a LimitRange in the namespace");
        let [(message, _)] = &messages(vec![range("cpu")])[..] else { panic!() };
        assert!(message.contains("have no limit of memory:"), "{message}");
        assert_eq!(messages(vec![range("cpu"), range("memory")]), []);
    }

    #[test]
    fn a_missing_namespace_hides_what_follows_from_it() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let facts = Facts {
            namespace: "ci".to_owned(),
            no_namespace: Some("does not exist"),
            denied: vec!["list pods".to_owned()],
            refused: vec![("spot".to_owned(), "namespaces \"ci\" not found".to_owned())],
            ..Facts::default()
        };
        let found = judge(&PoolName::new("linux"), &facts, &demand);
        assert_eq!(found[0].message, "namespace `ci` of pool `linux` does not exist");
        assert_eq!(codes(&facts, &demand), ["kubernetes-namespace"]);
    }

    #[test]
    fn a_limit_range_is_one_finding_for_each_effect() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let amounts = |name: &str, amount: &str| BTreeMap::from([(name.to_owned(), amount.to_owned())]);
        let range = Range {
            name: "small".to_owned(),
            kind: "Container".to_owned(),
            max: amounts("memory", "64Mi"),
            default: amounts("cpu", "500m"),
            ..Range::default()
        };
        let wanted = Wanted { requests: amounts("memory", "1Gi"), limits: amounts("memory", "1Gi") };
        let refused = "pods \"a\" is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi";
        let refused = vec![("default".to_owned(), refused.to_owned())];
        let facts =
            Facts { namespace: "ci".to_owned(), ranges: vec![range], wanted, refused, ..Facts::default() };
        let found = judge(&PoolName::new("linux"), &facts, &demand);
        let messages: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "LimitRange `small` in `ci` refuses the pods of pool `linux`: it allows a container at most 64Mi of memory, \
                 not 1Gi",
                "LimitRange `small` in `ci` sets a limit of 500m of cpu for each pod of pool `linux`, which sets none",
            ]
        );
        assert_eq!(codes(&facts, &demand), ["kubernetes-limit-range", "kubernetes-limit-default"]);
    }

    #[test]
    fn the_tightest_resource_of_the_tightest_quota_counts() {
        let each = Resources {
            cpu: Some("500m".to_owned()),
            cpu_limit: None,
            memory: Some("4Gi".to_owned()),
            disk: None,
        };
        let room = |resources: &[(&str, &str, &str)]| {
            room("ci", &quota("q", resources), &each).map(|room| format!("{} {}", room.machines, room.of))
        };
        let both = [("pods", "10", "3"), ("requests.cpu", "4", "2500m"), ("limits.memory", "100Gi", "0")];
        assert_eq!(room(&both).as_deref(), Some("3 in `ci` (quota `q`, requests.cpu)"));
        assert_eq!(room(&[("pods", "2", "3")]).as_deref(), Some("0 in `ci` (quota `q`, pods)"));
        assert_eq!(room(&[("secrets", "2", "3"), ("limits.cpu", "1", "0")]), None, "no limit for these pods");
    }
}
