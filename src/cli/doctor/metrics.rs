//! Metrics: whether jobs or other machines reach their address.

use std::net::SocketAddr;

use greenroom_ports::finding::Finding;

use super::code;
use crate::cli::pool::status::KeeperStatus;
use crate::config::{MetricsAddress, PoolConfig};
use crate::provider;

/// Findings about an address at which metrics are served. The tables of these pools build.
pub(super) fn check<'a>(
    address: &MetricsAddress,
    pools: impl Iterator<Item = &'a PoolConfig>,
) -> Vec<Finding> {
    // A Unix socket has a mode, and no guest has the file.
    let MetricsAddress::Tcp(address) = address else { return Vec::new() };
    let mut found: Vec<Finding> = pools.filter_map(|pool| reachable(*address, pool)).collect();
    if !address.ip().is_loopback() {
        let what =
            format!("metrics are served at {address}, which other machines may reach without a password");
        let remedy =
            "set `metrics` to a loopback address or a Unix socket, or let a firewall admit only Prometheus";
        found.push(code::METRICS_EXPOSED.found(what, remedy));
    }
    found
}

/// Whether the keeper that runs serves the metrics that it should.
pub(super) fn missing(wanted: &MetricsAddress, serves: bool, keeper: &KeeperStatus) -> Option<Finding> {
    let what = format!("the keeper does not serve metrics at {wanted}, which `metrics` names");
    let remedy = "restart the keeper, which reads `metrics` when it starts; if that does not help, its log has the reason";
    (!serves && *keeper == KeeperStatus::Runs).then(|| code::METRICS_MISSING.found(what, remedy))
}

fn reachable(address: SocketAddr, pool: &PoolConfig) -> Option<Finding> {
    let reaches = provider::find(&pool.provider.kind).ok()?.reaches?;
    let why = reaches(&pool.name, &pool.provider.table, address)?;
    let what = format!("jobs of pool `{}` reach the metrics at {address}: {why}", pool.name);
    Some(code::METRICS_REACHABLE.found(what, "serve the metrics at a Unix socket: `metrics = \"unix:PATH\"`"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Config;

    fn found(address: &str, provider: &str) -> Vec<Finding> {
        let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        check(&address.parse().unwrap(), config.pools.values())
    }

    #[test]
    fn what_jobs_reach_is_an_error_and_what_machines_reach_a_warning() {
        const REACHED: &str = "metrics-reachable-by-jobs";
        let at = |address: &str| {
            format!(
                "kind = \"static\"\nuser = \"ci\"\nkey = \"/key\"\nhost = [{{name = \"a\", address = \"{address}\"}}]"
            )
        };
        let internet = "kind = \"qemu\"\nnetwork = \"internet\"\nallow = [\"192.0.2.1:9252\", \"git.corp\"]";
        for (address, provider, expected) in [
            ("unix:/run/metrics", "kind = \"local\"", &[][..]),
            ("127.0.0.1:9252", "kind = \"local\"", &[REACHED]),
            ("127.0.0.1:9252", "kind = \"qemu\"", &[]),
            ("127.0.0.1:9252", "kind = \"qemu\"\nnetwork = \"open\"", &[REACHED]),
            (
                "127.0.0.1:9252",
                "kind = \"qemu\"\nnetwork = \"proxy\"\nproxy = \"127.0.0.1:9252\"",
                &[REACHED],
            ),
            ("127.0.0.1:9252", "kind = \"qemu\"\nnetwork = \"proxy\"\nproxy = \"127.0.0.1:3128\"", &[]),
            ("127.0.0.1:9252", internet, &[]),
            ("192.0.2.1:9252", internet, &[REACHED, "metrics-exposed"]),
            ("192.0.2.1:9253", internet, &["metrics-exposed"]),
            ("0.0.0.0:9252", internet, &[REACHED, "metrics-exposed"]),
            ("127.0.0.1:1", &at("localhost"), &[REACHED]),
            ("127.0.0.1:1", &at("10.0.0.1"), &[]),
            ("[::]:9252", "kind = \"gce\"", &["metrics-exposed"]),
            // Its mistakes are findings of their own.
            ("127.0.0.1:9252", "kind = \"qemu\"\nnetwork = \"open\"\nnet = 1", &[]),
            ("127.0.0.1:1", "kind = \"static\"\nhost = [{name = \"a\", address = \"localhost\"}]", &[]),
        ] {
            let codes: Vec<&str> = found(address, provider).iter().map(|finding| finding.code).collect();
            assert_eq!(codes, expected, "{address} {provider}");
        }
    }

    #[test]
    fn only_a_keeper_that_runs_has_to_serve() {
        let address = "127.0.0.1:9252".parse().unwrap();
        for (serves, keeper, expected) in [
            (false, KeeperStatus::Runs, true),
            (true, KeeperStatus::Runs, false),
            (false, KeeperStatus::Absent, false),
            (false, KeeperStatus::Unknown(String::new()), false),
        ] {
            assert_eq!(missing(&address, serves, &keeper).is_some(), expected, "{serves} {keeper:?}");
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let missing = missing(&"unix:/run/metrics".parse().unwrap(), false, &KeeperStatus::Runs);
        found("0.0.0.0:9252", "kind = \"local\"").into_iter().chain(missing).collect()
    }
}
