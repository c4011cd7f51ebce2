//! Registries with passwords, tokens and certificates, and registries that are not there.

use std::net::TcpListener;
use std::process::Command;

use base64ct::{Base64, Encoding as _};
use greenroom_testkit::skipped::skipped;
use serde_json::json;

use crate::artifact::{plugin, publish};
use crate::proxy::{IDENTITY_TOKEN, Mode, Proxy};
use crate::site::{ACCOUNT, GREENROOM, Protection, Site, expect_failure, has};

/// Writes Docker's file.
fn log_in(site: &Site, registry: &str, password: &str) {
    let auth = Base64::encode_string(format!("{}:{password}", ACCOUNT.0).as_bytes());
    site.write(".docker/config.json", &json!({"auths": {registry: {"auth": auth}}}).to_string());
}

#[test]
fn a_registry_with_a_password_needs_the_account_of_dockers_file() {
    let Some(site) = Site::protected(Protection::Password) else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let name = site.own("1.0.0");
    let login = format!("docker login {}", site.registry);
    site.fails(&["install", &name], &["denies anonymous access to `team/own`", &login]);
    log_in(&site, &site.registry, "a wrong one");
    let said = site.fails(&["install", &name], &["denies the account `reader` access"]);
    assert!(!said.contains("a wrong one"), "{said}");
    site.write(".docker/config.json", "{\"auths\": 7");
    site.fails(&["install", &name], &[".docker/config.json", "line 1"]);
    // Of another registry.
    log_in(&site, "registry.example:5000", ACCOUNT.1);
    site.fails(&["install", &name], &["denies anonymous access"]);
    site.expect_nothing();
    log_in(&site, &site.registry, ACCOUNT.1);
    site.succeeds(&["install", &name]);
    // In the folder that DOCKER_CONFIG names.
    std::fs::rename(site.dir.path().join(".docker"), site.dir.path().join("docker")).expect("another folder");
    std::fs::remove_dir_all(site.folder()).expect("the version");
    let mut command = site.command(&["install", &name]);
    let output = command.env("DOCKER_CONFIG", site.dir.path().join("docker")).output().expect("the program");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_token_is_fetched_with_the_account_and_never_sent_elsewhere() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let proxy = Proxy::new(&site.registry, Mode::Token);
    let name = format!("{}/team/own:1.0.0", proxy.address());
    site.fails(&["install", &name], &["denies anonymous access"]);
    log_in(&site, proxy.address(), "a wrong one");
    site.fails(&["install", &name], &["denies the account `reader`"]);
    log_in(&site, proxy.address(), ACCOUNT.1);
    let elsewhere = Proxy::new(&site.registry, Mode::PassOn);
    proxy.set(Mode::TokenAndRedirect(elsewhere.address().to_owned()));
    site.succeeds(&["install", &name]);
    let contents: Vec<_> = elsewhere.requests().into_iter().filter(|head| head.contains("/blobs/")).collect();
    assert_eq!(contents.len(), 1, "{contents:?}");
    assert!(!contents[0].to_ascii_lowercase().contains("authorization"), "{contents:?}");
    // The account goes to the token server only.
    let with_account = |head: &&String| head.to_ascii_lowercase().contains("authorization: basic");
    let requests = proxy.requests();
    assert!(requests.iter().filter(with_account).all(|head| head.starts_with("GET /token?")), "{requests:?}");
}

#[test]
fn a_credential_helper_gives_the_account_or_an_identity_token() {
    let Some(site) = Site::open() else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let proxy = Proxy::new(&site.registry, Mode::Token);
    let name = format!("{}/team/own:1.0.0", proxy.address());
    site.write(".docker/config.json", &json!({"credHelpers": {proxy.address(): "lab"}}).to_string());
    let install = || {
        let mut command = site.command(&["install", &name]);
        let path = format!("{}:{}", site.dir.path().join("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).output().expect("the program")
    };
    let helper = |answers: &str| {
        let asked = format!("[ \"$1 $(cat)\" = 'get {}' ] || exit 9", proxy.address());
        site.write("bin/docker-credential-lab", &format!("#!/bin/sh\n{asked}\n{answers}\n"));
        let file = site.dir.path().join("bin/docker-credential-lab");
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("its mode");
    };
    expect_failure(&install(), &["denies anonymous access", "cannot be started", "credHelpers"]);
    helper("echo 'no key ring'; exit 1");
    expect_failure(&install(), &["denies anonymous access", "`docker-credential-lab` fails: no key ring"]);
    helper("echo rubbish");
    expect_failure(&install(), &["denies anonymous access", "something else than an account"]);
    helper("echo 'credentials not found in native keychain'; exit 1");
    let said = expect_failure(&install(), &["denies anonymous access", "docker login"]);
    assert!(!said.contains("key"), "{said}");
    site.expect_nothing();
    let account = |name: &str, secret: &str| {
        let answer = json!({"ServerURL": proxy.address(), "Username": name, "Secret": secret});
        format!("echo '{answer}'")
    };
    helper(&account("<token>", "another one"));
    expect_failure(&install(), &["denies the identity token of Docker's file access"]);
    for (name, secret) in [ACCOUNT, ("<token>", IDENTITY_TOKEN)] {
        helper(&account(name, secret));
        let output = install();
        assert_eq!(output.status.code(), Some(0), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_dir_all(site.plugins().join(proxy.address())).expect("the installed plugin");
    }
}

#[test]
fn https_is_spoken_with_a_certificate_that_is_trusted() {
    let Some(site) = Site::protected(Protection::Certificate) else { return };
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let name = site.own("1.0.0");
    let with_trust = |certificates: &str| {
        let mut command = site.command(&["install", &name]);
        command.env("SSL_CERT_FILE", site.dir.path().join(certificates)).output().expect("the program")
    };
    // Some other certificate.
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-keyout", "other-key.pem", "-out", "other.pem", "-subj", "/CN=other.test"]);
    assert!(openssl.current_dir(site.dir.path()).output().expect("OpenSSL").status.success());
    expect_failure(&with_trust("other.pem"), &["cannot be reached", "certificate", "SSL_CERT_FILE"]);
    site.expect_nothing();
    let output = with_trust("ca.pem");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let Some(site) = Site::open() else { return };
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let host = free.to_string();
    site.fails(&["install", &format!("{host}/team/own")], &[&host, "cannot be reached", "refused"]);
    site.fails(
        &["install", "registry.invalid/team/own"],
        &["registry.invalid", "cannot be reached", "no address"],
    );
    site.expect_nothing();
}

#[test]
fn beyond_loopback_plain_http_needs_the_option() {
    let is_root = rustix::process::getuid().is_root();
    let Some(site) = Site::open() else { return };
    if !is_root || !has("unshare") || !has("ip") {
        skipped("plugins: this is not root, or iproute2 is missing");
        return;
    }
    publish(&site.storage(), "team/own", &["1.0.0"], &plugin("1.0.0"));
    let config = std::fs::read_to_string(site.dir.path().join("registry.yml")).expect("the registry's file");
    site.write("inside.yml", &config.replace("127.0.0.1:0", "198.18.0.1:5000"));
    // The registry says when it listens; it ends with the script.
    let script = "
        set -eu
        ip link set lo up
        ip addr add 198.18.0.1/32 dev lo
        mkfifo log
        docker-registry serve inside.yml >log 2>&1 </dev/null &
        trap \"kill $!\" EXIT
        exec 3<log
        while read -r line <&3; do case $line in *'listening on'*) break ;; esac; done
        cat <&3 >/dev/null &
        \"$0\" plugin install 198.18.0.1:5000/team/own && exit 9
        echo refused
        \"$0\" plugin install 198.18.0.1:5000/team/own:1.0.0 --insecure
        kill %2
    ";
    let output = Command::new("unshare")
        .args(["--net", "bash", "-c", script, GREENROOM])
        .env_clear()
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .env("HOME", site.dir.path())
        .current_dir(site.dir.path())
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("refused\ninstalled own 1.0.0"), "{said}{errors}");
    assert!(errors.contains("cannot be reached") && errors.contains("--insecure"), "{errors}");
}

#[test]
fn without_the_second_program_the_error_names_it() {
    let Some(site) = Site::open() else { return };
    let alone = site.dir.path().join("greenroom");
    if std::fs::hard_link(GREENROOM, &alone).is_err() {
        std::fs::copy(GREENROOM, &alone).expect("a copy");
    }
    let output = Command::new(&alone).args(["plugin", "install", "aws"]).output().expect("it runs");
    expect_failure(&output, &["the installation of plugins needs the program `greenroom-backends`"]);
    // The list needs no second program.
    let mut list = Command::new(&alone);
    list.args(["plugin", "list", "--dir"]).arg(site.plugins());
    list.env("GREENROOM_CONFIG", site.dir.path().join("greenroom.toml"));
    assert_eq!(list.output().expect("it runs").status.code(), Some(0));
}
