//! The effects of a namespace's LimitRanges on a pool's pods.

use std::collections::BTreeMap;

use super::settings::milli;

/// Amounts by resource, such as `memory`.
pub(super) type Amounts = BTreeMap<String, String>;

/// Resources of the container that jobs run in, as its pod requests them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PodResources {
    pub(super) requests: Amounts,
    pub(super) limits: Amounts,
}

/// An item of a LimitRange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LimitRangeItem {
    /// The LimitRange.
    pub(super) name: String,
    /// The kind of object that the item limits: `Container`, `Pod`.
    pub(super) kind: String,
    pub(super) min: Amounts,
    pub(super) max: Amounts,
    /// Limits of containers that have none.
    pub(super) default: Amounts,
    /// Requests of containers that have none.
    pub(super) default_request: Amounts,
    /// The maximum of a limit, as a multiple of its request.
    pub(super) ratio: Amounts,
}

/// The effects of a LimitRange on a pool's pods, each as the predicate of a sentence about the LimitRange.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// The reasons why it refuses them.
    pub(super) refused: Vec<String>,
    /// Limits that it sets.
    pub(super) set: Vec<String>,
}

/// The effects of all ranges on a pod, by the ranges' names.
pub(super) fn effects(ranges: &[LimitRangeItem], wanted: &PodResources) -> Vec<(String, Effects)> {
    let filled = filled(ranges, wanted);
    let of_range = |range: &LimitRangeItem| (range.name.clone(), range.effects(wanted, &filled));
    let all = ranges.iter().map(of_range);
    all.filter(|(_, effects)| *effects != Effects::default()).collect()
}

/// The pod's resources with the defaults of all ranges.
fn filled(ranges: &[LimitRangeItem], wanted: &PodResources) -> PodResources {
    let PodResources { mut requests, mut limits } = wanted.clone();
    // A request that is missing is its limit, before any default.
    for (resource, limit) in &wanted.limits {
        requests.entry(resource.clone()).or_insert_with(|| limit.clone());
    }
    for range in ranges.iter().filter(|range| range.is_of_container()) {
        for (resource, amount) in &range.default {
            limits.entry(resource.clone()).or_insert_with(|| amount.clone());
        }
        for (resource, amount) in &range.default_request {
            requests.entry(resource.clone()).or_insert_with(|| amount.clone());
        }
    }
    PodResources { requests, limits }
}

impl LimitRangeItem {
    /// True if it gives containers a limit of this resource that have none.
    pub(super) fn limits_containers(&self, resource: &str) -> bool {
        self.is_of_container() && self.default.contains_key(resource)
    }

    fn is_of_container(&self) -> bool {
        self.kind == "Container"
    }

    fn effects(&self, wanted: &PodResources, filled: &PodResources) -> Effects {
        let mut effects = Effects::default();
        if !self.is_of_container() && self.kind != "Pod" {
            return effects;
        }
        // A pod has at least what this container has. Its other containers are not counted here.
        let each = if self.is_of_container() { "a container" } else { "a pod" };
        for (resource, most) in &self.max {
            let limit = filled.limits.get(resource).or(filled.requests.get(resource));
            if let Some(limit) = limit.filter(|limit| is_less(most, limit)) {
                effects.refused.push(format!("allows {each} at most {most} of {resource}, not {limit}"));
            }
        }
        if !self.is_of_container() {
            return effects;
        }
        for (resource, least) in &self.min {
            if let Some(request) = filled.requests.get(resource).filter(|request| is_less(request, least)) {
                effects.refused.push(format!("demands at least {least} of {resource}, not {request}"));
            }
        }
        for (resource, most) in &self.ratio {
            let ratio = |limit: &String, request: &String| {
                let limit = milli(limit)?;
                let request = milli(request)?;
                let most = milli(most)?;
                (limit.saturating_mul(1_000) > request.saturating_mul(most)).then_some(())
            };
            if let (Some(limit), Some(request)) = (filled.limits.get(resource), filled.requests.get(resource))
                && ratio(limit, request).is_some()
            {
                effects.refused.push(format!(
                    "allows a limit of {resource} of at most {most} times its request, not {limit} for {request}"
                ));
            }
        }
        for (resource, amount) in self.default.iter().filter(|(name, _)| !wanted.limits.contains_key(*name)) {
            match filled.requests.get(resource).filter(|request| is_less(amount, request)) {
                Some(request) => effects.refused.push(format!(
                    "sets a limit of {amount} of {resource}, which is less than the pod requests ({request})"
                )),
                None => effects.set.push(format!("sets a limit of {amount} of {resource}")),
            }
        }
        effects
    }
}

/// False also if either amount is not understood.
fn is_less(one: &str, other: &str) -> bool {
    milli(one).zip(milli(other)).is_some_and(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(all: &[(&str, &str)]) -> Amounts {
        all.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
    }

    fn container() -> LimitRangeItem {
        LimitRangeItem { name: "r".to_owned(), kind: "Container".to_owned(), ..LimitRangeItem::default() }
    }

    /// The sentences about a pod of 4Gi that requests 2 processors.
    fn told(range: LimitRangeItem) -> Vec<String> {
        let wanted = PodResources {
            requests: amounts(&[("cpu", "2"), ("memory", "4Gi")]),
            limits: amounts(&[("memory", "4Gi")]),
        };
        let all = effects(&[range], &wanted);
        let sentences = all.into_iter().map(|(_, effects)| {
            let set = effects.set.into_iter().map(|text| format!("note: {text}"));
            effects.refused.into_iter().chain(set).collect::<Vec<_>>()
        });
        sentences.flatten().collect()
    }

    #[test]
    fn a_range_that_a_pod_fits_has_no_effect() {
        let range = LimitRangeItem {
            max: amounts(&[("memory", "4Gi"), ("cpu", "2")]),
            min: amounts(&[("cpu", "2000m")]),
            ratio: amounts(&[("memory", "1")]),
            ..container()
        };
        assert_eq!(told(range), Vec::<String>::new());
        let volumes = LimitRangeItem {
            kind: "PersistentVolumeClaim".to_owned(),
            max: amounts(&[("memory", "1")]),
            ..container()
        };
        assert_eq!(told(volumes), Vec::<String>::new());
    }

    #[test]
    fn each_bound_has_its_sentence() {
        for (range, expected) in [
            (
                LimitRangeItem { max: amounts(&[("memory", "64Mi")]), ..container() },
                "allows a container at most 64Mi of memory, not 4Gi",
            ),
            (
                LimitRangeItem { kind: "Pod".to_owned(), max: amounts(&[("cpu", "1500m")]), ..container() },
                "allows a pod at most 1500m of cpu, not 2",
            ),
            (
                LimitRangeItem { min: amounts(&[("cpu", "4")]), ..container() },
                "demands at least 4 of cpu, not 2",
            ),
            (
                LimitRangeItem {
                    default: amounts(&[("cpu", "8")]),
                    ratio: amounts(&[("cpu", "3")]),
                    ..container()
                },
                "allows a limit of cpu of at most 3 times its request, not 8 for 2",
            ),
            (
                LimitRangeItem { default: amounts(&[("cpu", "500m")]), ..container() },
                "sets a limit of 500m of cpu, which is less than the pod requests (2)",
            ),
            (
                LimitRangeItem { default: amounts(&[("cpu", "3"), ("memory", "1Gi")]), ..container() },
                "note: sets a limit of 3 of cpu",
            ),
            (
                LimitRangeItem { default: amounts(&[("ephemeral-storage", "1Gi")]), ..container() },
                "note: sets a limit of 1Gi of ephemeral-storage",
            ),
        ] {
            assert_eq!(told(range).first().map(String::as_str), Some(expected));
        }
    }
}
