//! Failed boots.

use std::time::Duration;

use greenroom_harness::place::SOON;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::pace::Pace;

#[test]
fn a_job_reads_the_console_of_an_instance_that_did_not_come_up() {
    // At least one boot fails within it.
    let wait = Pace::watch().stretched(Duration::from_secs(5));
    let place = Setting::new()
        .pool("max_instances", 1)
        .pool("ready_command", "echo no root file system >&2; exit 3")
        .pool("acquire_timeout", format!("{}ms", wait.as_millis()))
        .open();
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare().wait(SOON);
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    let text = prepare.stderr_text();
    let lines: Vec<&str> = text.lines().collect();
    let failed = lines.iter().position(|line| line.contains(" did not come up: "));
    let failed = failed.unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(lines[failed].contains("no root file system"), "{lines:#?}");
    assert!(lines[failed].ends_with("; the last lines of its console:"), "{lines:#?}");
    assert!(lines[failed + 1].starts_with("  | "), "{lines:#?}");
    assert!(
        lines.iter().all(|line| line.starts_with("greenroom: ") || line.starts_with("  | ")),
        "{lines:#?}"
    );
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.wait_until_settled(0);
    place.expect_sound();
}
