//! Each way in which Greenroom learns a machine's address and host key.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_harness::provider::request;
use greenroom_ports::provider::ProviderError;

use crate::fixture::{Pool, registration};

/// Cloud-init's words on a console.
const CONSOLE: &str =
    "-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 AAAAconsole root@m\n-----END SSH HOST KEY KEYS-----\n";

/// The key of a certificate authority.
const CA: &str =
    "host_key_ca = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ'";

/// The endpoint of a machine, whose program has these capabilities, lists these fields, and shows this console.
async fn endpoint(able: &str, fields: &str, console: &str, keys: &str) -> Result<Endpoint, ProviderError> {
    let (pool, dir) = (Pool::of("machines.sh"), tempfile::tempdir().unwrap());
    let path = dir.path().join("program");
    fs::write(dir.path().join("console"), console).unwrap();
    let script = format!(
        r#"#!/bin/sh
case $1 in
  capabilities) echo '{{"protocol": 1, "name": "mine", {able}}}' ;;
  launch) cat >launched; echo '{{"machine": "m"}}' ;;
  list) jq '{{complete: true, machines: [{{machine: "m", state: "running", tags: .tags}} + {{{fields}}}]}}' launched ;;
  endpoint) echo '{{"address": "10.0.0.2", "port": 2222, "host_key": "ssh-ed25519 AAAAendpoint"}}' ;;
  console) jq -n --rawfile text console '{{text: $text}}' ;;
esac
"#
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let table = format!("program = '{}'\n{keys}", path.display());
    let provider = (registration().build)(&pool.context(), &table.parse().unwrap()).unwrap();
    let launch = request(&pool, 1);
    provider.launch(&launch).await.unwrap();
    let found = provider.endpoint(&launch.instance).await?;
    let made = found.host_key == launch.keys.host_key_public.trim();
    // The name of a launch ends with its owner.
    let owner = format!("{}-{}", launch.instance, launch.tags.owner);
    let shown = found.host_key.replace(&owner, "NAME");
    Ok(Endpoint { host_key: if made { "its launch's".to_owned() } else { shown }, ..found })
}

#[tokio::test]
async fn a_host_key_comes_from_where_the_program_says() {
    let report = r#""host_key": "report""#;
    let from_endpoint = r#""host_key": "report", "verbs": ["endpoint"]"#;
    let from_console = r#""host_key": "console", "verbs": ["console"]"#;
    let by_operator = r#""host_key": "operator""#;
    let certificate = r#""host_key": "certificate""#;
    let named = format!("{CA}\nhost_key_name = 'ci.example'");
    let address = r#""address": "10.0.0.1""#;
    let with_key = r#""address": "10.0.0.1", "port": 22022, "host_key": "ssh-ed25519 AAAAlist root@m""#;
    for (able, fields, keys, place, host_key) in [
        (r#""verbs": []"#, address, "", "10.0.0.1:22", "its launch's"),
        // What the program reports is not asked for.
        (r#""verbs": []"#, with_key, "ssh_port = 99", "10.0.0.1:22022", "its launch's"),
        (r#""verbs": ["endpoint"]"#, "", "", "10.0.0.2:2222", "its launch's"),
        (report, with_key, "", "10.0.0.1:22022", "ssh-ed25519 AAAAlist"),
        (from_endpoint, address, "", "10.0.0.2:2222", "ssh-ed25519 AAAAendpoint"),
        (from_console, address, "", "10.0.0.1:22", "ssh-ed25519 AAAAconsole"),
        (by_operator, address, "host_key = \"ssh-ed25519 AAAAmine\"", "10.0.0.1:22", "ssh-ed25519 AAAAmine"),
        (certificate, address, CA, "10.0.0.1:22", "@cert-authority 10.0.0.1,NAME ssh-ed25519 AAAAC3"),
        (
            certificate,
            address,
            named.as_str(),
            "10.0.0.1:22",
            "@cert-authority ci.example ssh-ed25519 AAAAC3",
        ),
    ] {
        let found = endpoint(able, fields, CONSOLE, keys).await.unwrap();
        let at = format!("{}:{}", found.address, found.port);
        assert_eq!(at, place, "{able} {fields}");
        let is_prefix = host_key.starts_with('@') && found.host_key.starts_with(host_key);
        assert!(is_prefix || found.host_key == host_key, "{able} {fields}: {}", found.host_key);
    }
}

#[tokio::test]
async fn without_a_host_key_there_is_no_connection() {
    let address = r#""address": "10.0.0.1""#;
    for (able, console, class) in [
        (r#""host_key": "report""#, "", ErrorClass::Transient),
        (r#""host_key": "console", "verbs": ["console"]"#, "Debian GNU/Linux", ErrorClass::Transient),
        (r#""host_key": "operator""#, "", ErrorClass::Invalid),
        (r#""host_key": "certificate""#, "", ErrorClass::Invalid),
    ] {
        let error = endpoint(able, address, console, "").await.unwrap_err();
        assert_eq!(*error.class(), class, "{able}: {error}");
        assert!(error.to_string().contains("host key"), "{able}: {error}");
    }
}
