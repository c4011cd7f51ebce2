//! The clients of Compute Engine: where they go, who they are, how long they wait.

use std::path::Path;
use std::time::Duration;

use google_cloud_auth::credentials::{Builder, Credentials, service_account};
use google_cloud_compute_v1::client::{
    Disks, Firewalls, Images, Instances, MachineTypes, Regions, Subnetworks, ZoneOperations,
};
use google_cloud_compute_v1::{Error, Result as Answer};
use google_cloud_gax::client_builder::{self, ClientBuilder};
use google_cloud_gax::retry_policy::NeverRetry;
use serde_json::Value;

use super::super::settings::Settings;
use crate::core::failure::ErrorClass;
use crate::port::provider::ProviderError;

/// For a whole answer. The libraries have no limit of their own.
const ANSWER: Duration = Duration::from_secs(30);
/// For a call with the credentials that it needs first: a metadata server that is not there is asked several times.
const WITH_CREDENTIALS: Duration = Duration::from_secs(15);

/// What a pool's calls go by.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) instances: Instances,
    pub(super) operations: ZoneOperations,
    pub(super) disks: Disks,
}

/// What else `doctor` asks.
#[derive(Debug)]
pub(super) struct Catalogue {
    pub(super) machine_types: MachineTypes,
    pub(super) images: Images,
    pub(super) regions: Regions,
    pub(super) subnetworks: Subnetworks,
    pub(super) firewalls: Firewalls,
}

/// Reads the credentials and asks them for their part of Google's cloud; asks Compute Engine nothing.
pub(super) async fn open(settings: &Settings) -> Result<Clients, ProviderError> {
    in_time(async {
        let way = Way::new(settings)?;
        Ok(Clients {
            instances: way.with(Instances::builder()).build().await.map_err(|error| unopened(&error))?,
            operations: way
                .with(ZoneOperations::builder())
                .build()
                .await
                .map_err(|error| unopened(&error))?,
            disks: way.with(Disks::builder()).build().await.map_err(|error| unopened(&error))?,
        })
    })
    .await
}

/// The same for what `doctor` asks.
pub(super) async fn open_catalogue(settings: &Settings) -> Result<Catalogue, ProviderError> {
    in_time(async {
        let way = Way::new(settings)?;
        Ok(Catalogue {
            machine_types: way
                .with(MachineTypes::builder())
                .build()
                .await
                .map_err(|error| unopened(&error))?,
            images: way.with(Images::builder()).build().await.map_err(|error| unopened(&error))?,
            regions: way.with(Regions::builder()).build().await.map_err(|error| unopened(&error))?,
            subnetworks: way.with(Subnetworks::builder()).build().await.map_err(|error| unopened(&error))?,
            firewalls: way.with(Firewalls::builder()).build().await.map_err(|error| unopened(&error))?,
        })
    })
    .await
}

async fn in_time<T>(made: impl Future<Output = Result<T, ProviderError>>) -> Result<T, ProviderError> {
    let late =
        |_| Err(ProviderError::new(ErrorClass::Transient, "the source of the credentials did not respond"));
    tokio::time::timeout(WITH_CREDENTIALS, made).await.unwrap_or_else(late)
}

/// The answer to one call. The libraries limit their own attempt, but not how long they look for credentials.
pub(super) async fn answer<T>(call: impl Future<Output = Answer<T>>) -> Answer<T> {
    within(ANSWER + WITH_CREDENTIALS, call).await
}

/// The same with a limit of the caller's.
async fn within<T>(limit: Duration, call: impl Future<Output = Answer<T>>) -> Answer<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|late| Err(Error::timeout(late)))
}

/// How Compute Engine is reached, and by whom.
struct Way {
    credentials: Credentials,
    endpoint: Option<String>,
}

impl Way {
    fn new(settings: &Settings) -> Result<Self, ProviderError> {
        let credentials = credentials(settings.common.credentials_file.as_deref())?;
        Ok(Self { credentials, endpoint: settings.common.endpoint.clone() })
    }

    /// Whether a call is made again, and with which offering, is decided by its answer: not by the library.
    fn with<F>(&self, builder: ClientBuilder<F, Credentials>) -> ClientBuilder<F, Credentials> {
        let builder = builder.with_credentials(self.credentials.clone());
        let builder = builder.with_retry_policy(NeverRetry).with_attempt_timeout(ANSWER);
        match &self.endpoint {
            Some(url) => builder.with_endpoint(url),
            None => builder,
        }
    }
}

/// From the file, or from where Google's own tools look.
fn credentials(file: Option<&Path>) -> Result<Credentials, ProviderError> {
    // The libraries take whatever provider of cryptography the process has; the first one counts.
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

fn unopened(error: &client_builder::Error) -> ProviderError {
    let class = if error.is_default_credentials() { ErrorClass::Denied } else { ErrorClass::Transient };
    ProviderError::new(class, format!("cannot create the Compute Engine client: {error}"))
}
