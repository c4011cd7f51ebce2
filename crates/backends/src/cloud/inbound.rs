//! Inbound rules that allow more than the runner host to reach a pool's instances; [`judge`] turns them into findings.

use std::net::IpAddr;

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};

/// Ranges of IPv4 and IPv6 addresses that are larger than this count as the whole world, so halves of it do, too.
const WORLD: (u32, u32) = (8, 16);

/// An access that a rule, group or tag allows beyond that of the runner host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exposure {
    /// The rule, as it begins a sentence.
    pub rule: String,
    pub allows: Allows,
}

/// The sources that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allows {
    /// Any address, from this range.
    World(String),
    /// The pool's instances among each other, from this source.
    Members(String),
    /// The sources that may reach the runner host: it bears the same group or tag.
    SharedWithManager,
}

/// Codes of a cloud's findings.
#[derive(Debug, Clone, Copy)]
pub struct InboundCodes {
    pub world: &'static str,
    pub members: &'static str,
    pub manager: &'static str,
}

/// The findings, each once.
pub fn judge(pool: &PoolName, exposures: &[Exposure], codes: InboundCodes) -> Vec<Finding> {
    let mut exposures = exposures.to_vec();
    exposures.sort();
    exposures.dedup();
    let finding = |Exposure { rule, allows }: Exposure| {
        let (code, message, remedy) = match allows {
            Allows::World(range) => (
                codes.world,
                format!("{rule} allows inbound traffic to pool `{pool}` from everywhere ({range})"),
                "allow TCP to `ssh_port` from the runner host's address only",
            ),
            Allows::Members(source) => (
                codes.members,
                format!("{rule} lets the instances of pool `{pool}` reach each other (from {source})"),
                "allow TCP to `ssh_port` from the runner host's address only: a job must not reach another job's \
                 instance",
            ),
            Allows::SharedWithManager => (
                codes.manager,
                format!("{rule} of pool `{pool}` is also the runner host's"),
                "give the pool one of its own: whatever trusts the runner host by it trusts jobs, too",
            ),
        };
        Finding { code, severity: Severity::Warning, message, remedy: Some(remedy.to_owned()) }
    };
    exposures.into_iter().map(finding).collect()
}

/// The sources that a rule with this range allows. `subnets`: the ranges of the pool's instances.
pub fn of_range(range: &str, subnets: &[String]) -> Option<Allows> {
    let source = AddressRange::parse(range)?;
    if source.is_world() {
        return Some(Allows::World(range.to_owned()));
    }
    let has_instances =
        subnets.iter().filter_map(|text| AddressRange::parse(text)).any(|own| source.includes(own));
    has_instances.then(|| Allows::Members(range.to_owned()))
}

/// True unless the protocol only carries messages about the network, such as pings.
pub fn carries_data(protocol: &str) -> bool {
    !["icmp", "1", "icmpv6", "ipv6-icmp", "58"].contains(&protocol.to_ascii_lowercase().as_str())
}

/// A range of addresses. IPv4 addresses are the first 32 bits.
#[derive(Debug, Clone, Copy)]
struct AddressRange {
    is_ipv6: bool,
    first: u128,
    prefix: u32,
}

impl AddressRange {
    /// `10.0.0.0/8`, or one address.
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
            None => (text, None),
        };
        let (is_ipv6, first, longest) = match address.parse().ok()? {
            IpAddr::V4(address) => (false, u128::from(address.to_bits()) << 96, 32),
            IpAddr::V6(address) => (true, address.to_bits(), 128),
        };
        let prefix = prefix.unwrap_or(longest);
        (prefix <= longest).then_some(Self { is_ipv6, first, prefix })
    }

    fn is_world(self) -> bool {
        self.prefix < if self.is_ipv6 { WORLD.1 } else { WORLD.0 }
    }

    fn includes(self, other: Self) -> bool {
        let differ = (self.first ^ other.first).checked_shr(128 - self.prefix).unwrap_or_default();
        self.is_ipv6 == other.is_ipv6 && self.prefix <= other.prefix && differ == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_world_or_includes_the_instances_or_neither() {
        let subnets = ["10.1.2.0/24", "2001:db8:1:2::/64"].map(str::to_owned);
        let world = |range: &str| Some(Allows::World(range.to_owned()));
        let members = |range: &str| Some(Allows::Members(range.to_owned()));
        for range in ["0.0.0.0/0", "128.0.0.0/1", "8.0.0.0/7", "::/0", "2000::/3"] {
            assert_eq!(of_range(range, &subnets), world(range), "{range}");
        }
        for range in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "2001:db8::/32", "2001:db8:1:2::/64"] {
            assert_eq!(of_range(range, &subnets), members(range), "{range}");
        }
        for range in [
            "10.1.2.7/32",
            "10.1.2.7",
            "10.2.0.0/16",
            "11.0.0.0/8",
            "a01:200::/24",
            "::1/128",
            "",
            "/0",
            "10.0.0.0/33",
        ] {
            assert_eq!(of_range(range, &subnets), None, "{range}");
        }
    }

    #[test]
    fn each_exposure_is_one_warning() {
        let codes = InboundCodes { world: "open", members: "members", manager: "manager" };
        let of = |allows| Exposure { rule: "rule `a`".to_owned(), allows };
        let world = of(Allows::World("::/0".to_owned()));
        let exposures =
            [of(Allows::SharedWithManager), of(Allows::Members("sg-1".to_owned())), world.clone(), world];
        let found = judge(&PoolName::new("linux"), &exposures, codes);
        let found: Vec<_> = found.iter().map(|one| (one.code, one.severity, one.message.as_str())).collect();
        let wanted = [
            ("open", "rule `a` allows inbound traffic to pool `linux` from everywhere (::/0)"),
            ("members", "rule `a` lets the instances of pool `linux` reach each other (from sg-1)"),
            ("manager", "rule `a` of pool `linux` is also the runner host's"),
        ];
        assert_eq!(found, wanted.map(|(code, message)| (code, Severity::Warning, message)));
    }

    #[test]
    fn pings_carry_no_data() {
        assert!(["-1", "all", "tcp", "17", "esp"].into_iter().all(carries_data));
        assert!(!["icmp", "ICMP", "58"].into_iter().any(carries_data));
    }
}
