//! Registries on this machine's loopback, with a certificate for the address by which guests reach them.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use greenroom_harness::processes::wait_for;
use toml::{Table, Value};

use crate::published;

/// The gateway of a guest whose network is open: this machine's loopback.
const HOST: &str = "10.0.2.2";
/// The account of the registry with a password, and its line (`crypt`, `$2y$05$`).
pub(crate) const ACCOUNT: (&str, &str) = ("reader", "a made-up password");
const HTPASSWD: &str = "reader:$2y$05$greenroomgreenroomgreukbtVYDDmlBUYWrU.or5DiBA1rLozTP6\n";

/// Serves until its standard input closes, however this process ends.
const SERVE: &str =
    "docker-registry serve \"$1\" </dev/null >\"$2\" 2>&1 & read -r _; kill $!; wait $! 2>/dev/null";

/// Two registries with the same images.
pub(crate) struct Registries {
    /// The certificate that verifies both.
    ca: PathBuf,
    pub(crate) open: String,
    pub(crate) with_password: String,
    servers: Vec<(Child, Option<ChildStdin>)>,
}

impl Drop for Registries {
    fn drop(&mut self) {
        for (server, input) in &mut self.servers {
            drop(input.take());
            let _ended = server.wait();
        }
    }
}

impl Registries {
    /// The keys of a pool whose machines reach them, as Docker Hub's mirror and by address.
    pub(crate) fn keys(&self) -> Table {
        let mirrors = Table::from_iter([("docker.io".to_owned(), Value::String(self.open.clone()))]);
        let ca = self.ca.display().to_string();
        Table::from_iter([("mirrors".to_owned(), mirrors.into()), ("ca".to_owned(), ca.into())])
    }

    /// The part of this machine that is missing for registries and their images.
    pub(crate) fn obstacle() -> Option<&'static str> {
        let has = |program: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
            shell.status().is_ok_and(|status| status.success())
        };
        if !rustix::process::geteuid().is_root() {
            return Some("images with files of several users need root");
        }
        let programs = ["docker-registry", "busybox", "openssl"];
        (!programs.into_iter().all(has))
            .then_some("one of docker-registry, BusyBox and OpenSSL is missing for registries")
    }

    /// Lays these images down in a directory and serves them.
    pub(crate) fn serve(dir: &Path, images: &[&str]) -> Self {
        let at = |name: &str| dir.join(name);
        published::publish_all(&at("registry"), &at("work"), |name| images.contains(&name));
        std::fs::write(at("htpasswd"), HTPASSWD).expect("accounts");
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        openssl.args(["-nodes", "-days", "7", "-subj", "/CN=registry", "-addext"]);
        openssl.arg(format!("subjectAltName=IP:{HOST}"));
        openssl.arg("-keyout").arg(at("key.pem")).arg("-out").arg(at("ca.pem"));
        assert!(openssl.stderr(Stdio::null()).status().expect("OpenSSL starts").success());
        let mut servers = Vec::new();
        let accounts = at("htpasswd").display().to_string();
        let auth = format!("auth: {{htpasswd: {{realm: lab, path: {accounts}}}}}\n");
        let [open, with_password] = [("open", ""), ("password", &*auth)].map(|(name, more)| {
            let (server, port) = start(dir, name, more);
            servers.push(server);
            format!("{HOST}:{port}")
        });
        Self { ca: at("ca.pem"), open, with_password, servers }
    }
}

/// A registry, and the port that it chose.
fn start(dir: &Path, name: &str, more: &str) -> ((Child, Option<ChildStdin>), u16) {
    let (config, log) = (dir.join(format!("{name}.yml")), dir.join(format!("{name}.log")));
    let at = dir.display();
    let text = format!(
        "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {at}/registry}}}}\n\
         http: {{addr: '127.0.0.1:0', secret: lab, tls: {{certificate: {at}/ca.pem, key: {at}/key.pem}}}}\n{more}"
    );
    std::fs::write(&config, text).expect("a configuration");
    let mut shell = Command::new("sh");
    shell.args(["-c", SERVE, "sh"]).arg(&config).arg(&log).stdin(Stdio::piped());
    let mut server = shell.spawn().expect("a shell starts");
    let input = server.stdin.take();
    let port = wait_for("a registry listens", Duration::from_mins(1), || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let after = text.split("listening on 127.0.0.1:").nth(1)?;
        after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    });
    ((server, input), port)
}
