//! Probes the SSH server of a host that has not answered yet, without logging in, so that a list stays cheap.

use std::time::Duration;

use greenroom_system::names::look_up;
use greenroom_system::names::race::connect_any;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::settings::Server;

/// Time limit of one probe.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum output of a server before its version line (RFC 4253, 4.2), in bytes.
const PREAMBLE: u64 = 8 << 10;

/// The error is a short description of the server's problem.
pub(super) async fn probe(server: &Server) -> Result<(), String> {
    let Server { address, port, .. } = server;
    let probed = tokio::time::timeout(TIMEOUT, banner(address, *port)).await;
    probed.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())))
}

async fn banner(address: &str, port: u16) -> Result<(), String> {
    let connecting = async { connect_any(&look_up(address, port).await?).await };
    let stream = connecting.await.map_err(|error| plain(&error))?;
    let mut lines = BufReader::new(stream.take(PREAMBLE));
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line).await {
            Ok(0) => return Err("it closes the connection before it sends its SSH version".to_owned()),
            Ok(_) if line.starts_with(b"SSH-") => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(plain(&error)),
        }
    }
}

/// An I/O error without its number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
