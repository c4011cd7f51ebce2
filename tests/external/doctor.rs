//! Findings of `doctor` that need calls of the program.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use greenroom_ports::provider::Demand;

use crate::fixture::{Pool, registration};

const DEMAND: Demand =
    Demand { max_instances: 2, recorded: 0, max_lifetime: Some(Duration::from_hours(1)), idle_stopped: 0 };

/// The codes of the findings about a program with this answer of `capabilities`, and with these further keys.
async fn codes(capabilities: &str, cases: &str, keys: &str) -> Vec<(&'static str, String)> {
    let (pool, dir) = (Pool::of("machines.sh"), tempfile::tempdir().unwrap());
    let path = dir.path().join("program");
    let script = format!(
        "#!/bin/sh\ncase $1 in\ncapabilities) echo '{capabilities}' ;;\n{cases}\n*) exit 14 ;;\nesac\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let table = format!("program = '{}'\n{keys}", path.display()).parse().unwrap();
    let provider = (registration().build)(&pool.context(), &table).unwrap();
    let found = provider.examine(&DEMAND).await;
    found.into_iter().map(|finding| (finding.code, finding.message)).collect()
}

const LIST: &str = "list) echo '{\"complete\": true, \"machines\": []}' ;;";

#[tokio::test]
async fn a_good_program_has_no_finding_and_each_defect_has_its_own() {
    let able = r#"{"protocol": 1, "name": "mine", "lifetime": true, "offerings": [{"name": "a"}]}"#;
    assert_eq!(codes(able, LIST, "offerings = \"a\"").await, []);
    let examine =
        "examine) echo '{\"findings\": [{\"level\": \"warning\", \"message\": \"few addresses\"}]}' ;;";
    for (capabilities, cases, keys, code, expected) in [
        ("", LIST.to_owned(), "", "external-capabilities", "does not say what it can do"),
        (
            able,
            "list) echo '{\"error\": \"no token\"}'; exit 13 ;;".to_owned(),
            "",
            "external-list",
            "cannot list machines: denied: no token",
        ),
        (able, LIST.to_owned(), "offerings = [\"a\", \"b\"]", "external-offering", "of pool `linux`: b"),
        (able, LIST.to_owned(), "host_key = \"ssh-ed25519 AAAA\"", "external-host-key", "has no effect"),
        (
            able,
            format!("{LIST}\n*) echo '{{}}' ;;"),
            "",
            "external-promise",
            "breaks a promise of the protocol, `verb-unknown`",
        ),
        (
            r#"{"protocol": 1, "name": "mine", "lifetime": true, "host_key": "operator"}"#,
            LIST.to_owned(),
            "",
            "external-host-key",
            "expects the operator to state",
        ),
        (
            r#"{"protocol": 1, "name": "mine", "lifetime": true, "host_key": "console"}"#,
            LIST.to_owned(),
            "",
            "external-host-key",
            "does not have the verb `console`",
        ),
        (
            r#"{"protocol": 1, "name": "mine", "lifetime": true, "verbs": ["examine"]}"#,
            format!("{LIST}\n{examine}"),
            "",
            "external-finding",
            "few addresses",
        ),
        (
            r#"{"protocol": 1, "name": "mine", "lifetime": true, "verbs": ["examine"]}"#,
            LIST.to_owned(),
            "",
            "external-examine",
            "cannot examine its platform",
        ),
    ] {
        let found = codes(capabilities, &cases, keys).await;
        assert!(found.len() == 1 && found[0].0 == code && found[0].1.contains(expected), "{code}: {found:?}");
    }
}
