//! Starts that fail, and what comes after them.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use greenroom_backends::fleeting::group::{CallErrorKind, InstanceGroup as _};
use greenroom_backends::fleeting::locate::LocateError;
use greenroom_backends::fleeting::plugin::{ConnectorSettings, Pauses, Plugin};
use serde_json::json;

use crate::fixture::{Place, at, failed, with_config};

#[tokio::test]
async fn a_plugin_starts_once_for_concurrent_calls_and_says_what_it_is() {
    let place = Place::new();
    place.fault("max-size", "4294967295");
    let plugin = place.plugin();
    let (one, other) = tokio::join!(plugin.info(), plugin.info());
    let info = one.unwrap();
    assert_eq!(Ok(&info), other.as_ref());
    assert_eq!((info.version.as_str(), info.max_size, info.suspends), ("1.2.3", None, true));
    let sockets = place.sockets();
    assert_eq!(sockets.len(), 1, "one process: {sockets:?}");
    assert_eq!(fs::metadata(&sockets[0]).unwrap().permissions().mode() & 0o777, 0o700);
    drop(plugin);
    place.is_empty().await;
}

#[tokio::test]
async fn a_plugin_that_cannot_start_says_why_and_leaves_nothing() {
    for (fault, content, why) in [
        ("start-line", "1|1|unix|SOCKET|grpc|", "version 1 of the fleeting protocol"),
        ("start-line", "1|0|unix|/tmp/elsewhere|grpc|", "is not in"),
        ("start-line", "1|0|tcp|127.0.0.1:1|grpc|", "listens on `tcp`"),
        ("start-line", "usage: plugin", "printed `usage: plugin` instead"),
        ("start-exit", "", "it exited with code 3 before its handshake"),
        (
            "init-crash",
            "",
            "during Init; the plugin's log ends: panic: assignment to entry in nil map | goroutine 1",
        ),
        ("init-error", "no such zone", "the plugin does not accept its configuration: no such zone"),
        ("init-unimplemented", "", "does not accept its configuration: unknown method"),
    ] {
        let place = Place::new();
        place.fault(fault, content);
        let plugin = place.plugin();
        assert_eq!(failed(plugin.update().await, why).kind, CallErrorKind::NotStarted, "{fault}");
        place.is_empty().await;
    }
    let place = Place::new();
    let certificate = "A".repeat(600);
    place.fault("start-line", &format!("1|0|unix|SOCKET|grpc|{certificate}"));
    failed(place.plugin().info().await, "demands TLS");
}

#[tokio::test]
async fn what_a_plugin_prints_before_its_end_is_in_the_error() {
    let place = Place::new();
    place.fault("start-print", "first\nlicence is missing, token tok-12345");
    place.fault("start-exit", "");
    let error = failed(place.plugin().info().await, "the plugin's log ends: first | licence is missing");
    assert!(!error.message.contains("tok-12345"), "{error:?}");
}

#[tokio::test]
async fn a_program_that_is_none_or_is_missing_is_named() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.program = at(place.path().join("missing"));
    failed(
        Plugin::new(settings).info().await,
        "missing` cannot be started: it cannot be executed: No such file",
    );
    let mut settings = place.settings();
    settings.program = std::rc::Rc::new(|| Err(LocateError::Path("/opt/aws".into())));
    let error = failed(Plugin::new(settings).info().await, "plugin `/opt/aws` is missing");
    assert_eq!(error.kind, CallErrorKind::NotStarted);
    place.is_empty().await;
}

#[tokio::test]
async fn a_plugin_without_a_handshake_is_killed_at_its_limit() {
    for fault in ["start-hang", "init-hang"] {
        let place = Place::new();
        place.fault(fault, "");
        place.fault("start-child", "sleep 98770");
        let mut settings = place.settings();
        (settings.deadlines.handshake, settings.deadlines.init) =
            (Duration::from_secs(3), Duration::from_secs(3));
        let error = failed(Plugin::new(settings).info().await, "within 3 s");
        assert_eq!(error.kind, CallErrorKind::NotStarted);
        place.is_empty().await;
    }
}

#[tokio::test]
async fn pauses_between_starts_grow_and_end() {
    let place = Place::new();
    place.fault("start-exit", "");
    let mut settings = place.settings();
    settings.pauses = Pauses { first: Duration::from_millis(1500), ..Pauses::default() };
    let plugin = Plugin::new(settings);
    failed(plugin.info().await, "before its handshake");
    let begun = Instant::now();
    for _ in 0..20 {
        let error = failed(plugin.info().await, "before its handshake; it is started again in");
        assert_eq!(error.kind, CallErrorKind::NotStarted);
    }
    assert!(begun.elapsed() < Duration::from_millis(1500), "a pause is answered immediately");
    place.repair("start-exit");
    while let Err(error) = plugin.info().await {
        assert!(
            error.message.contains("started again") && begun.elapsed() < Duration::from_secs(20),
            "{error:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_decoded_does_not_spin() {
    let place = Place::new();
    place.fault("init-error", "unmarshaling config: json: cannot unmarshal number 1.5");
    let plugin = place.plugin();
    let error = failed(plugin.update().await, "does not accept its configuration: unmarshaling config");
    assert_eq!(error.kind, CallErrorKind::Configuration);
    place.repair("init-error");
    let again = failed(plugin.update().await, "it is started again in");
    assert_eq!(again.kind, CallErrorKind::Configuration);
    place.is_empty().await;
    place.fault("max-size", "0");
    let error = failed(place.plugin().info().await, "its maximum is 0");
    assert_eq!(error.kind, CallErrorKind::Configuration);
}

#[tokio::test]
async fn winrm_is_refused_before_anything_starts() {
    let place = Place::new();
    for (protocol, why) in
        [("winrm", "not by WinRM"), ("winrm+https", "not by WinRM"), ("telnet", "no protocol `telnet`")]
    {
        let mut settings = place.settings();
        settings.connector =
            ConnectorSettings { protocol: protocol.to_owned(), ..ConnectorSettings::default() };
        let error = failed(Plugin::new(settings).info().await, why);
        assert_eq!(error.kind, CallErrorKind::Configuration);
    }
    let mut settings = place.settings();
    settings.connector.use_static_credentials = true;
    failed(Plugin::new(settings).info().await, "need a `username`");
    assert!(!place.path().join("sockets").exists());
}

#[tokio::test]
async fn a_missing_key_is_the_plugins_own_sentence() {
    let place = Place::new();
    let settings = with_config(place.settings(), json!({ "dri": "x" }));
    failed(Plugin::new(settings).info().await, "configuration: the key `dir` is missing");
}

#[tokio::test]
async fn a_state_directory_with_a_long_path_is_refused_with_the_limit() {
    let place = Place::new();
    let mut settings = place.settings();
    settings.sockets = place.path().join("x".repeat(70));
    failed(Plugin::new(settings).info().await, "use a shorter state directory");
}
