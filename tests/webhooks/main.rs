//! Notices over HTTPS: the program that posts them, and a keeper that starts it, with real servers on loopback.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking, in helpers too")]

mod keeper;
mod server;

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use server::{Certificates, Reply, Server};

/// The program that posts.
const BACKENDS: &str = env!("CARGO_BIN_EXE_greenroom-backends");
/// The secret that `url` has and nothing else may show.
const SECRET: &str = "s3cret";

/// The words of the program about a notice, and its exit status.
fn posted(url: &str, authorities: &Path, within_ms: u64) -> (Option<i32>, String) {
    let order =
        json!({ "url": url, "shown": "https://shown/…", "body": "{\"version\":1}\n", "within": within_ms });
    let mut program = Command::new(BACKENDS)
        .arg("post-notice")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("SSL_CERT_FILE", authorities)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    program.stdin.take().unwrap().write_all(order.to_string().as_bytes()).unwrap();
    let output = program.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!said.contains(SECRET), "{said}");
    (output.status.code(), said)
}

/// Posts to a server with a certificate of this authority, and this name.
fn posted_to(server: &Server, host: &str, authorities: &Path) -> (Option<i32>, String) {
    posted(&format!("https://{host}:{}/hook?key={SECRET}", server.port), authorities, 20_000)
}

#[test]
fn a_notice_arrives_whole() {
    let Some(certificates) = Certificates::new() else { return };
    let server = Server::start(&certificates, "good", vec![Reply::Status("204 No Content")]);
    for host in ["127.0.0.1", "localhost"] {
        let server = Server::start(&certificates, "good", vec![Reply::Status("200 OK")]);
        let (code, said) = posted_to(&server, host, &certificates.authority());
        assert_eq!((code, said.as_str()), (Some(0), ""));
        let request = server.requests().remove(0).to_ascii_lowercase();
        assert!(request.starts_with(&format!("post /hook?key={SECRET} http/1.1\r\n")), "{request}");
        for part in [&format!("host: {host}:{}", server.port), "content-type: application/json", "greenroom/"]
        {
            assert!(request.contains(part), "{request}");
        }
        assert!(request.ends_with("\r\n\r\n{\"version\":1}\n"), "{request}");
    }
    assert_eq!(posted_to(&server, "127.0.0.1", &certificates.authority()).0, Some(0));
}

#[test]
fn a_server_with_another_certificate_gets_nothing() {
    let Some(certificates) = Certificates::new() else { return };
    let (own, other) = (certificates.authority(), certificates.other_authority());
    for (certificate, authority, expected) in [
        ("good", &other, "UnknownIssuer"),
        ("elsewhere", &own, "not valid for name"),
        ("expired", &own, "Expired"),
    ] {
        let server = Server::start(&certificates, certificate, vec![Reply::Status("204 No Content")]);
        let (code, said) = posted_to(&server, "127.0.0.1", authority);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.starts_with("https://shown/…: ") && said.contains("certificate") && said.contains(expected),
            "{certificate}: {said}"
        );
        assert_eq!(server.requests(), [""; 0], "{certificate}");
    }
}

#[test]
fn a_status_beyond_200_to_299_is_a_failure_and_redirects_are_not_followed() {
    let Some(certificates) = Certificates::new() else { return };
    let elsewhere = Server::start(&certificates, "good", vec![Reply::Status("204 No Content")]);
    let location = format!("https://127.0.0.1:{}/", elsewhere.port);
    for (reply, status) in [
        (Reply::Status("500 Internal Server Error"), 500),
        (Reply::Status("404 Not Found"), 404),
        (Reply::Redirect(location.clone(), "302 Found"), 302),
        (Reply::Redirect(location, "307 Temporary Redirect"), 307),
    ] {
        let server = Server::start(&certificates, "good", vec![reply]);
        let (code, said) = posted_to(&server, "127.0.0.1", &certificates.authority());
        assert_eq!(
            (code, said.trim()),
            (Some(1), &*format!("https://shown/… answered with status {status}"))
        );
    }
    assert_eq!(elsewhere.requests(), [""; 0]);
}

#[test]
fn a_server_that_hangs_is_given_up_in_time_and_others_are_named() {
    let Some(certificates) = Certificates::new() else { return };
    let authority = certificates.authority();
    let server = Server::start(&certificates, "good", vec![Reply::Nothing]);
    let url = format!("https://127.0.0.1:{}/{SECRET}", server.port);
    let (code, said) = posted(&url, &authority, 1_000);
    assert_eq!((code, said.trim()), (Some(1), "https://shown/… did not answer within 1 s"));
    // It accepts the connection, and speaks no TLS.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/{SECRET}", silent.local_addr().unwrap());
    let (code, said) = posted(&url, &authority, 1_000);
    assert_eq!((code, said.trim()), (Some(1), "https://shown/… did not answer within 1 s"));
    // Bound and never listening: no other process can take the port.
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address: std::net::SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    let (code, said) = posted(&format!("https://{address}/{SECRET}"), &authority, 20_000);
    assert!(code == Some(1) && said.contains("refused"), "{said}");
    let (code, said) = posted(&format!("https://no-such-host.invalid/{SECRET}"), &authority, 20_000);
    assert!(code == Some(1) && said.contains("the name has no address"), "{said}");
    // It never speaks plain HTTP.
    let (code, said) = posted(&format!("http://127.0.0.1:{}/{SECRET}", server.port), &authority, 20_000);
    assert!(code == Some(1) && said.starts_with("https://shown/…: "), "{said}");
}
