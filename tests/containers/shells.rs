//! The images and entrypoints that run a script, and the job log's words about the others. No job passes whose script
//! did not run.

use std::fmt::Write as _;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::pool::{job, run_all, setting};
use crate::site::site;

const FAILED: Outcome = Outcome::ScriptFailure { exit_code: 1 };

/// An image, the job's own entrypoint, the outcome, and what the log says.
struct Case(&'static str, Value, Outcome, &'static [&'static str]);

fn cases() -> Vec<Case> {
    let own = Value::Null;
    let none = || json!([""]);
    vec![
        Case("ash:1", own.clone(), Outcome::Success, &["ran as 0 in ash"]),
        Case("bash:1", own.clone(), Outcome::Success, &["ran as 0 in bash"]),
        Case("app:1", own.clone(), Outcome::Success, &["ran as 1000 in bash", "home /home/app"]),
        Case("exec:1", own.clone(), Outcome::Success, &["ran as 0", "entrypoint yes"]),
        Case("exec:1", none(), Outcome::Success, &["ran as 0", "entrypoint no"]),
        Case("exec:1", json!(["/bin/sh", "-c"]), Outcome::Success, &["ran as 0", "entrypoint no"]),
        Case("shell:1", own.clone(), Outcome::Success, &["ran as 0"]),
        Case("echo:1", none(), Outcome::Success, &["ran as 0"]),
        Case(
            "echo:1",
            own.clone(),
            FAILED,
            &["the image's entrypoint did not start a shell", "entrypoint: [\"\"]"],
        ),
        Case("three:1", own.clone(), FAILED, &["no display", "exit status 3"]),
        Case("bare:1", own.clone(), FAILED, &["the image has no shell"]),
        // The shell's own code.
        Case(
            "dash:1",
            own.clone(),
            Outcome::ScriptFailure { exit_code: 2 },
            &["dash", "FF_POSIXLY_CORRECT_ESCAPES"],
        ),
        Case("arm:1", own, FAILED, &["arm64"]),
    ]
}

fn job_of(id: u64, Case(image, entrypoint, ..): &Case) -> Job {
    let job = job(id, image).script([
        "echo \"ran as $(id -u) in $(readlink /proc/$$/exe | grep -q bash && echo bash || echo ash)\"",
        "echo \"home $HOME\"",
        "echo \"entrypoint ${FROM_ENTRYPOINT:-no}\"",
    ]);
    if entrypoint.is_null() { job } else { job.image_option("entrypoint", entrypoint.clone()) }
}

#[test]
pub fn a_script_runs_in_its_image_or_the_job_fails_with_the_reason() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let cases = cases();
    let results = run_all(&place, cases.iter().zip(1..).map(|(case, id)| job_of(id, case)));
    let mut wrong = String::new();
    for (Case(image, entrypoint, outcome, said), result) in cases.iter().zip(results) {
        let log = result.log_text();
        let lacks: Vec<_> = said.iter().filter(|said| !log.contains(**said)).collect();
        let green_unread = *outcome != Outcome::Success && log.contains("\nran as ");
        if result.outcome != *outcome || !lacks.is_empty() || green_unread {
            _ = writeln!(
                wrong,
                "{image} {entrypoint}: lacks {lacks:?}, wanted {outcome:?}: {}",
                result.describe()
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    place.expect_sound();
}

#[test]
fn dash_reads_what_is_written_for_it() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let attempt = place.prepared_as(&job(1, "dash:1"));
    let ran = attempt.run("build_script", "echo \"dash reads this\"\n(exit 7)\n");
    assert!(ran.stdout_text().contains("dash reads this"), "{}", ran.stderr_text());
    assert_eq!(ran.exit_code(), Some(1), "{}", ran.stderr_text());
    assert!(!ran.stderr_text().contains("FF_POSIXLY_CORRECT_ESCAPES"), "{}", ran.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}
