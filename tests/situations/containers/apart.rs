//! Kind: a job finds nothing of another job on its machine: no server.

use rustix::process::Signal;
use serde_json::json;
use toml::Table;

use crate::engine::engine;
use crate::inside::Inside;
use crate::place::SOON;
use crate::pool::{containers, job, plain};
use crate::setting::Setting;
use crate::site::{Site, site};
use crate::support::attempt::Attempt;
use crate::support::record::Outcome;

/// One machine for many jobs, so many at a time.
fn one_machine(site: &Site, at_a_time: i64, change: impl FnOnce(&mut Table)) -> Setting {
    let setting = containers(site, change).pool("max_instances", 1).pool("max_use_count", 30);
    setting.pool("capacity_per_instance", at_a_time)
}

fn end(attempt: &Attempt) {
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
}

/// *"Tests of another branch ran on the same machine, and ours talked to their server on 127.0.0.1:8080."*
#[test]
pub fn a_jobs_server_answers_no_other_job_on_the_machine() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 2, |_| {}).open();
    let first =
        place.prepared_as(&job(1, "ash:1").service(json!({"name": plain("backend:1"), "alias": "db"})));
    let serve = "nc -ll -p 8080 -e echo the first jobs own & sleep 0.2; nc -w 5 127.0.0.1 8080 </dev/null; nc -w 5 build \
                 8080 </dev/null; wait\n";
    let run = first.start_run("build_script", serve);
    run.wait_for_output("the first jobs own\nthe first jobs own\n", SOON);
    let inside = Inside::of(&place, &first);
    let program = engine().program();
    let addresses = inside.sh(&format!(
        "{program} inspect --format '{{{{range .NetworkSettings.Networks}}}}{{{{.IPAddress}}}}{{{{end}}}}' \
         $({program} ps --format '{{{{.Names}}}}')"
    ));
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), 2, "the job and its service: {addresses:?}");
    let tries = ["127.0.0.1", "build", "db"].into_iter().chain(addresses);
    let tries = tries.map(|at| format!("nc -w 2 {at} 8080 </dev/null || echo nothing at {at}"));
    let result = place.run(&job(2, "ash:1").script(tries));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(!log.contains("the first jobs own\n") && !log.contains("hello from"), "{log}");
    assert_eq!(log.matches("\nnothing at ").count(), 5, "{log}");
    run.signal_group(Signal::TERM);
    run.wait(SOON);
    end(&first);
    place.expect_sound();
}

/// *"With room for two jobs, jobs have a network of their own: are names, the host's and others', still known?"*
#[test]
pub fn in_a_network_of_its_own_a_job_has_its_names_and_reaches_others() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 2, |_| {}).open();
    let names = "grep -w build /etc/hosts; grep -w \"$(hostname)\" /etc/hosts";
    let result =
        place.run(&job(1, "ash:1").script([names, "nc -w 5 198.18.0.1 5000 </dev/null && echo reached"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\nreached\n"), "{log}");
    place.expect_sound();
}
