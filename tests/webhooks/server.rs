//! Certificates of an authority of the tests' own, and an HTTPS server that has one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use greenroom_testkit::skipped::skipped;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// `good`, `elsewhere` (for another name) and `expired`, of one authority; and another authority.
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
}

const CURVE: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Certificates {
    /// Certificates of the test's own. `None`: OpenSSL is missing, and the test is skipped.
    pub(crate) fn new() -> Option<Self> {
        if Command::new("openssl").arg("version").output().is_err() {
            skipped("webhooks: OpenSSL is missing");
            return None;
        }
        let made = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["ca", "other"] {
            let arguments = ["req", "-x509", "-days", "7", "-subj", &format!("/CN={name}.test")];
            let files = ["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")];
            made.openssl(&[&arguments[..], &CURVE, &files].concat());
        }
        made.certify("good", "IP:127.0.0.1,DNS:localhost", "7");
        made.certify("elsewhere", "DNS:elsewhere.test", "7");
        made.certify("expired", "IP:127.0.0.1", "-1");
        Some(made)
    }

    fn certify(&self, name: &str, names: &str, days: &str) {
        let [key, request, out, extensions] = ["key", "csr", "pem", "ext"].map(|end| format!("{name}.{end}"));
        std::fs::write(self.path(&extensions), format!("subjectAltName={names}\n")).unwrap();
        let files = ["-keyout", &key, "-out", &request, "-subj", "/CN=server"];
        self.openssl(&[&["req"][..], &CURVE, &files].concat());
        let sign = ["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-days", days];
        self.openssl(&[&sign[..], &["-extfile", &extensions, "-out", &out]].concat());
    }

    fn openssl(&self, arguments: &[&str]) {
        let made = Command::new("openssl").args(arguments).current_dir(self.dir.path()).output().unwrap();
        assert!(made.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub(crate) fn other_authority(&self) -> PathBuf {
        self.path("other.pem")
    }

    fn config(&self, name: &str) -> Arc<ServerConfig> {
        let read = |path: &Path| CertificateDer::from_pem_file(path).unwrap();
        let chain = vec![read(&self.path(&format!("{name}.pem")))];
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap())
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Status(&'static str),
    Redirect(String, &'static str),
    /// The connection stays open.
    Nothing,
}

/// Serves one connection after the other; the last reply is for all that follow.
pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(certificates: &Certificates, certificate: &str, replies: Vec<Reply>) -> Self {
        let config = certificates.config(certificate);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        // It ends with the test's process.
        std::thread::spawn(move || {
            let (mut replies, mut open) = (replies, Vec::new());
            for stream in listener.incoming() {
                let reply = replies[0].clone();
                if let Some((request, stream)) = serve(&config, stream.unwrap(), &reply) {
                    open.push(stream);
                    seen.lock().unwrap().push(request);
                    if replies.len() > 1 {
                        replies.remove(0);
                    }
                }
            }
        });
        Self { port, requests }
    }

    /// Whole requests, each with its body.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// Reads one request and replies; `None`: the client went before it had sent a request.
fn serve(config: &Arc<ServerConfig>, stream: TcpStream, reply: &Reply) -> Option<(String, Stream)> {
    let connection = ServerConnection::new(Arc::clone(config)).unwrap();
    let mut reader = BufReader::new(StreamOwned::new(connection, stream));
    let (mut request, mut length) = (String::new(), 0);
    loop {
        let start = request.len();
        if reader.read_line(&mut request).ok()? == 0 {
            return None;
        }
        let line = request[start..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.push_str(std::str::from_utf8(&body).unwrap());
    let mut stream = reader.into_inner();
    let head = match reply {
        Reply::Status(status) => format!("{status}\r\n"),
        Reply::Redirect(location, status) => format!("{status}\r\nLocation: {location}\r\n"),
        Reply::Nothing => return Some((request, stream)),
    };
    write!(stream, "HTTP/1.1 {head}Content-Length: 0\r\nConnection: close\r\n\r\n").ok()?;
    stream.flush().ok()?;
    Some((request, stream))
}
