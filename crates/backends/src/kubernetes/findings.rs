//! Findings of `doctor` from the API server's answers.

use std::collections::BTreeMap;

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::Demand;

use super::limit_ranges::{self, LimitRangeItem, PodResources};
use super::settings::{JobResources, milli};
use crate::cloud::findings::{PoolFindings, QuotaHeadroom};

/// The oldest version whose behaviour is known.
const OLDEST: (u32, u32) = (1, 31);

/// The API server's answers.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterFacts {
    pub(super) namespace: String,
    /// The server's error, if no further call was possible.
    pub(super) unreachable: Option<String>,
    /// The reason why the namespace seems to be missing, as the predicate of a sentence about it.
    pub(super) no_namespace: Option<&'static str>,
    /// The server's version, such as `1.34`.
    pub(super) version: Option<(u32, u32)>,
    /// The permissions that the role lacks, such as `delete pods`.
    pub(super) denied: Vec<String>,
    /// The calls that only `doctor` needs and may not make.
    pub(super) not_checked: Vec<&'static str>,
    /// The offerings whose pods the server would refuse, with its errors.
    pub(super) refused: Vec<(String, String)>,
    /// The reason why the server would refuse a pod of a job with a service.
    pub(super) refused_order: Option<String>,
    /// The limits that services of jobs lack, by the key that sets each, and the resource.
    pub(super) unlimited: Vec<(&'static str, &'static str)>,
    /// The quotas of the namespace.
    pub(super) quotas: Vec<NamespaceQuota>,
    /// The LimitRanges of the namespace, and what a pod requests.
    pub(super) ranges: Vec<LimitRangeItem>,
    pub(super) wanted: PodResources,
    /// The share of quotas that one pod uses.
    pub(super) each: JobResources,
    /// The server's clock minus the runner host's, in seconds.
    pub(super) clock_ahead_s: Option<i64>,
}

/// A ResourceQuota.
#[derive(Debug, Clone, Default)]
pub(super) struct NamespaceQuota {
    pub(super) name: String,
    /// The limit and the use of each resource.
    pub(super) resources: BTreeMap<String, (String, String)>,
}

impl NamespaceQuota {
    /// The number of further pods that the quota allows, by its tightest resource; `None` without a limit for pods.
    fn headroom(&self, namespace: &str, each: &JobResources) -> Option<QuotaHeadroom> {
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
            let (hard, used) = self.resources.get(name)?;
            let left = milli(hard)?.saturating_sub(milli(used)?);
            let each = milli(use_.as_deref()?).filter(|each| *each > 0)?;
            Some((u32::try_from(left / each).unwrap_or(u32::MAX), name))
        });
        let (machines, resource) = fits.min_by_key(|(machines, _)| *machines)?;
        Some(QuotaHeadroom { machines, of: format!("in `{namespace}` (quota `{}`, {resource})", self.name) })
    }
}

/// True for the API server's sentence about a pod that a LimitRange refuses.
fn is_of_limit_range(error: &str) -> bool {
    let of_range = ["usage per Container is", "usage per Pod is", "limit to request ratio per Container is"];
    of_range.iter().any(|part| error.contains(part)) || error.contains("must be less than or equal to")
}

/// The findings about the effects of the namespace's LimitRanges on the pods.
fn range_findings(pool: &PoolName, facts: &ClusterFacts) -> Vec<Finding> {
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
fn unlimited_services(pool: &PoolName, facts: &ClusterFacts) -> Option<Finding> {
    // A LimitRange gives a limit to containers that have none.
    let is_set = |resource: &str| facts.ranges.iter().any(|range| range.limits_containers(resource));
    let unlimited = facts.unlimited.iter().filter(|(_, resource)| !is_set(resource));
    let (keys, resources): (Vec<_>, Vec<_>) =
        unlimited.map(|(key, resource)| (format!("`{key}`"), *resource)).unzip();
    let keys = keys.join(" and ");
    let resources = resources.join(" and ");
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
pub(super) fn judge(pool: &PoolName, facts: &ClusterFacts, demand: &Demand) -> Vec<Finding> {
    use Severity::{Error, Warning};
    const ROLE: &str = "apply the role of docs/providers/kubernetes.md";
    let namespace = &facts.namespace;
    let mut found = PoolFindings::new(pool);
    let effect = "Kubernetes then ends pods by itself";
    found.check_lifetime("kubernetes-no-lifetime", demand, "pods keep running", effect);
    let service = "the API server's: ages of pods are wrong";
    found.check_clock("kubernetes-clock", Warning, facts.clock_ahead_s, service);
    if let Some(error) = &facts.unreachable {
        let remedy = "check `context`, `kubeconfig`, the credentials and the network";
        found.unreachable("kubernetes-unreachable", "the API server", error, remedy);
        return found.into_vec();
    }
    if let Some((major, minor)) = facts.version.filter(|version| *version < OLDEST) {
        let message =
            format!("the cluster of pool `{pool}` has Kubernetes {major}.{minor}, untested with Greenroom");
        let remedy = format!("use Kubernetes {}.{} or later", OLDEST.0, OLDEST.1);
        found.add("kubernetes-version", Warning, message, remedy);
    }
    if let Some(why) = facts.no_namespace {
        let message = format!("namespace `{namespace}` of pool `{pool}` {why}");
        let remedy =
            format!("correct `namespace`, or create it: `kubectl create namespace {namespace}`; then {ROLE}");
        found.add("kubernetes-namespace", Error, message, remedy);
        return found.into_vec();
    }
    if !facts.denied.is_empty() {
        let denied = facts.denied.join(", ");
        let message = format!("pool `{pool}` is not allowed to {denied} in namespace `{namespace}`");
        found.add("kubernetes-denied", Error, message, ROLE);
    }
    let of_ranges = range_findings(pool, facts);
    // The server's own sentence about a LimitRange says less.
    let is_told = of_ranges.iter().any(|finding| finding.severity == Error);
    let refused: Vec<_> =
        facts.refused.iter().filter(|(_, error)| !(is_told && is_of_limit_range(error))).cloned().collect();
    let remedy = "correct the pool's table, its `pod`, or the namespace's policies";
    found.refused_offerings("kubernetes-refused", "Kubernetes", &refused, remedy);
    if let Some(error) = &facts.refused_order {
        let message = format!("Kubernetes would refuse pods of jobs with services in pool `{pool}`: {error}");
        let remedy =
            "set `service_cpu` and `service_memory`, or correct the pool's `pod` or the namespace's policies";
        found.add("kubernetes-order", Error, message, remedy);
    }
    // Each quota holds for all pods, so that the tightest one counts.
    let headroom = facts.quotas.iter().filter_map(|quota| quota.headroom(namespace, &facts.each));
    let tightest = headroom.min_by_key(|headroom| headroom.machines);
    let remedy = "raise the quota of the namespace, or lower `max_instances`";
    found.check_quotas("kubernetes-quota", tightest.as_slice(), demand, remedy);
    found.not_checked("kubernetes-not-checked", &facts.not_checked, ROLE);
    found.extend(unlimited_services(pool, facts).into_iter().chain(of_ranges));
    found.into_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn codes(facts: &ClusterFacts, demand: &Demand) -> Vec<&'static str> {
        judge(&PoolName::new("linux"), facts, demand).iter().map(|finding| finding.code).collect()
    }

    fn quota(name: &str, resources: &[(&str, &str, &str)]) -> NamespaceQuota {
        let resource = |(name, hard, used): &(&str, &str, &str)| {
            ((*name).to_owned(), ((*hard).to_owned(), (*used).to_owned()))
        };
        NamespaceQuota { name: name.to_owned(), resources: resources.iter().map(resource).collect() }
    }

    #[test]
    fn a_pool_that_is_well_has_nothing_said_of_it() {
        let demand = Demand {
            max_instances: 8,
            recorded: 3,
            max_lifetime: Some(Duration::from_hours(12)),
            idle_stopped: 0,
        };
        let facts = ClusterFacts { version: Some((1, 34)), ..ClusterFacts::default() };
        assert_eq!(codes(&facts, &demand), Vec::<&str>::new());
    }

    #[test]
    fn each_trouble_has_its_code() {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        let facts = ClusterFacts {
            version: Some((1, 30)),
            denied: vec!["delete pods".to_owned(), "get pods/log".to_owned()],
            refused: vec![("spot".to_owned(), "no PriorityClass".to_owned())],
            refused_order: Some("must specify limits.memory for: svc-0".to_owned()),
            quotas: vec![quota("few", &[("pods", "4", "2")])],
            clock_ahead_s: Some(400),
            not_checked: vec!["list resourcequotas"],
            ..ClusterFacts::default()
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
        let silent = ClusterFacts { unreachable: Some("no route".to_owned()), ..facts };
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
        let range = |resource: &str| LimitRangeItem {
            kind: "Container".to_owned(),
            default: BTreeMap::from([(resource.to_owned(), "1".to_owned())]),
            ..LimitRangeItem::default()
        };
        let messages = |ranges: Vec<LimitRangeItem>| {
            let wanted = PodResources {
                limits: BTreeMap::from([
                    ("cpu".to_owned(), "1".to_owned()),
                    ("memory".to_owned(), "1".to_owned()),
                ]),
                ..PodResources::default()
            };
            let facts =
                ClusterFacts { unlimited: unlimited.clone(), ranges, wanted, ..ClusterFacts::default() };
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
        let facts = ClusterFacts {
            namespace: "ci".to_owned(),
            no_namespace: Some("does not exist"),
            denied: vec!["list pods".to_owned()],
            refused: vec![("spot".to_owned(), "namespaces \"ci\" not found".to_owned())],
            ..ClusterFacts::default()
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
        let range = LimitRangeItem {
            name: "small".to_owned(),
            kind: "Container".to_owned(),
            max: amounts("memory", "64Mi"),
            default: amounts("cpu", "500m"),
            ..LimitRangeItem::default()
        };
        let wanted = PodResources { requests: amounts("memory", "1Gi"), limits: amounts("memory", "1Gi") };
        let refused = "pods \"a\" is forbidden: maximum memory usage per Container is 64Mi, but limit is 1Gi";
        let refused = vec![("default".to_owned(), refused.to_owned())];
        let facts = ClusterFacts {
            namespace: "ci".to_owned(),
            ranges: vec![range],
            wanted,
            refused,
            ..ClusterFacts::default()
        };
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
        let each = JobResources {
            cpu: Some("500m".to_owned()),
            cpu_limit: None,
            memory: Some("4Gi".to_owned()),
            disk: None,
        };
        let headroom = |resources: &[(&str, &str, &str)]| {
            quota("q", resources).headroom("ci", &each).map(|room| format!("{} {}", room.machines, room.of))
        };
        let both = [("pods", "10", "3"), ("requests.cpu", "4", "2500m"), ("limits.memory", "100Gi", "0")];
        assert_eq!(headroom(&both).as_deref(), Some("3 in `ci` (quota `q`, requests.cpu)"));
        assert_eq!(headroom(&[("pods", "2", "3")]).as_deref(), Some("0 in `ci` (quota `q`, pods)"));
        assert_eq!(
            headroom(&[("secrets", "2", "3"), ("limits.cpu", "1", "0")]),
            None,
            "no limit for these pods"
        );
    }
}
