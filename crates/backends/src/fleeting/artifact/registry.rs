//! Calls of an OCI [`Registry`], for one repository.
//!
//! The crate `oci-client` (0.17) is not used: it resolves names in the process, which is linked statically, reads documents without
//! a limit, and takes another TLS than `ring`.

use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

use greenroom_core::text::clean_line;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::credentials::{Credentials, HelperError, RegistryAccount};
use super::document::{ACCEPTED, Descriptor};
use super::{Digest, Summing};
use crate::fleeting::reference::PluginName;
use crate::https::{self, causes};

/// Limit for a connection.
const CONNECT: Duration = Duration::from_secs(20);
/// Limit for silence within an answer. A whole download has none.
const SILENCE: Duration = Duration::from_mins(1);
/// Limit of an index, a manifest, a token, a list of tags. Real ones have kilobytes.
const MAX_DOCUMENT: usize = 4 << 20;
/// Limit of a registry's own words in an error.
const MAX_WORDS: usize = 200;

/// The reason a call of a [`Registry`] failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("registry `{host}` cannot be reached: {cause}")]
    Unreachable { host: String, cause: String },
    #[error("registry `{host}` denies {account} access to `{path}`")]
    Denied {
        host: String,
        path: String,
        account: String,
        /// The reason a credential helper gave no account.
        #[source]
        helper: Option<HelperError>,
    },
    #[error("registry `{host}` has no `{what}`")]
    Missing { host: String, what: String },
    #[error("registry `{host}` answers with status {status}{words}")]
    Status { host: String, status: u16, words: String },
    #[error("registry `{host}` sends an answer that is not valid: {what}")]
    Invalid { host: String, what: String },
    #[error("registry `{host}` sends other content than {expected} names: {found}")]
    Content { host: String, expected: Digest, found: String },
    #[error("the content of registry `{host}` cannot be stored")]
    Store {
        host: String,
        #[source]
        cause: std::io::Error,
    },
}

/// A repository of a registry.
pub struct Registry {
    client: Client,
    host: String,
    path: String,
    /// Plain HTTP is allowed where the registry speaks no HTTPS.
    plain: bool,
    credentials: Credentials,
    /// `https` or `http`, once it is known.
    scheme: RefCell<Option<&'static str>>,
    authorization: RefCell<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(alias = "access_token")]
    token: String,
}

#[derive(Deserialize)]
struct TagList {
    tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RegistryFailures {
    errors: Vec<RegistryFailure>,
}

#[derive(Deserialize)]
struct RegistryFailure {
    message: String,
}

impl Registry {
    /// Creates the registry of a plugin's repository. `insecure` allows plain HTTP, which is always allowed on loopback.
    pub fn new(plugin: &PluginName, credentials: Credentials, insecure: bool) -> Result<Self, RegistryError> {
        let host = plugin.registry.clone();
        let plain = insecure || is_loopback(&plugin.registry);
        let client = https::client()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .https_only(!plain)
            .redirect(Policy::limited(5))
            .build()
            .map_err(|error| RegistryError::Unreachable { host: host.clone(), cause: causes(&error) })?;
        let scheme = RefCell::new(None);
        let authorization = RefCell::new(None);
        Ok(Self { client, host, path: plugin.path.clone(), plain, credentials, scheme, authorization })
    }

    /// An index or a manifest by its tag, and its digest.
    pub async fn tagged(&self, tag: &str) -> Result<(Vec<u8>, Digest), RegistryError> {
        let response =
            self.get(&format!("manifests/{tag}"), ACCEPTED, &format!("{}:{tag}", self.path)).await?;
        let content = self.document(response).await?;
        let digest = Digest::of(&content);
        Ok((content, digest))
    }

    /// A manifest by its digest.
    pub(super) async fn manifest(&self, named: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let response =
            self.get(&format!("manifests/{}", named.digest), ACCEPTED, named.digest.as_str()).await?;
        let content = self.document(response).await?;
        self.compare(named, &Digest::of(&content), content.len() as u64)?;
        Ok(content)
    }

    /// The tags of the repository; none if they cannot be read.
    pub async fn tags(&self) -> Vec<String> {
        let Ok(response) = self.get("tags/list", "application/json", "tags").await else { return Vec::new() };
        let content = self.document(response).await.unwrap_or_default();
        serde_json::from_slice::<TagList>(&content).ok().and_then(|read| read.tags).unwrap_or_default()
    }

    /// Copies a content, and checks that it is the one that its digest names. `report` gets the bytes so far.
    pub(super) async fn blob(
        &self,
        named: &Descriptor,
        into: &mut impl Write,
        report: &dyn Fn(u64),
    ) -> Result<(), RegistryError> {
        let what = named.digest.as_str();
        let mut response = self.get(&format!("blobs/{what}"), "*/*", what).await?;
        let mut summing = Summing::new(into);
        let mut length = 0;
        while let Some(part) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            length += part.len() as u64;
            if length > named.size {
                return Err(self.other_content(named, format!("more than {} bytes", named.size)));
            }
            let store = |cause| RegistryError::Store { host: self.host.clone(), cause };
            summing.write_all(&part).map_err(store)?;
            report(length);
        }
        let (digest, length) = summing.finish();
        self.compare(named, &digest, length)
    }

    fn compare(&self, named: &Descriptor, digest: &Digest, length: u64) -> Result<(), RegistryError> {
        if length != named.size {
            return Err(self.other_content(named, format!("{length} bytes instead of {}", named.size)));
        }
        if *digest != named.digest {
            return Err(self.other_content(named, digest.to_string()));
        }
        Ok(())
    }

    fn other_content(&self, named: &Descriptor, found: String) -> RegistryError {
        RegistryError::Content { host: self.host.clone(), expected: named.digest.clone(), found }
    }

    /// One answer of status 200. `what` names its content in an error.
    async fn get(&self, path: &str, accept: &str, what: &str) -> Result<Response, RegistryError> {
        let scheme = self.scheme().await?;
        let url = format!("{scheme}://{}/v2/{}/{path}", self.host, self.path);
        let mut response = self.send(&url, accept).await?;
        if response.status() == StatusCode::UNAUTHORIZED && self.authorization.borrow().is_none() {
            let authorization = self.authorize(response.headers()).await?;
            self.authorization.replace(Some(authorization));
            response = self.send(&url, accept).await?;
        }
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied()),
            StatusCode::NOT_FOUND => {
                Err(RegistryError::Missing { host: self.host.clone(), what: what.to_owned() })
            }
            status => {
                let content = self.document(response).await.unwrap_or_default();
                let host = self.host.clone();
                let words = words(&content);
                Err(RegistryError::Status { host, status: status.as_u16(), words })
            }
        }
    }

    async fn send(&self, url: &str, accept: &str) -> Result<Response, RegistryError> {
        let mut request = self.client.get(url).header(ACCEPT, accept);
        if let Some(authorization) = self.authorization.borrow().clone() {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.send().await.map_err(|error| self.unreachable(&error))
    }

    /// HTTPS; where plain HTTP is allowed and HTTPS fails, that.
    async fn scheme(&self) -> Result<&'static str, RegistryError> {
        if let Some(known) = *self.scheme.borrow() {
            return Ok(known);
        }
        let scheme = if self.plain { self.speaks().await? } else { "https" };
        self.scheme.replace(Some(scheme));
        Ok(scheme)
    }

    /// Tries both. A server of HTTPS refuses plain HTTP as a bad request.
    async fn speaks(&self) -> Result<&'static str, RegistryError> {
        let ping = |scheme| self.client.get(format!("{scheme}://{}/v2/", self.host)).send();
        let Err(error) = ping("https").await else { return Ok("https") };
        match ping("http").await {
            Ok(answer) if answer.status() == StatusCode::BAD_REQUEST => Err(self.unreachable(&error)),
            Ok(_) => Ok("http"),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// The header that the registry's challenge demands.
    async fn authorize(&self, headers: &HeaderMap) -> Result<HeaderValue, RegistryError> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = challenges.filter_map(|header| parse_challenge(header.to_str().ok()?));
        let text = match challenges.next() {
            None => return Err(self.denied()),
            Some(Challenge::Bearer { realm, service, scope }) => {
                format!("Bearer {}", self.token(&realm, service, scope).await?)
            }
            Some(Challenge::Basic) => {
                let Some(RegistryAccount::Password { name, password }) = &self.credentials.account else {
                    return Err(self.denied());
                };
                let pair = format!("{name}:{password}");
                format!("Basic {}", <base64ct::Base64 as base64ct::Encoding>::encode_string(pair.as_bytes()))
            }
        };
        let mut value =
            HeaderValue::try_from(text).map_err(|_| self.invalid("its token is not plain text"))?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// A token of the server that the challenge names, with the account if there is one.
    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<String, RegistryError> {
        let mut url = Url::parse(realm).map_err(|_| self.invalid("it names no token server"))?;
        let asked = [("service", service), ("scope", scope)];
        let asked = asked.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        let request = match &self.credentials.account {
            Some(RegistryAccount::IdentityToken(token)) => {
                let with =
                    [("grant_type", "refresh_token"), ("client_id", "greenroom"), ("refresh_token", token)];
                let form = form(url.clone(), asked.chain(with));
                self.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
            }
            Some(RegistryAccount::Password { name, password }) => {
                url.query_pairs_mut().extend_pairs(asked);
                self.client.get(url).basic_auth(name, Some(password))
            }
            None => {
                url.query_pairs_mut().extend_pairs(asked);
                self.client.get(url)
            }
        };
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.denied());
        }
        let content = self.document(response).await?;
        let read: Token =
            serde_json::from_slice(&content).map_err(|_| self.invalid("its token server sends no token"))?;
        Ok(read.token)
    }

    /// A short answer.
    async fn document(&self, mut response: Response) -> Result<Vec<u8>, RegistryError> {
        let mut content = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if content.len() + part.len() > MAX_DOCUMENT {
                return Err(self.invalid("it has more than 4 MB"));
            }
            content.extend_from_slice(&part);
        }
        Ok(content)
    }

    fn denied(&self) -> RegistryError {
        let Credentials { account, problem: helper } = self.credentials.clone();
        let account = account.map_or_else(|| "anonymous".to_owned(), |account| account.to_string());
        let host = self.host.clone();
        let path = self.path.clone();
        RegistryError::Denied { host, path, account, helper }
    }

    fn unreachable(&self, error: &reqwest::Error) -> RegistryError {
        RegistryError::Unreachable { host: self.host.clone(), cause: causes(error) }
    }

    fn invalid(&self, what: &str) -> RegistryError {
        RegistryError::Invalid { host: self.host.clone(), what: what.to_owned() }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("host", &self.host).field("path", &self.path).finish_non_exhaustive()
    }
}

/// The body of a form, which is written like the query of a URL.
fn form<'a>(mut url: Url, values: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    url.query_pairs_mut().clear().extend_pairs(values);
    url.query().unwrap_or_default().to_owned()
}

/// The registry is on the runner host.
fn is_loopback(registry: &str) -> bool {
    let host = registry.split(':').next().unwrap_or(registry);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The registry's own explanation, if it has one.
fn words(content: &[u8]) -> String {
    let failures = serde_json::from_slice::<RegistryFailures>(content).ok();
    let message = failures.and_then(|read| read.errors.into_iter().next()).map(|failure| failure.message);
    message.map_or_else(String::new, |message| {
        let short: String = message.chars().take(MAX_WORDS).collect();
        format!(": {}", clean_line(short.as_bytes(), MAX_WORDS))
    })
}

/// Scheme of credentials that a registry accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Challenge {
    /// An account and its password with each call.
    Basic,
    /// A token, from another server.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

/// Reads one header; `None`: another scheme, or not valid.
fn parse_challenge(header: &str) -> Option<Challenge> {
    let header = header.trim_start();
    let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest)?;
    let find = |name: &str| {
        let mut found = parameters.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.clone())
    };
    Some(Challenge::Bearer { realm: find("realm")?, service: find("service"), scope: find("scope") })
}

/// `name="value",name=value`; in quotes, a backslash takes the next character as it is.
fn parameters(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                after.find(',').map_or((after.to_owned(), ""), |end| (after[..end].to_owned(), &after[end..]))
            }
        };
        found.push((name.trim().to_owned(), value.trim().to_owned()));
        let after = after.trim_start();
        rest = if after.is_empty() { after } else { after.strip_prefix(',')?.trim_start() };
    }
    Some(found)
}

/// The value up to the closing quote, and what follows it.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, c)) = letters.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_allowed_on_loopback_only() {
        for (registry, expected) in [
            ("127.0.0.1:5000", true),
            ("127.8.9.1", true),
            ("localhost:5000", true),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("10.0.0.1:5000", false),
            ("registry.gitlab.com", false),
        ] {
            assert_eq!(is_loopback(registry), expected, "{registry}");
        }
    }

    #[test]
    fn a_registry_explains_its_refusal_in_one_short_line() {
        let long = "x".repeat(1000);
        for (content, expected) in [
            (r#"{"errors":[{"code":"X","message":"too\nmany"}]}"#.to_owned(), ": too many".to_owned()),
            (r#"{"errors":[]}"#.to_owned(), String::new()),
            ("<html>".to_owned(), String::new()),
            (format!(r#"{{"errors":[{{"message":"{long}"}}]}}"#), format!(": {}", "x".repeat(MAX_WORDS))),
        ] {
            assert_eq!(words(content.as_bytes()), expected);
        }
    }

    #[test]
    fn a_challenge_is_read_as_registries_write_it() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let [service, scope] = [service, scope].map(|text| text.map(str::to_owned));
            Some(Challenge::Bearer { realm: realm.to_owned(), service, scope })
        };
        for (header, expected) in [
            ("Basic realm=\"lab\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://gitlab.com/jwt/auth\",service=\"container_registry\",scope=\"repository:a/b:pull,push\"",
                bearer(
                    "https://gitlab.com/jwt/auth",
                    Some("container_registry"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            ("bearer  Realm = \"a\\\"b\" , service=plain", bearer("a\"b", Some("plain"), None)),
            ("Bearer service=\"x\"", None),
            ("Bearer realm=\"open", None),
            ("Bearer realm", None),
            ("Bearer realm=\"a\"b", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(parse_challenge(header), expected, "{header}");
        }
    }
}
