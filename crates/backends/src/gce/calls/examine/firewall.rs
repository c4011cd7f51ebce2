//! Checks the firewall rules that apply to the pool's instances: one of them must allow inbound SSH, none should allow more.
//!
//! Only rules of the network: the organisation's firewall policies are not visible, so the findings are warnings. Nor are
//! rules that deny what another one allows.

use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::Firewall;
use google_cloud_compute_v1::model::firewall::{Allowed, Direction};

use super::super::super::findings::Facts;
use super::super::super::resource::{self, Net};
use super::super::super::settings::Settings;
use super::super::ComputeEngine;
use super::super::client::{Catalogue, answer};
use super::super::machines::{PAGE, last};
use super::{is_forbidden, message, subnetworks};
use crate::cloud::inbound::{self, Allows, Exposure};

const PURPOSE: &str = "list firewall rules";

pub(super) async fn look_up(engine: &ComputeEngine, catalogue: &Catalogue, facts: &mut Facts) {
    let settings = &engine.settings;
    let (project, network) = match network(settings, catalogue).await {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(error) if is_forbidden(&error) => return facts.not_checked.push(PURPOSE),
        Err(error) => return facts.refused.push(("every offering".to_owned(), message(&error))),
    };
    let subnets = match subnetworks::ranges(settings, catalogue, &project, &network).await {
        Ok(found) => found,
        Err(error) if is_forbidden(&error) => {
            facts.not_checked.push("list subnetworks");
            Vec::new()
        }
        Err(error) => return facts.refused.push(("every offering".to_owned(), message(&error))),
    };
    let mut is_closed = true;
    let mut next = None;
    loop {
        let page = catalogue.firewalls.list().set_project(&project).set_max_results(PAGE);
        let Ok(page) = answer(page.set_or_clear_page_token(next.take()).send()).await else {
            return facts.not_checked.push(PURPOSE);
        };
        for rule in page.items.iter().filter(|rule| rule.network.as_deref().map(last) == Some(&network)) {
            is_closed &= !allows_ssh(rule, settings);
            facts.exposures.extend(exposures(rule, settings, &subnets));
        }
        next = page.next_page_token.filter(|token| !token.is_empty());
        if next.is_none() {
            facts.closed = is_closed.then_some(network);
            return;
        }
    }
}

/// Project and name of the pool's network, read from the subnetwork if the table has no network.
async fn network(settings: &Settings, catalogue: &Catalogue) -> Answer<Option<(String, String)>> {
    let owner = |net: &Net| net.project.clone().unwrap_or_else(|| settings.project.clone());
    if let Some(network) = &settings.network {
        return Ok(Some((owner(network), network.name.clone())));
    }
    let Some(region) = resource::region(&settings.common.offerings[0].place) else { return Ok(None) };
    let found = subnetworks::of_region(settings, catalogue, region).await.transpose()?;
    let network = found.and_then(|found| found.network).map(|network| last(&network).to_owned());
    Ok(settings.subnetwork.as_ref().map(owner).zip(network))
}

/// True if the rule allows inbound SSH, from any source with the kind of address that `address` sets. Whether the
/// runner host is among the sources is not known here.
fn allows_ssh(rule: &Firewall, settings: &Settings) -> bool {
    let opens = rule.allowed.iter().any(|allowed| opens(allowed, settings.common.ssh_port));
    applies(rule, settings) && opens && has_sources(rule, settings.has_ipv6())
}

/// What a rule allows beyond SSH from the runner host.
fn exposures(rule: &Firewall, settings: &Settings, subnets: &[String]) -> Vec<Exposure> {
    let carries_data =
        |allowed: &Allowed| inbound::carries_data(allowed.ip_protocol.as_deref().unwrap_or_default());
    if !applies(rule, settings) || !rule.allowed.iter().any(carries_data) {
        return Vec::new();
    }
    let from_machines = !rule.source_tags.is_empty() || !rule.source_service_accounts.is_empty();
    let everywhere = (!from_machines && rule.source_ranges.is_empty()).then_some("0.0.0.0/0");
    let ranges = rule.source_ranges.iter().map(String::as_str).chain(everywhere);
    let of_ranges = ranges.filter_map(|range| inbound::of_range(range, subnets));
    let account = settings.service_account.as_ref().map(|account| &account.email);
    let tags = rule.source_tags.iter().filter(|tag| settings.network_tags.contains(tag));
    let accounts = rule.source_service_accounts.iter().filter(|source| Some(*source) == account);
    let members = tags.map(|tag| format!("network tag `{tag}`"));
    let members = members.chain(accounts.map(|account| format!("service account {account}")));
    let name = rule.name.as_deref().unwrap_or_default();
    let exposure = |allows| Exposure { rule: format!("firewall rule `{name}`"), allows };
    of_ranges.chain(members.map(Allows::Members)).map(exposure).collect()
}

/// True if the rule is enabled, inbound, and for the pool's instances.
fn applies(rule: &Firewall, settings: &Settings) -> bool {
    let account = settings.service_account.as_ref().map(|account| &account.email);
    let for_instances = (rule.target_tags.is_empty() && rule.target_service_accounts.is_empty())
        || rule.target_tags.iter().any(|tag| settings.network_tags.contains(tag))
        || rule.target_service_accounts.iter().any(|target| Some(target) == account);
    let inward = rule.direction.as_ref().is_none_or(|direction| *direction == Direction::Ingress);
    for_instances && inward && rule.disabled != Some(true)
}

/// True if sources have this kind of address. A rule without sources applies to all of IPv4.
fn has_sources(rule: &Firewall, ipv6: bool) -> bool {
    let machines = !rule.source_tags.is_empty() || !rule.source_service_accounts.is_empty();
    let unrestricted = !machines && rule.source_ranges.is_empty();
    let of_its_kind = rule.source_ranges.iter().any(|range| range.contains(':') == ipv6);
    machines || of_its_kind || (unrestricted && !ipv6)
}

fn opens(allowed: &Allowed, port: u16) -> bool {
    let protocol = allowed.ip_protocol.as_deref().unwrap_or_default().to_ascii_lowercase();
    let within = |range: &String| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        matches!((from.parse::<u16>(), to.parse::<u16>()), (Ok(from), Ok(to)) if (from..=to).contains(&port))
    };
    match protocol.as_str() {
        "all" => true,
        "tcp" | "6" => allowed.ports.is_empty() || allowed.ports.iter().any(within),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;
    use serde_json::{Value, json};

    use super::*;

    fn rule(more: &Value) -> Firewall {
        let mut rule =
            json!({ "direction": "INGRESS", "allowed": [{ "IPProtocol": "tcp", "ports": ["22"] }] });
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(rule).unwrap()
    }

    #[test]
    fn a_rule_is_for_the_kind_of_address_that_its_sources_have() {
        for (more, ipv4, ipv6) in [
            (json!({}), true, false),
            (json!({ "sourceRanges": ["10.0.0.0/8"] }), true, false),
            (json!({ "sourceRanges": ["2001:db8::/32"] }), false, true),
            (json!({ "sourceTags": ["runner"] }), true, true),
            (json!({ "sourceTags": ["runner"], "sourceRanges": ["::/0"] }), true, true),
        ] {
            assert_eq!(
                (has_sources(&rule(&more), false), has_sources(&rule(&more), true)),
                (ipv4, ipv6),
                "{more}"
            );
        }
    }

    #[test]
    fn a_rule_lets_in_whom_it_applies_to_on_the_port() {
        let text = "project = \"my-project\"\nimage = \"ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"\n\
                    network_tags = [\"ci\"]";
        let settings = Settings::read(&PoolName::new("linux"), &text.parse().unwrap()).unwrap();
        for (more, wanted) in [
            (json!({}), true),
            (json!({ "disabled": true }), false),
            (json!({ "direction": "EGRESS" }), false),
            (json!({ "targetTags": ["web"] }), false),
            (json!({ "targetTags": ["web", "ci"] }), true),
            (json!({ "targetServiceAccounts": ["a@b"] }), false),
            (json!({ "allowed": [{ "IPProtocol": "icmp" }] }), false),
            (json!({ "allowed": [{ "IPProtocol": "tcp", "ports": ["80", "1000-2000"] }] }), false),
            (json!({ "allowed": [{ "IPProtocol": "tcp", "ports": ["20-30"] }] }), true),
            (json!({ "allowed": [{ "IPProtocol": "tcp" }] }), true),
            (json!({ "allowed": [{ "IPProtocol": "all" }] }), true),
        ] {
            assert_eq!(allows_ssh(&rule(&more), &settings), wanted, "{more}");
        }
    }

    #[test]
    fn a_rule_is_open_to_the_world_to_members_or_to_neither() {
        let text = "project = \"my-project\"\nimage = \"ci\"\nmachine_types = \"e2-medium\"\nzones = \"us-east1-b\"\n\
                    network_tags = [\"ci\"]\nservice_account = \"ci@x\"";
        let settings = Settings::read(&PoolName::new("linux"), &text.parse().unwrap()).unwrap();
        let subnets = ["10.142.0.0/20".to_owned()];
        let (world, members) = (|range: &str| Allows::World(range.to_owned()), Allows::Members);
        for (more, wanted) in [
            (json!({ "sourceRanges": ["10.142.0.2/32"] }), vec![]),
            (json!({}), vec![world("0.0.0.0/0")]),
            (json!({ "sourceRanges": ["0.0.0.0/0"], "allowed": [{ "IPProtocol": "icmp" }] }), vec![]),
            (json!({ "sourceRanges": ["::/0"], "disabled": true }), vec![]),
            (json!({ "sourceRanges": ["::/0"], "targetTags": ["web"] }), vec![]),
            (json!({ "sourceRanges": ["::/0"], "targetTags": ["ci"] }), vec![world("::/0")]),
            (json!({ "sourceRanges": ["10.128.0.0/9"] }), vec![members("10.128.0.0/9".to_owned())]),
            (json!({ "sourceTags": ["web"] }), vec![]),
            (json!({ "sourceTags": ["web", "ci"] }), vec![members("network tag `ci`".to_owned())]),
            (json!({ "sourceServiceAccounts": ["ci@x"] }), vec![members("service account ci@x".to_owned())]),
        ] {
            let mut rule = rule(&more);
            rule.name = Some("allow".to_owned());
            let found: Vec<_> = exposures(&rule, &settings, &subnets);
            assert!(found.iter().all(|one| one.rule == "firewall rule `allow`"), "{found:?}");
            assert_eq!(found.into_iter().map(|one| one.allows).collect::<Vec<_>>(), wanted, "{more}");
        }
    }
}
