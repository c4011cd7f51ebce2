//! Host keys that a certificate authority signs: OpenSSH's own server with certificates of OpenSSH's own `ssh-keygen`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use greenroom_core::endpoint::{Endpoint, certified};
use greenroom_ports::connector::ConnectError;

use super::access::keygen;
use super::sshd::{Set, Sshd};

const WITHIN: Duration = Duration::from_secs(10);

/// Signs a server's host key.
fn sign(authority: &Path, sshd: &Sshd, key: &str, options: &[&str]) {
    fs::write(sshd.path("host_key.pub"), key).unwrap();
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-I", "m1", "-s"]).arg(authority).args(options).arg(sshd.path("host_key.pub"));
    let output = keygen.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A server that presents a certificate as soon as there is one.
async fn server() -> Sshd {
    Sshd::with(Set { config: "HostCertificate DIR/host_key-cert.pub", ..Set::default() }).await
}

#[tokio::test]
async fn a_host_with_a_certificate_for_its_name_or_address_is_accepted() {
    let mut sshd = server().await;
    let authority = keygen(&sshd.path("ca"), &["-t", "ecdsa"]);
    let other = keygen(&sshd.path("other"), &["-t", "ed25519"]);
    let key = sshd.at.host_key.clone();
    for principals in ["m1,m2", "127.0.0.1"] {
        sign(&sshd.path("ca"), &sshd, &key, &["-h", "-n", principals, "-V", "-1m:+10m"]);
        sshd.restart();
        sshd.at.host_key = certified(&["127.0.0.1", "m1"], &[other.clone(), authority.clone()]);
        sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    }
}

#[tokio::test]
async fn each_certificate_that_proves_nothing_is_refused_with_its_reason() {
    let mut sshd = server().await;
    let authority = keygen(&sshd.path("ca"), &["-t", "ed25519"]);
    keygen(&sshd.path("other"), &["-t", "ed25519"]);
    let plain = sshd.at.clone();
    let at = |names: &[&str]| {
        let host_key = certified(names, std::slice::from_ref(&authority));
        Endpoint { host_key, ..plain.clone() }
    };
    for (by, options, expected) in [
        ("other", &["-h", "-n", "m1"][..], "the certificate is signed by SHA256:"),
        ("ca", &["-h", "-n", "m1", "-V", "20200101:20200102"], "the certificate expired at 2020-01-0"),
        ("ca", &["-h", "-n", "m1", "-V", "+1d:+2d"], "the certificate is valid only from"),
        ("ca", &["-n", "m1"], "the certificate is one for users"),
        ("ca", &["-h", "-n", "m2"], "the certificate is for m2"),
        ("ca", &["-h"], "the certificate names no host"),
    ] {
        sign(&sshd.path(by), &sshd, &plain.host_key, options);
        sshd.restart();
        let mut now = at(&["m1"]);
        now.port = sshd.at.port;
        let error = sshd.connector().check(&sshd.id, &now, WITHIN).await.unwrap_err();
        let ConnectError::HostKey { expected: wanted, found, .. } = &error else { panic!("{error:?}") };
        assert!(found.starts_with("SHA256:") && found.contains(expected), "{options:?}: {error}");
        assert!(wanted.starts_with("one with a certificate for m1, signed by SHA256:"), "{error}");
        // An endpoint with the key itself needs no certificate.
        let pinned = Endpoint { port: sshd.at.port, ..plain.clone() };
        sshd.connector().check(&sshd.id, &pinned, WITHIN).await.unwrap();
    }
    fs::remove_file(sshd.path("host_key-cert.pub")).unwrap();
    sshd.restart();
    let mut now = at(&["m1"]);
    now.port = sshd.at.port;
    let error = sshd.connector().check(&sshd.id, &now, WITHIN).await.unwrap_err();
    let ConnectError::HostKey { found, .. } = &error else { panic!("{error:?}") };
    assert!(found.contains("none with a certificate (the host has ssh-ed25519"), "{error}");
}
