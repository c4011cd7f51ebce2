//! The clients of Compute Engine: endpoint, credentials, timeouts.

use std::path::Path;
use std::time::Duration;

use google_cloud_auth::credentials::{Builder, Credentials, service_account};
use google_cloud_compute_v1::client::{
    Disks, Firewalls, Images, Instances, MachineTypes, Regions, Subnetworks, ZoneOperations,
};
use google_cloud_compute_v1::{Error, Result as Answer};
use google_cloud_gax::client_builder::{self, ClientBuilder};
use google_cloud_gax::retry_policy::NeverRetry;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;
use serde_json::Value;

use super::super::settings::Settings;

/// Limit for a whole call. The libraries have no limit of their own.
const ANSWER: Duration = Duration::from_secs(30);
/// Additional limit for the credentials: the libraries try a missing metadata server several times.
const WITH_CREDENTIALS: Duration = Duration::from_secs(15);

/// The clients for a pool's calls.
#[derive(Debug)]
pub(super) struct ComputeEngineClients {
    pub(super) instances: Instances,
    pub(super) operations: ZoneOperations,
    pub(super) disks: Disks,
}

/// The clients for further calls of `doctor`.
#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) machine_types: MachineTypes,
    pub(super) images: Images,
    pub(super) regions: Regions,
    pub(super) subnetworks: Subnetworks,
    pub(super) firewalls: Firewalls,
}

/// Reads the credentials and creates the clients for a pool's calls. Makes no call of Compute Engine.
pub(super) async fn open(settings: &Settings) -> Result<ComputeEngineClients, ProviderError> {
    let clients = async |access: &ClientAccess| {
        Ok(ComputeEngineClients {
            instances: access.with(Instances::builder()).build().await?,
            operations: access.with(ZoneOperations::builder()).build().await?,
            disks: access.with(Disks::builder()).build().await?,
        })
    };
    create(settings, clients).await
}

/// Creates the clients of `doctor`, like [`open`].
pub(super) async fn open_catalogue(settings: &Settings) -> Result<Catalogue, ProviderError> {
    let clients = async |access: &ClientAccess| {
        Ok(Catalogue {
            machine_types: access.with(MachineTypes::builder()).build().await?,
            images: access.with(Images::builder()).build().await?,
            regions: access.with(Regions::builder()).build().await?,
            subnetworks: access.with(Subnetworks::builder()).build().await?,
            firewalls: access.with(Firewalls::builder()).build().await?,
        })
    };
    create(settings, clients).await
}

async fn create<T>(
    settings: &Settings,
    clients: impl AsyncFnOnce(&ClientAccess) -> Result<T, client_builder::Error>,
) -> Result<T, ProviderError> {
    let made = async {
        let access = ClientAccess::new(settings)?;
        clients(&access).await.map_err(|error| client_error(&error))
    };
    let late =
        |_| Err(ProviderError::new(ErrorClass::Transient, "the source of the credentials did not respond"));
    tokio::time::timeout(WITH_CREDENTIALS, made).await.unwrap_or_else(late)
}

/// The answer of one call. The libraries limit the attempt, but not the time until they have credentials.
pub(super) async fn answer<T>(call: impl Future<Output = Answer<T>>) -> Answer<T> {
    let answer = tokio::time::timeout(ANSWER + WITH_CREDENTIALS, call).await;
    answer.unwrap_or_else(|late| Err(Error::timeout(late)))
}

/// Endpoint and credentials.
struct ClientAccess {
    credentials: Credentials,
    endpoint: Option<String>,
}

impl ClientAccess {
    fn new(settings: &Settings) -> Result<Self, ProviderError> {
        let credentials = credentials(settings.common.credentials_file.as_deref())?;
        Ok(Self { credentials, endpoint: settings.common.endpoint.clone() })
    }

    /// Configures a client without retries: the engine decides by the answer whether to repeat a call.
    fn with<F>(&self, builder: ClientBuilder<F, Credentials>) -> ClientBuilder<F, Credentials> {
        let builder = builder.with_credentials(self.credentials.clone());
        let builder = builder.with_retry_policy(NeverRetry).with_attempt_timeout(ANSWER);
        match &self.endpoint {
            Some(url) => builder.with_endpoint(url),
            None => builder,
        }
    }
}

/// The credentials in the file, or those that Google's own tools find.
fn credentials(file: Option<&Path>) -> Result<Credentials, ProviderError> {
    // The libraries use the process's provider of cryptography; the first installation counts.
    rustls::crypto::ring::default_provider().install_default().ok();
    let denied = |why: String| ProviderError::new(ErrorClass::Denied, why);
    let Some(path) = file else {
        let found = Builder::default().build();
        return found.map_err(|error| denied(format!("no credentials for Compute Engine: {error}")));
    };
    let unreadable = |why: String| denied(format!("`credentials_file` `{}` {why}", path.display()));
    let text = fs_err::read(path).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let key: Value =
        serde_json::from_slice(&text).map_err(|error| unreadable(format!("is not valid JSON: {error}")))?;
    match key["type"].as_str() {
        Some("service_account") => {
            let made = service_account::Builder::new(key).build();
            made.map_err(|error| unreadable(format!("is not a valid key: {error}")))
        }
        kind => Err(unreadable(format!(
            "is of type {:?}, not a service account's key: name it in GOOGLE_APPLICATION_CREDENTIALS instead",
            kind.unwrap_or("unknown")
        ))),
    }
}

fn client_error(error: &client_builder::Error) -> ProviderError {
    let class = if error.is_default_credentials() { ErrorClass::Denied } else { ErrorClass::Transient };
    ProviderError::new(class, format!("cannot create the Compute Engine client: {error}"))
}
