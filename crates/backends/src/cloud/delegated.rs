//! A cloud whose calls another program makes: [`DelegatedCloud`].
//!
//! The vendors' libraries make a program slow to start, and a job starts a dozen calls. So `greenroom` only checks the
//! table of a cloud's pool and reads its offerings; `greenroom-backends` makes the calls.

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Capabilities, Listing};
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_providers::registration::BuildContext;

use super::offerings::{Offering, capabilities};

/// A provider that has a pool's offerings, but no calls.
#[derive(Debug)]
pub struct DelegatedCloud {
    capabilities: Capabilities,
}

impl DelegatedCloud {
    pub fn new(offerings: &[Offering]) -> Self {
        Self { capabilities: capabilities(offerings) }
    }

    fn not_installed<T>() -> Result<T, ProviderError> {
        let why = "this program cannot call clouds: install `greenroom-backends` in the same directory";
        Err(ProviderError::new(ErrorClass::Denied, why))
    }
}

#[async_trait(?Send)]
impl Provider for DelegatedCloud {
    async fn launch(&self, _request: &LaunchRequest) -> Result<(), ProviderError> {
        Self::not_installed()
    }

    async fn terminate(&self, _id: &InstanceId) -> Result<Termination, ProviderError> {
        Self::not_installed()
    }

    async fn list(&self, _pool: &PoolName) -> Result<Listing, ProviderError> {
        Self::not_installed()
    }

    async fn endpoint(&self, _id: &InstanceId) -> Result<Endpoint, ProviderError> {
        Self::not_installed()
    }

    async fn console(&self, _id: &InstanceId) -> Result<String, ProviderError> {
        Self::not_installed()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }
}

/// The findings of a program without the calls: those about the table, and that the other program is missing.
pub fn without_calls(code: &'static str, context: &BuildContext, mut found: Vec<Finding>) -> Vec<Finding> {
    let message = format!("pool `{}` cannot be served: `greenroom-backends` is missing", context.pool);
    let remedy =
        "install `greenroom-backends` of the same version in the directory of `greenroom`".to_owned();
    found.push(Finding { code, severity: Severity::Error, message, remedy: Some(remedy) });
    found
}
