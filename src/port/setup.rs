//! What the configuration says about one pool, read anew when it changes.

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
    /// Our own part of a clean: a script for `/bin/sh`, which is told the mark of the host's jobs as its argument.
    pub clean_script: Option<Rc<str>>,
    /// The operator's part, run on a fixed host between jobs after ours; must exit 0.
    pub clean_command: Option<String>,
}

impl PoolSetup {
    /// Are the instances hosts of the operator's, which are adopted and never made?
    pub fn has_fixed_hosts(&self) -> bool {
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
    /// The last good configuration, and what is wrong with the present one if it is not that.
    async fn current(&self) -> (PoolSetup, Option<String>);
}
