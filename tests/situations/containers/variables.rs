//! Kind: a container gets each variable that the job gives it, whatever its name and value, or the job log names it.

use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::engine::on_docker;
use crate::pool::{job, plain, setting};
use crate::site::site;

const TEXT: &str = "first line\nsecond 'line'";

/// Names that engines and shells have others like, and those of programs that no shell can set.
const NAMES: [&str; 9] = [
    "PLAIN",
    "CONTAINER_SETTINGS",
    "BASH_SNIPPET",
    "LC_TEXTS",
    "PODMAN_NOTES",
    "STORAGE_RULES",
    "XDG_MENU",
    "my-config",
    "discovery.note",
];

fn all_arrive_or_are_named() {
    let Some(site) = site() else { return };
    let place = setting(site).pool("max_instances", 1).open();
    let text = |name: &str| json!({"key": name, "value": TEXT});
    let mut variables: Vec<_> = NAMES.map(text).into();
    variables.push(json!({"key": "discovery.type", "value": "single-node"}));
    variables.push(json!({"key": "PATH", "value": format!("/bin:{}", "x".repeat(70_000))}));
    let shows = json!({"name": plain("ash:1"), "alias": "shows", "variables": variables,
        "entrypoint": ["/bin/busybox", "nc", "-ll", "-p", "8080", "-e", "/bin/busybox", "env"]});
    let served = |mut service: serde_json::Value| {
        if let Some(variables) = service["variables"].as_array_mut() {
            variables.push(json!({"key": "HEALTHCHECK_TCP_PORT", "value": "8080"}));
        }
        service
    };
    let result = place.run(&job(1, "ash:1").service(served(shows)).script(["nc -w 5 shows 8080 </dev/null"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    let warning = log.lines().find(|line| line.contains("does not get")).unwrap_or_default().to_owned();
    for name in NAMES {
        let arrives = log.contains(&format!("\n{name}={TEXT}\n"));
        assert!(arrives || warning.contains(&format!("`{name}`")), "{name}: {log}");
        assert!(!arrives || !warning.contains(&format!("`{name}`")), "{name}: {log}");
    }
    for arrived in ["PLAIN", "CONTAINER_SETTINGS", "BASH_SNIPPET", "LC_TEXTS", "STORAGE_RULES", "XDG_MENU"] {
        assert!(log.contains(&format!("\n{arrived}=first line\nsecond")), "{arrived}: {log}");
    }
    assert!(log.contains("\ndiscovery.type=single-node\n") && warning.contains("`PATH`"), "{log}");
    place.expect_sound();
}

/// A service with its configuration in a variable of several lines.
#[test]
fn a_service_gets_its_variables_or_the_job_log_names_them() {
    all_arrive_or_are_named();
}

#[test]
fn a_service_of_docker_gets_its_variables_or_the_job_log_names_them() {
    on_docker(all_arrive_or_are_named);
}
