//! Programs that break one promise each: the kit names it, and nothing else.

use std::collections::BTreeSet;

use super::site::{Site, can_go_offline, checks, report};

/// Runs the kit on a program with a fault; the failed checks have to be exactly these.
fn names(fault: &str, more: &[&str], expected: &[&str]) {
    let Some(site) = Site::new("python") else { return };
    site.add_broken(fault);
    let output = site.kit(fault, &[&["--json"], more].concat()).output().expect("the binary runs");
    let report = report(&output);
    let failed = checks(&report, "failed");
    assert_eq!(failed, expected.iter().copied().collect::<BTreeSet<_>>(), "{report:#}");
    assert_eq!(output.status.code(), Some(1));
    let all = report["checks"].as_array().into_iter().flatten();
    for check in all.filter(|check| check["result"] == "failed") {
        let is_told = |field: &str| check[field].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_told("expected") && is_told("actual") && is_told("help"), "{check:#}");
    }
    assert_eq!(report["remaining"], serde_json::json!([]), "{report:#}");
}

const LIVE: &[&str] = &["--live", "--yes"];
const CERTIFIED: &[&str] = &["--live", "--yes", "--host-key-ca", "ca.pub"];

#[test]
fn a_program_whose_machines_end_by_themselves_passes() {
    let Some(site) = Site::new("python") else { return };
    let name = "its_machines_have_a_lifetime";
    site.add_broken(name);
    let output = site.kit(name, &[&["--json"], LIVE].concat()).output().expect("the kit");
    let found = report(&output);
    assert!(checks(&found, "passed").contains("lifetime"), "{found:#}");
    assert_eq!(checks(&found, "failed"), BTreeSet::new(), "{found:#}");
    let asked = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(asked.contains("about 7 machines, at most 5 of them concurrently"), "{asked}");
}

#[test]
fn an_unreachable_cloud_is_empty() {
    if can_go_offline() {
        names("an_unreachable_cloud_is_empty", LIVE, &["list-offline"]);
    }
}

#[test]
fn a_program_whose_machines_have_certificates_passes() {
    let Some(site) = Site::new("python") else { return };
    let name = "its_machines_have_certificates";
    site.add_broken(name);
    let with =
        |more: &[&str]| report(&site.kit(name, &[&["--json"], more].concat()).output().expect("the kit"));
    let found = with(CERTIFIED);
    assert_eq!(checks(&found, "failed"), BTreeSet::new(), "{found:#}");
    assert!(checks(&found, "passed").contains("host-key") && checks(&found, "passed").contains("login"));
    // The kit cannot know the authority by itself.
    let found = with(LIVE);
    assert!(checks(&found, "skipped").contains("host-key"), "{found:#}");
    assert_eq!(checks(&found, "failed"), BTreeSet::new(), "{found:#}");
}

macro_rules! broken {
    ($($fault:ident, $more:expr => $($check:literal),+;)*) => { $(
        #[test]
        fn $fault() {
            names(stringify!($fault), $more, &[$($check),+]);
        }
    )* };
}

broken! {
    rubbish_comes_first, &[] => "call-one-document";
    output_has_no_end, &[] => "call-output-limit";
    list_hangs, &["--call-timeout", "10"] => "call-in-time";
    a_process_stays, &[] => "call-no-process-left";
    an_unknown_verb_succeeds, &[] => "verb-unknown";
    any_protocol_is_claimed, &[] => "protocol-claimed";
    an_error_has_exit_code_0, &[] => "call-error-exit-code", "verb-unknown";
    an_unknown_machine_is_an_error, &[] => "call-exit-code";
    a_repeated_token_makes_two, LIVE => "launch-repeated", "launch-concurrent", "launch-killed", "launch-answer-lost";
    a_killed_launch_is_forgotten, LIVE => "launch-killed";
    ids_are_used_again, LIVE => "ids-unique";
    the_host_key_is_another, LIVE => "host-key";
    a_certificate_is_for_another_machine, CERTIFIED => "host-key";
    the_log_has_the_request, LIVE => "call-keeps-secrets";
    a_repeat_is_refused_for_its_quota, LIVE => "launch-refusal";
    a_lifetime_is_only_claimed, LIVE => "lifetime";
    a_machine_stays_pending, LIVE => "running-listed";
    a_part_is_called_complete, LIVE => "list-complete";
    other_pools_are_listed, LIVE => "list-other-pools";
    a_tag_is_dropped, LIVE => "identity-exact";
    a_deleted_machine_stays_listed, LIVE => "deleted-elsewhere";
    gone_is_said_too_early, LIVE => "terminate-ends";
    an_unknown_machine_is_gone, LIVE => "terminate-unknown-live";
}
