//! The rules of `network = "internet"` as text for `nft`. Nothing here runs it.
//!
//! Each text is one transaction that may be repeated. All rules are in a table of Greenroom's own, and concern the user
//! IDs of virtual machines only, apart from one rule: only root connects to a machine's forwarded SSH port.
//!
//! A rule judges what opens a connection: the first packet of TCP, and each packet of other protocols. So the answers of
//! a guest's SSH server pass, and the rules need no connection tracking.

use std::net::Ipv4Addr;

use super::allow::{Target, Targets};

/// The table of all machines.
const TABLE: &str = "inet greenroom";

/// Metadata and other services that a cloud offers to the runner host alone.
const METADATA: &str = "169.254.0.0/16, 192.0.0.0/24, 168.63.129.16";

/// Addresses that are not of the internet: private, shared and loopback ones, multicast and reserved ones.
const PRIVATE: &str =
    "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 224.0.0.0/3";

/// The table without any machine.
fn base() -> String {
    format!(
        "add table {TABLE}\n\
         add map {TABLE} guests {{ type uid : verdict; }}\n\
         add set {TABLE} ports {{ type inet_service; }}\n\
         add chain {TABLE} output {{ type filter hook output priority 0; policy accept; }}\n\
         add chain {TABLE} deny\n"
    )
}

fn element(uid: u32) -> String {
    format!("{TABLE} guests {{ {uid} : goto vm-{uid} }}\n")
}

/// Installs the rules of the machine whose QEMU has this user ID. `ports`: its forwarded SSH port, if it is known.
pub(super) fn install(uid: u32, resolvers: &[Ipv4Addr], targets: &Targets, port: Option<u16>) -> String {
    let mut text = base();
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    add(format!("flush chain {TABLE} deny"));
    // QEMU passes on a reset to the guest, and no other answer.
    add(format!("add rule {TABLE} deny meta l4proto tcp reject with tcp reset"));
    add(format!("add rule {TABLE} deny reject"));
    add(format!("flush chain {TABLE} output"));
    // A held connection would keep Greenroom from logging in: the guest's SSH server accepts a few at a time.
    add(format!(
        "add rule {TABLE} output ip daddr 127.0.0.1 tcp dport @ports tcp flags & (syn | ack) == syn meta skuid != 0 goto deny"
    ));
    add(format!("add rule {TABLE} output meta skuid vmap @guests"));
    add(format!("add chain {TABLE} vm-{uid}"));
    add(format!("flush chain {TABLE} vm-{uid}"));
    let mut rule = |rule: String| add(format!("add rule {TABLE} vm-{uid} {rule}"));
    rule("tcp flags & (syn | ack) != syn accept".to_owned());
    rule("meta nfproto ipv6 goto deny".to_owned());
    for resolver in resolvers {
        rule(format!("ip daddr {resolver} {} accept", to_port(53)));
    }
    for target in &targets.addresses {
        rule(accept(target));
    }
    rule("fib daddr type != unicast goto deny".to_owned());
    rule(format!("ip daddr {{ {METADATA} }} goto deny"));
    for target in &targets.others {
        rule(accept(target));
    }
    rule(format!("ip daddr {{ {PRIVATE} }} goto deny"));
    add(format!("add element {}", element(uid).trim_end()));
    text.push_str(&port.map_or_else(String::new, guard_port));
    text
}

fn to_port(port: u16) -> String {
    format!("meta l4proto {{ tcp, udp }} th dport {port}")
}

fn accept(target: &Target) -> String {
    match target.port {
        Some(port) => format!("ip daddr {target} {} accept", to_port(port)),
        None => format!("ip daddr {target} accept"),
    }
}

/// Lets only root connect to a port of 127.0.0.1.
pub(super) fn guard_port(port: u16) -> String {
    format!("add element {TABLE} ports {{ {port} }}\n")
}

/// Prints the rules of a machine; fails if a part of them is missing.
pub(super) fn show(uid: u32) -> String {
    format!(
        "list chain {TABLE} deny\nlist chain {TABLE} output\nlist chain {TABLE} vm-{uid}\nget element {TABLE} guests {{ {uid} : goto vm-{uid} }}\n"
    )
}

/// Removes the rules of a machine, whether they exist or not.
pub(super) fn remove(uid: u32, port: Option<u16>) -> String {
    let base = base();
    let element = element(uid);
    let open = |port| format!("{}delete element {TABLE} ports {{ {port} }}\n", guard_port(port));
    let port = port.map_or_else(String::new, open);
    format!(
        "{base}add chain {TABLE} vm-{uid}\nadd element {element}\
         delete element {TABLE} guests {{ {uid} }}\ndelete chain {TABLE} vm-{uid}\n{port}"
    )
}

/// Removes the table.
pub(super) fn remove_table() -> String {
    format!("add table {TABLE}\ndelete table {TABLE}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of a machine's chain, in their order.
    fn chain(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix("add rule inet greenroom vm-7 ")).collect()
    }

    #[test]
    fn a_guest_reaches_the_internet_and_nothing_near() {
        let text = install(7, &[], &Targets::default(), None);
        assert_eq!(
            chain(&text),
            [
                "tcp flags & (syn | ack) != syn accept",
                "meta nfproto ipv6 goto deny",
                "fib daddr type != unicast goto deny",
                "ip daddr { 169.254.0.0/16, 192.0.0.0/24, 168.63.129.16 } goto deny",
                "ip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, \
                 224.0.0.0/3 } goto deny",
            ]
        );
        assert!(text.ends_with("add element inet greenroom guests { 7 : goto vm-7 }\n"), "{text}");
    }

    #[test]
    fn only_an_address_that_the_operator_wrote_opens_the_runner_host() {
        let target =
            |last: u8, prefix, port| Target { network: (Ipv4Addr::new(10, 0, 0, last), prefix), port };
        let targets = Targets {
            addresses: vec![target(5, 32, None), target(6, 32, Some(443))],
            others: vec![target(0, 24, None), target(7, 32, Some(22))],
        };
        let text = install(7, &[Ipv4Addr::LOCALHOST], &targets, None);
        let rules = chain(&text);
        let at = |rule: &str| {
            rules.iter().position(|found| *found == rule).unwrap_or_else(|| panic!("{rule}: {text}"))
        };
        let own = at("fib daddr type != unicast goto deny");
        let metadata = at("ip daddr { 169.254.0.0/16, 192.0.0.0/24, 168.63.129.16 } goto deny");
        for rule in [
            "ip daddr 127.0.0.1 meta l4proto { tcp, udp } th dport 53 accept",
            "ip daddr 10.0.0.5 accept",
            "ip daddr 10.0.0.6 meta l4proto { tcp, udp } th dport 443 accept",
        ] {
            assert!(at(rule) < own, "{rule}");
        }
        for rule in
            ["ip daddr 10.0.0.0/24 accept", "ip daddr 10.0.0.7 meta l4proto { tcp, udp } th dport 22 accept"]
        {
            assert!(metadata < at(rule) && at(rule) + 1 < rules.len(), "{rule}");
        }
    }

    #[test]
    fn a_text_adds_before_it_flushes_or_deletes() {
        for text in [install(7, &[], &Targets::default(), Some(9)), remove(7, Some(9)), remove_table()] {
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                let Some(rest) = line.strip_prefix("delete ").or_else(|| line.strip_prefix("flush ")) else {
                    continue;
                };
                let what = rest.split(" }").next().unwrap_or(rest);
                let added = format!("add {what}");
                assert!(lines[..at].iter().any(|before| before.starts_with(&added)), "{line}: {text}");
            }
        }
        assert!(install(7, &[], &Targets::default(), Some(9)).contains("ports { 9 }"));
    }
}
