//! Calls of the API server, each with a time limit.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use greenroom_core::failure::ErrorClass;
use greenroom_core::text::with_causes;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;
use http::{Method, Request};
use kube::Config;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::Value;

use super::errors::{self, FailedCall};
use crate::cloud::api::CallKind;
use crate::cloud::findings;
use crate::kubernetes::settings::Settings;

/// Limit for a call. The API server itself gives up after a minute, so that a create without an answer is over when a list
/// may prove that it made nothing.
const ANSWER: Duration = Duration::from_secs(45);
/// Limit for a connection, of which an answer's limit has to leave some.
const CONNECT: Duration = Duration::from_secs(10);
/// Limit for credentials, which may come from a program that the kubeconfig names.
const CREDENTIALS: Duration = Duration::from_secs(30);

/// A connection to a cluster, opened with the first call.
pub(super) struct Connection {
    settings: Settings,
    clock: Rc<dyn Clock>,
    open: RefCell<Option<OpenConnection>>,
}

#[derive(Clone)]
struct OpenConnection {
    client: kube::Client,
    server: String,
}

/// A call of the API server.
#[derive(Debug, Clone)]
pub(super) struct ApiCall {
    kind: CallKind,
    method: Method,
    path: String,
    body: Vec<u8>,
    within: Duration,
}

/// The answer to a call that succeeded.
#[derive(Debug, Clone)]
pub(super) struct ApiAnswer {
    pub(super) body: Vec<u8>,
    /// The server's clock minus the runner host's, in seconds.
    pub(super) ahead_s: Option<i64>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl ApiCall {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self {
            kind: CallKind::Existing,
            method: Method::GET,
            path: path.into(),
            body: Vec::new(),
            within: ANSWER,
        }
    }

    /// Creates an object.
    pub(super) fn create(path: impl Into<String>, object: &Value) -> Self {
        let body = object.to_string().into_bytes();
        Self { kind: CallKind::Create, method: Method::POST, path: path.into(), body, within: ANSWER }
    }

    /// Posts something that leaves no trace.
    pub(super) fn ask(path: impl Into<String>, object: &Value) -> Self {
        Self { kind: CallKind::Existing, ..Self::create(path, object) }
    }

    pub(super) fn delete(path: impl Into<String>, options: &Value) -> Self {
        let body = options.to_string().into_bytes();
        Self { kind: CallKind::Existing, method: Method::DELETE, path: path.into(), body, within: ANSWER }
    }

    #[must_use]
    pub(super) fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }
}

impl ApiAnswer {
    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, ProviderError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let why = format!("the answer of the API server cannot be read: {error}");
            ProviderError::new(ErrorClass::Transient, why)
        })
    }
}

impl Connection {
    pub(super) fn new(settings: Settings, clock: Rc<dyn Clock>) -> Self {
        Self { settings, clock, open: RefCell::default() }
    }

    /// The cluster's address; `None` before the first call.
    pub(super) fn server(&self) -> Option<String> {
        self.open.borrow().as_ref().map(|open| open.server.clone())
    }

    /// The files that another process reads to connect to the same cluster.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        files(&self.settings)
    }

    /// Makes a call. If the server does not accept the credentials, they are read once more: a token may have expired.
    pub(super) async fn call(&self, call: &ApiCall) -> Result<ApiAnswer, FailedCall> {
        let first = self.open().await?;
        match self.exchange(&first, call).await {
            Err(failed) if failed.status == Some(401) => {
                *self.open.borrow_mut() = None;
                self.exchange(&self.open().await?, call).await
            }
            answer => answer,
        }
    }

    async fn open(&self) -> Result<OpenConnection, FailedCall> {
        if let Some(open) = self.open.borrow().clone() {
            return Ok(open);
        }
        let late =
            |_| ProviderError::new(ErrorClass::Transient, "the source of the credentials did not respond");
        let opened = tokio::time::timeout(CREDENTIALS, open(&self.settings)).await.map_err(late)??;
        *self.open.borrow_mut() = Some(opened.clone());
        Ok(opened)
    }

    async fn exchange(&self, open: &OpenConnection, call: &ApiCall) -> Result<ApiAnswer, FailedCall> {
        let exchange = async {
            let mut request = Request::builder().method(call.method.clone()).uri(&call.path);
            if !call.body.is_empty() {
                request = request.header(http::header::CONTENT_TYPE, "application/json");
            }
            let request = request.header(http::header::ACCEPT, "application/json, */*");
            let request = request.body(Body::from(call.body.clone())).map_err(kube::Error::HttpError)?;
            let answer = open.client.send(request).await?;
            let (head, body) = answer.into_parts();
            Ok::<_, kube::Error>((head, body.collect_bytes().await?.to_vec()))
        };
        let (head, body) = match tokio::time::timeout(call.within, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(errors::of_transport(&error, call.kind).into()),
            Err(_late) => return Err(errors::no_answer(call.kind, call.within).into()),
        };
        let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        if head.status.is_success() {
            let ahead_s =
                text(http::header::DATE).and_then(|date| findings::clock_ahead_s(date, SystemTime::now()));
            return Ok(ApiAnswer { body, ahead_s });
        }
        let retry_after = text(http::header::RETRY_AFTER).and_then(|seconds| seconds.trim().parse().ok());
        Err(errors::of_answer(head.status.as_u16(), &body, retry_after, call.kind, self.clock.now()))
    }
}

/// Opens a connection for calls. Makes none.
async fn open(settings: &Settings) -> Result<OpenConnection, ProviderError> {
    let config = config(settings.context.as_deref(), &files(settings)).await?;
    let server = server(&config);
    let client = kube::Client::try_from(config).map_err(|error| no_client(&server, &error))?;
    Ok(OpenConnection { client, server })
}

/// The address of the API server, for messages.
pub(super) fn server(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
}

pub(super) fn no_client(server: &str, error: &kube::Error) -> ProviderError {
    let why = format!("no connection to `{server}` can be made: {}", with_causes(error));
    ProviderError::new(ErrorClass::Denied, why)
}

/// The files with the context, absolute, in the order in which they are merged; none for a service account.
fn files(settings: &Settings) -> Vec<PathBuf> {
    if settings.context.is_none() {
        return Vec::new();
    }
    if let Some(path) = &settings.kubeconfig {
        return vec![path.clone()];
    }
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files: Vec<PathBuf> =
        std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    if files.is_empty() {
        files.extend(std::env::home_dir().map(|home| home.join(".kube/config")));
    }
    files.into_iter().map(|path| std::path::absolute(&path).unwrap_or(path)).collect()
}

/// Reads the configuration and the credentials. Makes no call.
pub(super) async fn config(context: Option<&str>, files: &[PathBuf]) -> Result<Config, ProviderError> {
    // The libraries use the process's provider of cryptography; the first installation counts.
    rustls::crypto::ring::default_provider().install_default().ok();
    let denied = |why: String| ProviderError::new(ErrorClass::Denied, why);
    let mut config = match context {
        None => Config::incluster().map_err(|error| {
            denied(format!(
                "no `context` is set, and this is not a pod with a service account: {}",
                with_causes(&error)
            ))
        })?,
        Some(context) => {
            let mut all = files.iter().map(Kubeconfig::read_from);
            let first = all.next().unwrap_or(Err(KubeconfigError::FindPath));
            let read = first.and_then(|first| all.try_fold(first, |merged, next| merged.merge(next?)));
            let kubeconfig = read
                .map_err(|error| denied(format!("the kubeconfig cannot be read: {}", with_causes(&error))))?;
            let options =
                KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
                denied(format!("context `{context}` cannot be used: {}", with_causes(&error)))
            })?
        }
    };
    config.connect_timeout = Some(CONNECT);
    // The engine decides by the answer whether to repeat a call.
    config.default_retry = false;
    Ok(config)
}

/// A value in a query.
pub(super) fn encoded(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    value
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_a_query_ends_no_parameter() {
        assert_eq!(encoded("greenroom-pool=linux"), "greenroom-pool%3Dlinux");
        assert_eq!(encoded("a&b c/é"), "a%26b%20c%2F%C3%A9");
    }
}
