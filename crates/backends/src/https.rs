//! HTTPS with ring, the system's certificates and the runner host's own way to look up names.

use std::error::Error as _;
use std::sync::Arc;

use greenroom_system::names;
use reqwest::ClientBuilder;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A client without limits. Certificates are those of the system, or of `SSL_CERT_FILE`; the proxy is that of `HTTPS_PROXY`.
pub fn client() -> ClientBuilder {
    // A second installation in the same process changes nothing.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .user_agent(concat!("greenroom/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(HostNames))
}

/// A resolver that looks up names as the rest of the program does.
struct HostNames;

impl Resolve for HostNames {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let addresses = names::look_up(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// The causes of a failure, without the sentences that only name the URL, which may have a secret, and the library's part.
pub fn causes(error: &reqwest::Error) -> String {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Wrappers repeat what they wrap.
        causes.retain(|outer: &String| !outer.contains(&text));
        causes.push(text);
        next = cause.source();
    }
    causes.retain(|cause| !cause.starts_with("client error"));
    if causes.is_empty() { "the request failed".to_owned() } else { causes.join(": ") }
}
