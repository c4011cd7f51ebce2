//! A fleeting plugin for tests. Files tell it what to do wrong (faults.rs).
#![expect(clippy::unwrap_used, reason = "a test's program fails by panicking")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    reason = "that is how a plugin talks and ends"
)]
#![expect(unreachable_pub, reason = "the modules of a program have interfaces, though no crate exports them")]

mod faults;
mod group;
mod machines;
mod output;
mod service;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::exit;
use std::sync::Arc;

use futures_util::stream;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

use faults::Faults;
use group::Group;
use service::Service;

/// The variable that Greenroom has to set, and its value.
const COOKIE: (&str, &str) = ("FLEETING_INSTANCE_GROUP_PLUGIN", "4c6410b1-cb78-4962-8c76-ab936d0ea908");
/// The directory of machines and faults, if faults are to act before the configuration names it.
const DIRECTORY: &str = "TEST_PLUGIN_DIR";

fn main() {
    if std::env::var(COOKIE.0).as_deref() != Ok(COOKIE.1) {
        eprintln!("This is a plugin and has to be started by its host.");
        exit(1);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve());
}

async fn serve() {
    let directory = std::env::var_os(DIRECTORY).map(PathBuf::from);
    let faults = Faults::new(directory.clone());
    if let Some(what) = faults.take("start-print") {
        eprintln!("{what}");
    }
    if let Some(arguments) = faults.take("start-child") {
        // In a session of its own: `setsid --fork` exits immediately.
        let mut child = std::process::Command::new("setsid");
        child.arg("--fork").args(arguments.split_whitespace()).status().unwrap();
    }
    if faults.take("start-exit").is_some() {
        exit(3);
    }
    if faults.take("start-hang").is_some() {
        std::future::pending::<()>().await;
    }
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    if faults.take("ignore-sigterm").is_none() {
        tokio::spawn(async move {
            terminated.recv().await;
            exit(0);
        });
    }
    let socket = PathBuf::from(std::env::var_os("PLUGIN_UNIX_SOCKET_DIR").unwrap())
        .join(format!("plugin{}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let address = format!("1|0|unix|{}|grpc|", socket.display());
    let line = faults
        .take("start-line")
        .map_or(address, |line| line.replace("SOCKET", &socket.display().to_string()));
    println!("{line}");
    std::io::stdout().flush().unwrap();
    output::log("debug", "plugin address", &[("address", &socket.display().to_string())]);
    let incoming = stream::unfold(listener, async |listener| {
        Some((listener.accept().await.map(|(connection, _)| connection), listener))
    });
    let service = Service::new(Arc::new(Group::new(faults)));
    Server::builder().serve_with_incoming(service, Box::pin(incoming)).await.unwrap();
}
