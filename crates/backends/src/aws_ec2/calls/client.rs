//! The clients of EC2, Service Quotas and STS, and what their answers show: the account, and the time.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::ConfigBag;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

use crate::aws_ec2::settings::Settings;
use crate::cloud::findings::clock_ahead_s;

/// Limit for a connection. The runner host may be anywhere in the world.
const CONNECT: Duration = Duration::from_secs(5);
/// Limit for a whole call. RunInstances takes seconds when EC2 looks for capacity; the libraries have no limit of
/// their own.
const ANSWER: Duration = Duration::from_secs(30);
/// Limit for the answer of STS. Without one, the account is unknown, and nothing is forgotten.
const IDENTITY_WITHIN: Duration = Duration::from_secs(5);
/// The pause after a failed call of STS: it may be unreachable for good.
const IDENTITY_PAUSE: Duration = Duration::from_mins(1);

/// The behaviour that this program was tested with; later versions of the libraries keep it.
fn behaviour() -> BehaviorVersion {
    BehaviorVersion::v2026_01_12()
}

/// The clients for one account and region.
#[derive(Debug)]
pub(super) struct Ec2Clients {
    pub(super) ec2: Client,
    /// The client for the account's limits; used by `doctor` only.
    pub(super) quotas: aws_sdk_servicequotas::Client,
    /// The client for the account's ID. It shares the cache of credentials with `ec2`: both act for the same account.
    pub(super) sts: aws_sdk_sts::Client,
    /// The region of all calls; `None` if nothing sets it: then calls fail.
    pub(super) region: Option<String>,
}

/// Finds the credentials, which may take a while, and creates the clients.
pub(super) async fn open(settings: &Settings) -> Ec2Clients {
    let http =
        Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_with_resolver(RunnerHostNames);
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
    Ec2Clients {
        ec2: Client::from_conf(ec2.build()),
        quotas: aws_sdk_servicequotas::Client::from_conf(quotas.build()),
        sts: aws_sdk_sts::Client::from_conf(sts.build()),
        region: shared.region().map(ToString::to_string),
    }
}

/// Resolves names like the rest of this program.
#[derive(Debug, Clone)]
struct RunnerHostNames;

impl ResolveDns for RunnerHostNames {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        DnsFuture::new(async move {
            let found = greenroom_system::names::look_up(name, 0).await.map_err(ResolveDnsError::new)?;
            Ok(found.into_iter().map(|address| address.ip()).collect::<Vec<IpAddr>>())
        })
    }
}

/// The account that a list is from.
///
/// A list that has machines names their account. An empty list names none, and an empty list of another account would pass for
/// the end of all machines. So STS is queried before and after it: the answers must agree, because credentials may change at
/// any moment.
#[derive(Debug, Default)]
pub(super) struct AccountIdentity {
    /// The account when it was last looked at: by a list, or by STS.
    last: RefCell<Option<String>>,
    failed: Cell<Option<Instant>>,
}

impl AccountIdentity {
    /// Queries STS before a list. False if no list has to be repeated: the account before it is known, or cannot be found out.
    pub(super) async fn ask_before(&self, sts: &aws_sdk_sts::Client) -> bool {
        if self.last.borrow().is_some() {
            return false;
        }
        let account = self.ask(sts).await;
        let known = account.is_some();
        self.last.replace(account);
        known
    }

    /// The account of a list that has just been taken. `owner`: of its machines, if it has any.
    pub(super) async fn of_list(&self, owner: Option<&str>, sts: &aws_sdk_sts::Client) -> Option<String> {
        if let Some(owner) = owner {
            self.last.replace(Some(owner.to_owned()));
            return Some(owner.to_owned());
        }
        let before = self.last.borrow().clone()?;
        let after = self.ask(sts).await;
        self.last.replace(after.clone());
        after.filter(|after| *after == before)
    }

    async fn ask(&self, sts: &aws_sdk_sts::Client) -> Option<String> {
        if self.failed.get().is_some_and(|failed| failed.elapsed() < IDENTITY_PAUSE) {
            return None;
        }
        let answer = tokio::time::timeout(IDENTITY_WITHIN, sts.get_caller_identity().send()).await;
        let account = answer.ok().and_then(Result::ok).and_then(|answer| answer.account);
        self.failed.set(account.is_none().then(Instant::now));
        account
    }
}

/// Stores the date of the last answer.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerClock(Arc<Mutex<Option<String>>>);

impl ServerClock {
    /// EC2's clock minus the runner host's, in seconds; `None` if the answer had no date.
    pub(super) fn ahead_s(&self, now: SystemTime) -> Option<i64> {
        clock_ahead_s(self.0.lock().ok()?.as_ref()?, now)
    }
}

#[dyn_dispatch_hint]
impl Intercept for ServerClock {
    fn name(&self) -> &'static str {
        "ServerClock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Ok(mut last) = self.0.lock() {
            *last = context.response().headers().get("date").map(str::to_owned);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_said_is_compared_with_ours() {
        let clock = ServerClock::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(clock.ahead_s(now), None);
        *clock.0.lock().unwrap() = Some("Thu, 01 Jan 1970 00:20:00 GMT".to_owned());
        assert_eq!(clock.ahead_s(now), Some(200));
        *clock.0.lock().unwrap() = Some("tomorrow".to_owned());
        assert_eq!(clock.ahead_s(now), None);
    }
}
