//! The keeper's own reports: whether jobs or other machines reach its metrics, and whether notices are delivered.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use greenroom_core::notice::Notices;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_ports::finding::Finding;

use super::code;
use crate::cli::notify::helper;
use crate::cli::read_model::KeeperStatus;
use crate::cli::ui::plural;
use crate::config::{MetricsAddress, Notify, PoolConfig};
use crate::provider;

/// Findings about an address at which metrics are served. The tables of these pools build.
pub(super) fn check_metrics<'a>(
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

/// The finding about a running keeper that does not serve the configured metrics.
pub(super) fn missing_metrics(
    wanted: &MetricsAddress,
    serves: bool,
    keeper: &KeeperStatus,
) -> Option<Finding> {
    let what = format!("the keeper does not serve metrics at {wanted}, which `metrics` names");
    let remedy = "restart the keeper, which reads `metrics` when it starts; if that does not help, its log has the reason";
    (!serves && keeper.is_running()).then(|| code::METRICS_MISSING.found(what, remedy))
}

fn reachable(address: SocketAddr, pool: &PoolConfig) -> Option<Finding> {
    let reaches = provider::find(&pool.provider.kind).ok()?.reaches?;
    let why = reaches(&pool.name, &pool.provider.table, address)?;
    let what = format!("jobs of pool `{}` reach the metrics at {address}: {why}", pool.name);
    Some(code::METRICS_REACHABLE.found(what, "serve the metrics at a Unix socket: `metrics = \"unix:PATH\"`"))
}

/// Findings about the command and the webhook of notices. Runs neither.
pub(super) fn check_notify(notify: &Notify) -> impl Iterator<Item = Finding> {
    let missing = notify.webhook.as_ref().and_then(helper::missing).map(|problem| without_backends(&problem));
    command(notify).into_iter().chain(missing)
}

fn without_backends(problem: &str) -> Finding {
    let what = format!("notices cannot be delivered: {problem}");
    code::NOTIFY_BACKENDS
        .found(what, "install `greenroom-backends` of the same version in the directory of `greenroom`")
}

fn command(notify: &Notify) -> Option<Finding> {
    let program = notify.command.as_ref()?.first()?;
    let problem = match std::fs::metadata(program) {
        Err(error) => error.to_string(),
        Ok(found) if !found.is_file() => "it is not a file".to_owned(),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => "it is not executable".to_owned(),
        Ok(_) => return None,
    };
    let what = format!("notices cannot be delivered: `{program}`: {problem}");
    Some(code::NOTIFY_COMMAND.found(what, "correct `command` in `[notify]`, or install the program"))
}

/// The finding about a last delivery that failed.
pub(super) fn failed_delivery(notices: &Notices, now: Stamp) -> Option<Finding> {
    let (failure, dropped) = notices.last_failure()?;
    let waiting = plural(notices.waiting(), "notice");
    let what = format!(
        "the last delivery of a notice failed {} ago: {}; {waiting} waiting, {dropped} given up",
        Pretty(now.age_of(failure.at)),
        failure.problem
    );
    let help = if failure.problem.contains("certificate") {
        "correct the host of `webhook`, or add the certificate authority of its server to those of the system or of \
         `SSL_CERT_FILE`, then restart the keeper; notices that wait are delivered within ten minutes"
    } else {
        "correct `[notify]`, then restart the keeper; notices that wait are delivered within ten minutes"
    };
    Some(code::NOTIFY_UNDELIVERED.found(what, help))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use greenroom_core::notation::NOW;
    use greenroom_core::notice::{Condition, NoticeKind};
    use greenroom_ports::host_error::HostError;

    use super::*;
    use crate::config::Config;

    fn found_at(address: &str, provider: &str) -> Vec<Finding> {
        let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        check_metrics(&address.parse().unwrap(), config.pools.values())
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
            let codes: Vec<&str> = found_at(address, provider).iter().map(|finding| finding.code).collect();
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
            (false, KeeperStatus::Unknown(HostError::Io { what: String::new() }), false),
        ] {
            assert_eq!(missing_metrics(&address, serves, &keeper).is_some(), expected, "{serves} {keeper:?}");
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let missing = missing_metrics(&"unix:/run/metrics".parse().unwrap(), false, &KeeperStatus::Runs);
        found_at("0.0.0.0:9252", "kind = \"local\"")
            .into_iter()
            .chain(missing)
            .chain(provoked_by_notices())
            .collect()
    }

    fn failed() -> Notices {
        let message = String::new();
        let help = String::new();
        let pool = Some("a".to_owned());
        let condition = Condition { kind: NoticeKind::BreakerOpen, pool, instance: None, message, help };
        let mut notices = Notices::default();
        notices.observe(&[condition], Duration::ZERO, NOW);
        notices.failed(NOW, "`/bin/false`: exit status: 1");
        notices
    }

    #[test]
    fn a_delivery_that_failed_is_told_until_one_succeeds() {
        let mut notices = failed();
        let what = failed_delivery(&notices, NOW.plus(Duration::from_mins(3))).unwrap().message;
        assert_eq!(
            what,
            "the last delivery of a notice failed 3m ago: `/bin/false`: exit status: 1; 1 notice waiting, 0 given up"
        );
        notices.delivered(NOW);
        assert_eq!(failed_delivery(&notices, NOW), None);
        let mut notices = failed();
        notices.failed(NOW, "https://a:443/…: invalid peer certificate: UnknownIssuer");
        let help = failed_delivery(&notices, NOW).unwrap().remedy.unwrap();
        assert!(help.contains("SSL_CERT_FILE"), "{help}");
    }

    fn found(program: &str) -> Option<Finding> {
        let command = Some(vec![program.to_owned(), "secret".to_owned()]);
        check_notify(&Notify { command, webhook: None, min_interval: Duration::ZERO }).next()
    }

    #[test]
    fn a_command_must_exist_and_be_executable() {
        assert_eq!(found("/bin/sh"), None);
        for (program, expected) in
            [("/no/such", "No such file"), ("/etc", "not a file"), ("/etc/passwd", "not executable")]
        {
            let what = found(program).unwrap().message;
            assert!(what.contains(expected) && !what.contains("secret"), "{what}");
        }
    }

    /// One finding of each code.
    fn provoked_by_notices() -> Vec<Finding> {
        let missing = without_backends("the program `greenroom-backends` is missing");
        found("/no/such").into_iter().chain(failed_delivery(&failed(), NOW)).chain([missing]).collect()
    }
}
