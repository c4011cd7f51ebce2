//! Checks that the pool's subnetworks have the kind of address that `address` sets, and finds their ranges.

use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::Subnetwork;
use google_cloud_compute_v1::model::subnetwork::{Ipv6AccessType, StackType};

use super::super::super::findings::Facts;
use super::super::super::settings::Settings;
use super::super::ComputeEngine;
use super::super::client::{Catalogue, answer};
use super::super::machines::{PAGE, last};
use super::{by_region, is_forbidden, message};

/// Does nothing without IPv6: only IPv6 addresses depend on the subnetwork.
pub(super) async fn look_up(engine: &ComputeEngine, catalogue: &Catalogue, facts: &mut Facts) {
    let settings = &engine.settings;
    if !settings.has_ipv6() {
        return;
    }
    for (region, here) in by_region(settings) {
        let problem = match of_region(settings, catalogue, region).await {
            None => None,
            Some(Ok(found)) => problem(&found, settings.public_ip),
            Some(Err(error)) if is_forbidden(&error) => {
                facts.not_checked.push("get subnetworks");
                None
            }
            Some(Err(error)) => Some(message(&error)),
        };
        let Some(why) = problem else { continue };
        facts.refused.extend(here.iter().map(|offering| (offering.name.to_string(), why.clone())));
    }
    facts.not_checked.dedup();
}

/// The table's subnetwork for machines of a region; `None` if the table has none.
pub(super) async fn of_region(
    settings: &Settings,
    catalogue: &Catalogue,
    region: &str,
) -> Option<Answer<Subnetwork>> {
    let named = settings.subnetwork.as_ref()?;
    let project = named.project.as_ref().unwrap_or(&settings.project);
    let get = catalogue.subnetworks.get().set_project(project);
    let get = get.set_region(named.region.as_deref().unwrap_or(region)).set_subnetwork(&named.name);
    Some(answer(get.send()).await)
}

/// The ranges of addresses of the pool's instances: of the table's subnetwork, or of the network's own ones.
pub(super) async fn ranges(
    settings: &Settings,
    catalogue: &Catalogue,
    project: &str,
    network: &str,
) -> Answer<Vec<String>> {
    let mut found = Vec::new();
    for region in by_region(settings).into_keys() {
        if let Some(subnetwork) = of_region(settings, catalogue, region).await {
            found.push(subnetwork?);
            continue;
        }
        let mut next = None;
        loop {
            let page = catalogue.subnetworks.list().set_project(project).set_region(region);
            let page = page.set_max_results(PAGE).set_or_clear_page_token(next.take());
            let page = answer(page.send()).await?;
            let is_here = |one: &Subnetwork| one.network.as_deref().map(last) == Some(network);
            found.extend(page.items.into_iter().filter(is_here));
            next = page.next_page_token.filter(|token| !token.is_empty());
            if next.is_none() {
                break;
            }
        }
    }
    let ranges = |one: Subnetwork| {
        [one.ip_cidr_range, one.internal_ipv_6_prefix, one.external_ipv_6_prefix].into_iter().flatten()
    };
    Ok(found.into_iter().flat_map(ranges).collect())
}

/// Why machines in it get no IPv6 address, or one of the wrong kind.
fn problem(found: &Subnetwork, public_ip: bool) -> Option<String> {
    let name = found.name.as_deref().unwrap_or_default();
    match (&found.stack_type, &found.ipv_6_access_type) {
        (Some(StackType::Ipv4Ipv6), Some(Ipv6AccessType::External)) if !public_ip => {
            Some(format!("subnetwork `{name}` has external IPv6 addresses, which require `public_ip = true`"))
        }
        (Some(StackType::Ipv4Ipv6), Some(Ipv6AccessType::Internal)) if public_ip => Some(format!(
            "subnetwork `{name}` has only internal IPv6 addresses, but `public_ip` requires an external one"
        )),
        (Some(StackType::Ipv4Ipv6), _) => None,
        (Some(StackType::Ipv6Only), _) => {
            Some(format!("subnetwork `{name}` has no IPv4 addresses, which instances need in addition"))
        }
        _ => Some(format!("subnetwork `{name}` has no IPv6 addresses (its stack type is not IPV4_IPV6)")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_subnetwork_fits_by_its_stack_and_its_kind_of_access() {
        for (stack, access, internal, external) in [
            ("IPV4_ONLY", None, Some("has no IPv6 addresses"), Some("has no IPv6 addresses")),
            ("IPV6_ONLY", Some("EXTERNAL"), Some("has no IPv4 addresses"), Some("has no IPv4 addresses")),
            ("IPV4_IPV6", Some("INTERNAL"), None, Some("has only internal IPv6 addresses")),
            ("IPV4_IPV6", Some("EXTERNAL"), Some("which require `public_ip = true`"), None),
        ] {
            let shown = json!({ "name": "ci", "stackType": stack, "ipv6AccessType": access });
            let found: Subnetwork = serde_json::from_value(shown).unwrap();
            for (public_ip, wanted) in [(false, internal), (true, external)] {
                let problem = problem(&found, public_ip);
                assert_eq!(
                    problem.is_some(),
                    wanted.is_some(),
                    "{stack} {access:?} {public_ip}: {problem:?}"
                );
                assert!(
                    problem.unwrap_or_default().contains(wanted.unwrap_or_default()),
                    "{stack} {access:?}"
                );
            }
        }
    }
}
