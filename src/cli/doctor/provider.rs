//! What providers say about their own part.

use std::path::Path;
use std::rc::Rc;

use super::code;
use crate::config::{Config, PoolConfig};
use crate::core::policy::Policy;
use crate::port::clock::Clock;
use crate::port::finding::Finding;
use crate::provider::{self, BuildContext};

/// What providers are built from, beside their tables.
#[derive(Clone)]
pub(super) struct Around<'a> {
    pub(super) state_dir: &'a Path,
    pub(super) program: &'a Path,
    pub(super) clock: Rc<dyn Clock>,
}

/// The pool's policy as its provider makes it, and what there is to say. Launches nothing.
pub(super) fn check(config: &Config, pool: &PoolConfig, around: &Around<'_>) -> (Policy, Vec<Finding>) {
    let registration = match provider::find(&pool.provider.kind) {
        Ok(registration) => registration,
        Err(error) => {
            let what = format!("pool `{}`: {error}", pool.name);
            let remedy = format!("correct `kind` under `{}`", pool.provider.path);
            return (pool.policy.clone(), vec![code::PROVIDER_UNKNOWN.found(what, remedy)]);
        }
    };
    let context = BuildContext {
        pool: pool.name.clone(),
        state_dir: around.state_dir.to_owned(),
        program: around.program.to_owned(),
        clock: Rc::clone(&around.clock),
    };
    let mut found = (registration.doctor)(&context, &pool.provider.table);
    let Ok(provider) = (registration.build)(&context, &pool.provider.table) else {
        return (pool.policy.clone(), found);
    };
    let disposable = provider.capabilities().launches;
    found.extend(config.objection(pool, disposable).map(|objection| {
        let what = format!("the configuration is wrong: {objection}");
        code::CONFIG_INVALID.found(what, format!("correct the table of pool `{}`", pool.name))
    }));
    (pool.policy_where(disposable), found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::story::at;
    use crate::core::time::Stamp;

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Stamp {
            at(0.0)
        }
    }

    fn checked(provider: &str) -> Vec<Finding> {
        let text = format!("[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\n{provider}\n");
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        let program = std::env::current_exe().unwrap();
        let around = Around { state_dir: Path::new("/s"), program: &program, clock: Rc::new(Fixed) };
        let pool = config.pools.values().next().unwrap();
        check(&config, pool, &around).1
    }

    #[test]
    fn a_provider_adds_its_own_findings() {
        let found = checked("kind = \"local\"\nallow_root = true");
        assert_eq!(found[0].code, "local-no-isolation");
        let wrong = checked("kind = \"local\"\nno_such_key = 1");
        assert_eq!(wrong[0].code, "local-table", "{wrong:?}");
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        checked("kind = \"locla\"")
    }

    #[test]
    fn an_unknown_kind_is_told_the_nearest() {
        let found = provoked();
        assert_eq!(found[0].code, "provider-unknown");
        assert!(found[0].what.contains("did you mean \"local\"?"), "{}", found[0].what);
    }
}
