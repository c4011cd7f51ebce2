//! Checks of the pool's network: its subnetworks, its firewall rules, and what the instances share with the runner host.
//!
//! One firewall rule must allow inbound SSH, none should allow more. Only rules of the network are visible, not the
//! organisation's firewall policies, so the findings are warnings. Rules that deny what another one allows are not considered.

use std::time::Duration;

use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::firewall::{Allowed, Direction};
use google_cloud_compute_v1::model::subnetwork::{Ipv6AccessType, StackType};
use google_cloud_compute_v1::model::{Firewall, Subnetwork};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{by_region, is_forbidden, message};
use crate::cloud::inbound::{self, Allows, Exposure};
use crate::gce::calls::ComputeEngine;
use crate::gce::calls::client::{Catalogue, answer};
use crate::gce::calls::machines::{PAGE, last};
use crate::gce::findings::ComputeEngineFacts;
use crate::gce::resource::{self, Net};
use crate::gce::settings::Settings;

const PURPOSE: &str = "list firewall rules";

/// Checks the rules of the pool's network.
pub(super) async fn check_firewall(
    engine: &ComputeEngine,
    catalogue: &Catalogue,
    facts: &mut ComputeEngineFacts,
) {
    let settings = &engine.settings;
    let (project, network) = match network(settings, catalogue).await {
        Ok(Some(found)) => found,
        Ok(None) => return,
        Err(error) if is_forbidden(&error) => return facts.not_checked.push(PURPOSE),
        Err(error) => return facts.refused.push(("every offering".to_owned(), message(&error))),
    };
    let subnets = match ranges(settings, catalogue, &project, &network).await {
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
    let found = subnetwork_of_region(settings, catalogue, region).await.transpose()?;
    let network = found.and_then(|found| found.network).map(|network| last(&network).to_owned());
    Ok(settings.subnetwork.as_ref().map(owner).zip(network))
}

/// True if the rule allows inbound SSH, from any source with the kind of address that `address` sets. Whether the
/// runner host is among the sources is not known here.
fn allows_ssh(rule: &Firewall, settings: &Settings) -> bool {
    let opens = rule.allowed.iter().any(|allowed| opens(allowed, settings.common.ssh_port));
    applies(rule, settings) && opens && has_sources(rule, settings.has_ipv6())
}

/// The accesses that a rule allows beyond SSH from the runner host.
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

/// Checks that the subnetworks have the kind of address that `address` sets. Only IPv6 addresses depend on the subnetwork.
pub(super) async fn check_subnetworks(
    engine: &ComputeEngine,
    catalogue: &Catalogue,
    facts: &mut ComputeEngineFacts,
) {
    let settings = &engine.settings;
    if !settings.has_ipv6() {
        return;
    }
    for (region, here) in by_region(settings) {
        let problem = match subnetwork_of_region(settings, catalogue, region).await {
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
async fn subnetwork_of_region(
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
async fn ranges(
    settings: &Settings,
    catalogue: &Catalogue,
    project: &str,
    network: &str,
) -> Answer<Vec<String>> {
    let mut found = Vec::new();
    for region in by_region(settings).into_keys() {
        if let Some(subnetwork) = subnetwork_of_region(settings, catalogue, region).await {
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

/// The reason why machines in the subnetwork get no IPv6 address, or one of the wrong kind.
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

/// The file with the name that the firmware gives to the machine, and that of Compute Engine's instances.
const PRODUCT: (&str, &str) = ("/sys/class/dmi/id/product_name", "Google Compute Engine");
/// The variable that names another metadata server to Google's own tools.
const OTHER_SERVER: &str = "GCE_METADATA_HOST";
const SERVER: &str = "169.254.169.254";
/// Limit for an answer, which comes from the host of the machine.
const ANSWER: Duration = Duration::from_secs(2);
const LONGEST: u64 = 64 << 10;

/// The pool's tags and its account, as far as they are also the runner host's. Empty if those are unknown.
pub(super) async fn shared(settings: &Settings) -> Vec<Exposure> {
    let Some(server) = server() else { return Vec::new() };
    let tags: Vec<String> = match ask(&server, "tags").await {
        Some(text) => serde_json::from_str(&text).unwrap_or_default(),
        None => Vec::new(),
    };
    let tags = tags.into_iter().filter(|tag| settings.network_tags.contains(tag));
    let mut shared: Vec<String> = tags.map(|tag| format!("network tag `{tag}`")).collect();
    if let Some(account) = &settings.service_account {
        let own = ask(&server, "service-accounts/default/email").await;
        let own = own.filter(|own| own.trim() == account.email);
        shared.extend(own.map(|own| format!("service account {}", own.trim())));
    }
    shared.into_iter().map(|rule| Exposure { rule, allows: Allows::SharedWithManager }).collect()
}

/// The metadata server; `None` outside Compute Engine.
fn server() -> Option<String> {
    let other = std::env::var(OTHER_SERVER).ok().filter(|server| !server.is_empty());
    let is_instance = || {
        let name = fs_err::read_to_string(PRODUCT.0).unwrap_or_default();
        (name.trim() == PRODUCT.1).then(|| SERVER.to_owned())
    };
    other.or_else(is_instance)
}

/// An entry about this machine.
async fn ask(server: &str, entry: &str) -> Option<String> {
    let call = async {
        let (host, port) = server.rsplit_once(':').unwrap_or((server, "80"));
        let address =
            greenroom_system::names::look_up(host, port.parse().ok()?).await.ok()?.into_iter().next()?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!(
            "GET /computeMetadata/v1/instance/{entry} HTTP/1.1\r\nHost: {server}\r\nMetadata-Flavor: Google\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer).await.ok()?;
        body(&answer).map(str::to_owned)
    };
    tokio::time::timeout(ANSWER, call).await.ok().flatten()
}

/// The body of an answer; `None` if it is an error, or another server's.
fn body(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let is_good = lines.next()?.split(' ').nth(1) == Some("200");
    let is_googles = |line: &str| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("Metadata-Flavor") && value.trim().eq_ignore_ascii_case("Google")
        })
    };
    (is_good && lines.any(is_googles)).then_some(body)
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
        let world = |range: &str| Allows::World(range.to_owned());
        let members = Allows::Members;
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

    #[test]
    fn only_a_metadata_server_is_believed() {
        let flavor = "metadata-flavor: Google\r\n";
        assert_eq!(body(&format!("HTTP/1.1 200 OK\r\n{flavor}\r\n[\"ci\"]")), Some("[\"ci\"]"));
        for answer in [
            format!("HTTP/1.1 404 Not Found\r\n{flavor}\r\n[\"ci\"]"),
            "HTTP/1.1 200 OK\r\nServer: a\r\n\r\n[\"ci\"]".to_owned(),
            "SSH-2.0-a\r\n".to_owned(),
        ] {
            assert_eq!(body(&answer), None, "{answer}");
        }
    }
}
