//! Finds the network tags and the service account of the runner host, if it is an instance of Compute Engine.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::super::settings::Settings;
use crate::cloud::inbound::{Allows, Exposure};

/// What the firmware of Compute Engine's instances calls them.
const PRODUCT: (&str, &str) = ("/sys/class/dmi/id/product_name", "Google Compute Engine");
/// Where Google's own tools look for another metadata server.
const OTHER_SERVER: &str = "GCE_METADATA_HOST";
const SERVER: &str = "169.254.169.254";
/// Limit for an answer, which comes from the host of the machine.
const ANSWER: Duration = Duration::from_secs(2);
const LONGEST: u64 = 64 << 10;

/// The pool's tags and its account, as far as they are also the runner host's. Empty if those are unknown.
pub(super) async fn shared(settings: &Settings) -> Vec<Exposure> {
    let Some(server) = server() else { return Vec::new() };
    let tags: Vec<String> = match ask(&server, "tags").await {
        Some(text) => serde_json::from_str(&text).unwrap_or_default(),
        None => Vec::new(),
    };
    let tags = tags.into_iter().filter(|tag| settings.network_tags.contains(tag));
    let mut shared: Vec<String> = tags.map(|tag| format!("network tag `{tag}`")).collect();
    if let Some(account) = &settings.service_account {
        let own = ask(&server, "service-accounts/default/email").await;
        let own = own.filter(|own| own.trim() == account.email);
        shared.extend(own.map(|own| format!("service account {}", own.trim())));
    }
    shared.into_iter().map(|rule| Exposure { rule, allows: Allows::SharedWithManager }).collect()
}

/// The metadata server; `None` outside Compute Engine.
fn server() -> Option<String> {
    let other = std::env::var(OTHER_SERVER).ok().filter(|server| !server.is_empty());
    let is_instance = || {
        let name = fs_err::read_to_string(PRODUCT.0).unwrap_or_default();
        (name.trim() == PRODUCT.1).then(|| SERVER.to_owned())
    };
    other.or_else(is_instance)
}

/// An entry about this machine.
async fn ask(server: &str, entry: &str) -> Option<String> {
    let call = async {
        let (host, port) = server.rsplit_once(':').unwrap_or((server, "80"));
        let address =
            greenroom_system::names::look_up(host, port.parse().ok()?).await.ok()?.into_iter().next()?;
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!(
            "GET /computeMetadata/v1/instance/{entry} HTTP/1.1\r\nHost: {server}\r\nMetadata-Flavor: Google\r\n\
             Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer).await.ok()?;
        body(&answer).map(str::to_owned)
    };
    tokio::time::timeout(ANSWER, call).await.ok().flatten()
}

/// The body of an answer; `None` if it is an error, or another server's.
fn body(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let is_good = lines.next()?.split(' ').nth(1) == Some("200");
    let is_googles = |line: &str| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("Metadata-Flavor") && value.trim().eq_ignore_ascii_case("Google")
        })
    };
    (is_good && lines.any(is_googles)).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_metadata_server_is_believed() {
        let flavor = "metadata-flavor: Google\r\n";
        assert_eq!(body(&format!("HTTP/1.1 200 OK\r\n{flavor}\r\n[\"ci\"]")), Some("[\"ci\"]"));
        for answer in [
            format!("HTTP/1.1 404 Not Found\r\n{flavor}\r\n[\"ci\"]"),
            "HTTP/1.1 200 OK\r\nServer: a\r\n\r\n[\"ci\"]".to_owned(),
            "SSH-2.0-a\r\n".to_owned(),
        ] {
            assert_eq!(body(&answer), None, "{answer}");
        }
    }
}
