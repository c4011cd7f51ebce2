//! The clients of EC2, Service Quotas and STS: endpoint, credentials, timeouts.

use std::net::IpAddr;
use std::time::Duration;

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_ec2::Client;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};

use super::super::settings::Settings;

/// Limit for a connection. The runner host may be anywhere in the world.
const CONNECT: Duration = Duration::from_secs(5);
/// Limit for a whole call. RunInstances takes seconds when EC2 looks for capacity; the libraries have no limit of
/// their own.
const ANSWER: Duration = Duration::from_secs(30);
/// The behaviour that this program was tested with; later versions of the libraries keep it.
fn behaviour() -> BehaviorVersion {
    BehaviorVersion::v2026_01_12()
}

/// The clients for one account and region.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) ec2: Client,
    /// For the account's limits; used by `doctor` only.
    pub(super) quotas: aws_sdk_servicequotas::Client,
    /// For the account's ID. It shares the cache of credentials with `ec2`: both act for the same account.
    pub(super) sts: aws_sdk_sts::Client,
    /// `None` if nothing sets it: then calls fail.
    pub(super) region: Option<String>,
}

/// Finds the credentials, which may take a while, and creates the clients.
pub(super) async fn open(settings: &Settings) -> Clients {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_with_resolver(Names);
    let region = settings.region.clone().map(Region::new);
    let mut loader = aws_config::defaults(behaviour())
        .http_client(http.clone())
        .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT).operation_timeout(ANSWER).build())
        // The engine decides by the answer whether to repeat a call, and with which offering: the libraries would
        // repeat InsufficientInstanceCapacity, because it is a 500.
        .retry_config(RetryConfig::disabled());
    if let Some(region) = region.clone() {
        loader = loader.region(region);
    }
    if let Some(profile) = &settings.profile {
        loader = loader.profile_name(profile);
    }
    if let Some(file) = &settings.common.credentials_file {
        let files = EnvConfigFiles::builder().with_file(EnvConfigFileKind::Credentials, file).build();
        let around = ProviderConfig::without_region().with_region(region).with_http_client(http);
        let mut named = ProfileFileCredentialsProvider::builder().configure(&around).profile_files(files);
        if let Some(profile) = &settings.profile {
            named = named.profile_name(profile);
        }
        loader = loader.credentials_provider(named.build());
    }
    let shared = loader.load().await;
    let mut ec2 = aws_sdk_ec2::config::Builder::from(&shared);
    let mut quotas = aws_sdk_servicequotas::config::Builder::from(&shared);
    let mut sts = aws_sdk_sts::config::Builder::from(&shared);
    if let Some(url) = settings.sts_endpoint.as_ref().or(settings.common.endpoint.as_ref()) {
        sts = sts.endpoint_url(url);
    }
    if let Some(url) = &settings.common.endpoint {
        ec2 = ec2.endpoint_url(url);
        quotas = quotas.endpoint_url(url);
    }
    Clients {
        ec2: Client::from_conf(ec2.build()),
        quotas: aws_sdk_servicequotas::Client::from_conf(quotas.build()),
        sts: aws_sdk_sts::Client::from_conf(sts.build()),
        region: shared.region().map(ToString::to_string),
    }
}

/// Resolves names like the rest of this program.
#[derive(Debug, Clone)]
struct Names;

impl ResolveDns for Names {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        DnsFuture::new(async move {
            let found = greenroom_system::names::look_up(name, 0).await.map_err(ResolveDnsError::new)?;
            Ok(found.into_iter().map(|address| address.ip()).collect::<Vec<IpAddr>>())
        })
    }
}
