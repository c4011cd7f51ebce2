//! The checks of providers.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::policy::Policy;
use greenroom_core::time::Pretty;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, Provider};

use super::code;
use crate::cli::setup::{ProviderContext, objection};
use crate::config::{Config, PoolConfig};
use crate::provider;

/// The time that a provider's calls may take.
pub(super) const CALLS_WITHIN: Duration = Duration::from_secs(30);

/// A pool as its provider makes it.
pub(super) struct CheckedProvider {
    pub(super) policy: Policy,
    pub(super) found: Vec<Finding>,
    /// The pool's provider; `None`: its table is invalid.
    pub(super) provider: Option<Rc<dyn Provider>>,
}

/// Checks a pool's provider without calls. Launches nothing. [`examine`] makes the checks that need calls.
pub(super) fn check(config: &Config, pool: &PoolConfig, around: &ProviderContext) -> CheckedProvider {
    let registration = match provider::find(&pool.provider.kind) {
        Ok(registration) => registration,
        Err(error) => {
            let what = format!("pool `{}`: {error}", pool.name);
            let remedy = format!("correct `kind` under `{}`", pool.provider.path);
            let found = vec![code::PROVIDER_UNKNOWN.found(what, remedy)];
            return CheckedProvider { policy: pool.policy.clone(), found, provider: None };
        }
    };
    let context = around.connected(pool);
    let mut found = (registration.doctor)(&context, &pool.provider.table);
    let Ok(provider) = (registration.build)(&context, &pool.provider.table) else {
        return CheckedProvider { policy: pool.policy.clone(), found, provider: None };
    };
    found.extend(objection(config, pool, registration).map(|objection| {
        let what = format!("the configuration is invalid: {objection}");
        code::CONFIG_INVALID.found(what, format!("correct the table of pool `{}`", pool.name))
    }));
    let policy = pool.policy_where(registration.launches(), registration.lifetime);
    CheckedProvider { policy, found, provider: Some(provider) }
}

/// Checks a pool's provider with calls, for at most `within`.
pub(super) async fn examine(
    pool: &PoolName,
    provider: &dyn Provider,
    demand: &Demand,
    within: Duration,
) -> Vec<Finding> {
    tokio::time::timeout(within, provider.examine(demand)).await.unwrap_or_else(|_| {
        let what =
            format!("the provider of pool `{pool}` did not answer doctor's calls within {}", Pretty(within));
        vec![
            code::PROVIDER_TIMEOUT
                .found(what, "check that the runner host reaches it: its address, a proxy, its status page"),
        ]
    })
}

#[cfg(test)]
pub(super) mod tests {
    use async_trait::async_trait;
    use greenroom_core::endpoint::Endpoint;
    use greenroom_core::ids::InstanceId;
    use greenroom_core::inventory::{Capabilities, Listing};
    use greenroom_core::time::Stamp;
    use greenroom_ports::clock::Clock;
    use greenroom_ports::provider::{LaunchRequest, ProviderError, Termination};

    use super::*;
    use crate::cli::fixture::at;
    use crate::cli::setup::tests::refused;

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Stamp {
            at(0.0)
        }
    }

    fn checked(provider: &str) -> Vec<Finding> {
        checked_all(&format!("[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\n{provider}\n"))
    }

    fn checked_all(text: &str) -> Vec<Finding> {
        let config = Config::parse(text, "greenroom.toml").unwrap();
        let program = std::env::current_exe().unwrap();
        let around = ProviderContext { state_dir: "/s".into(), program, clock: Rc::new(Fixed) };
        let pool = config.pools.values().next().unwrap();
        check(&config, pool, &around).found
    }

    /// One that reports a finding, and one that never returns.
    #[derive(Debug)]
    struct ProviderStub {
        answers: bool,
    }

    #[async_trait(?Send)]
    impl Provider for ProviderStub {
        async fn launch(&self, _: &LaunchRequest) -> Result<(), ProviderError> {
            unreachable!("doctor launches nothing")
        }

        async fn terminate(&self, _: &InstanceId) -> Result<Termination, ProviderError> {
            unreachable!("doctor terminates nothing")
        }

        async fn list(&self, _: &PoolName) -> Result<Listing, ProviderError> {
            unreachable!("not asked")
        }

        async fn endpoint(&self, _: &InstanceId) -> Result<Endpoint, ProviderError> {
            unreachable!("not asked")
        }

        async fn console(&self, _: &InstanceId) -> Result<String, ProviderError> {
            unreachable!("not asked")
        }

        async fn examine(&self, demand: &Demand) -> Vec<Finding> {
            if !self.answers {
                std::future::pending::<()>().await;
            }
            let left = demand.max_instances - demand.recorded;
            vec![code::PROVIDER_UNKNOWN.noted(format!("{left} more are wanted"))]
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::default()
        }
    }

    async fn findings(answers: bool) -> Vec<Finding> {
        let demand = Demand { max_instances: 8, recorded: 3, max_lifetime: None, idle_stopped: 0 };
        examine(&PoolName::new("linux"), &ProviderStub { answers }, &demand, Duration::from_millis(10)).await
    }

    #[tokio::test]
    async fn a_provider_is_asked_and_given_up_in_time() {
        assert_eq!(findings(true).await[0].message, "5 more are wanted");
        let silent = findings(false).await;
        assert_eq!(silent[0].code, "provider-timeout");
        assert!(
            silent[0].message.contains("pool `linux` did not answer doctor's calls within 10 ms"),
            "{silent:?}"
        );
    }

    #[test]
    fn a_provider_adds_its_own_findings() {
        let found = checked("kind = \"local\"\nallow_root = true");
        assert_eq!(found[0].code, "local-no-isolation");
        let wrong = checked("kind = \"local\"\nno_such_key = 1");
        assert_eq!(wrong[0].code, "local-table", "{wrong:?}");
    }

    #[test]
    fn doctor_refuses_what_a_provider_cannot_do() {
        for (text, wrong) in refused() {
            let found = checked_all(&text);
            let invalid: Vec<&Finding> =
                found.iter().filter(|finding| finding.code == code::CONFIG_INVALID.name).collect();
            assert!(matches!(invalid[..], [one] if one.message.contains(wrong)), "{wrong}: {found:?}");
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) async fn provoked() -> Vec<Finding> {
        [unknown(), findings(false).await].concat()
    }

    fn unknown() -> Vec<Finding> {
        checked("kind = \"locla\"")
    }

    #[test]
    fn an_unknown_kind_is_told_the_nearest() {
        let found = unknown();
        assert_eq!(found[0].code, "provider-unknown");
        assert!(found[0].message.contains("did you mean `local`?"), "{}", found[0].message);
    }
}
