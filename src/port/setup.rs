//! One pool's configuration, reloaded when it changes.

use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;

use super::provider::Provider;
use crate::core::policy::Policy;

/// One pool, set up.
#[derive(Clone)]
pub struct PoolSetup {
    pub policy: Arc<Policy>,
    pub provider: Rc<dyn Provider>,
    /// Run on a fresh instance before a job gets it; must exit 0.
    pub ready_command: Option<String>,
    /// Greenroom's part of cleaning, if the provider has one.
    pub clean_scripts: Option<CleanScripts>,
    /// The operator's part of cleaning, run on a static host after Greenroom's part; must exit 0.
    pub clean_command: Option<String>,
}

/// Scripts for `/bin/sh`, whose argument is the mark of the host's jobs.
#[derive(Debug, Clone)]
pub struct CleanScripts {
    /// For a host that stays with its trust domain.
    pub keeps_cache: Rc<str>,
    /// For a host that may serve another domain next: it must not keep what one domain has cached.
    pub empties_cache: Rc<str>,
}

impl PoolSetup {
    /// True if the instances are static hosts, which are adopted and never launched.
    pub fn has_static_hosts(&self) -> bool {
        !self.provider.capabilities().launches
    }
}

impl std::fmt::Debug for PoolSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolSetup").field("policy", &self.policy).finish_non_exhaustive()
    }
}

#[async_trait(?Send)]
pub trait Setup {
    /// The last valid configuration, and the error in the present one if that is invalid.
    async fn current(&self) -> (PoolSetup, Option<String>);
}
