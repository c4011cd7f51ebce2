//! Instances that respond and begin no stages: real `sshd`s, whose login does what the test says.

use std::path::Path;

use greenroom_core::event::Change;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::skipped::skipped;

const SSHD: &str = "/usr/sbin/sshd";

/// The arguments of the check between jobs. The check begins in these tests: otherwise, it would find the instance
/// unfit.
const CHECK: &str = " 102400 1000";
/// The beginning of the keeper's own stage.
const KEEPERS: &str = ": check; ";
/// All stages, the keeper's included, and those of jobs.
const ALL: &str = "";
const OF_JOBS: &str = "exec bash";

/// A pool of one instance that serves any number of jobs, and what its login does.
struct Guest {
    place: Place,
    login: tempfile::TempDir,
}

impl Guest {
    /// A guest whose login can be changed; `None`: the test is skipped.
    fn new() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            skipped("OpenSSH's server is missing");
            return None;
        }
        let login = tempfile::tempdir().expect("a directory");
        let at = login.path().display();
        let write = |name: &str, text: &str| std::fs::write(login.path().join(name), text).expect("a file");
        write(
            "login",
            &format!(
                "[ ! -e {at}/broken ] || case \"$SSH_ORIGINAL_COMMAND\" in *\"{CHECK}\"*) ;; \
                 *\"{KEEPERS}\"*) [ -s {at}/broken ] || exit 97;; \
                 *greenroom-session-*\"$(cat {at}/broken)\"*) exit 97;; esac\nexec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n"
            ),
        );
        write("sshd", &format!("#!/bin/sh\nexec {SSHD} \"$@\" -o 'ForceCommand=exec /bin/sh {at}/login'\n"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let sshd = login.path().join("sshd");
        std::fs::set_permissions(&sshd, mode).expect("its mode can be set");
        let setting = Setting::new().pool("max_use_count", 0).pool("max_instances", 1);
        let sshd = sshd.display().to_string();
        let place = setting.provider("server", "openssh").provider("sshd", sshd).open();
        Some(Self { place, login })
    }

    fn breaks(&self, stages: &str) {
        std::fs::write(self.login.path().join("broken"), stages).expect("a file");
    }

    fn is_repaired(&self) {
        std::fs::remove_file(self.login.path().join("broken")).expect("it was broken");
    }

    /// Runs one stage of a job; what the job log shows if it did not begin.
    #[track_caller]
    fn job(&self, id: u64) -> Result<(), String> {
        let attempt = self.place.prepared_as(&Job::new(id));
        let run = attempt.run("build_script", "echo it ran\n");
        let (code, text) = (run.exit_code(), run.stderr_text());
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        self.place.wait_until_quiet();
        match code {
            Some(0) => Ok(()),
            Some(2) => Err(text),
            other => panic!("{other:?}: {text}"),
        }
    }

    /// Waits for an event that `found` finds.
    fn wait_for(&self, what: &str, found: impl Fn(&Change) -> bool) {
        let seen = || self.place.events().iter().any(|event| found(&event.change)).then_some(());
        wait_for(what, SOON, seen);
    }
}

#[track_caller]
fn expect_not_begun(job: Result<(), String>, next: &str) {
    let text = job.expect_err("its stage begins");
    let why = " did not begin the stage: the session ended with exit status 97 before the script began; ";
    assert!(text.contains(why) && text.contains(next), "{text}");
}

const FIRST: &str = "if the next job meets this too, the instance is checked or taken out of use";
const SECOND: &str = "it gets no more jobs until the keeper has begun a stage there";

#[test]
fn an_instance_that_begins_no_stages_of_two_jobs_nor_the_keepers_is_replaced() {
    let Some(guest) = Guest::new() else { return };
    guest.breaks(ALL);
    expect_not_begun(guest.job(1), FIRST);
    expect_not_begun(guest.job(2), SECOND);
    guest.wait_for("the instance to be drained", |change| {
        let Change::DrainingBegun { reason: DrainReason::BeginsNoStage { message }, .. } = change else {
            return false;
        };
        message == "the session ended with exit status 97 before the script began"
    });
    guest.is_repaired();
    assert_eq!(guest.job(3), Ok(()));
    let used: Vec<_> = guest.place.grants().into_iter().map(|(_, instance)| instance).collect();
    assert!(used[0] == used[1] && used[1] != used[2], "{used:?}");
    let explained = guest.place.order(&["explain", used[0].as_str()]);
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("did not begin a stage of job"), "{explained}");
    assert!(explained.contains("draining: it responds, but begins no stages: "), "{explained}");
    guest.place.expect_sound();
}

#[test]
fn an_instance_that_begins_the_keepers_stage_serves_on() {
    let Some(guest) = Guest::new() else { return };
    guest.breaks(OF_JOBS);
    expect_not_begun(guest.job(1), FIRST);
    expect_not_begun(guest.job(2), SECOND);
    guest.wait_for("the keeper's stage", |change| matches!(change, Change::StageBegun { .. }));
    guest.is_repaired();
    assert_eq!(guest.job(3), Ok(()));
    let used: Vec<_> = guest.place.grants().into_iter().map(|(_, instance)| instance).collect();
    assert!(used.iter().all(|instance| *instance == used[0]), "{used:?}");
    guest.place.expect_sound();
}

#[test]
fn a_stage_that_begins_ends_the_row() {
    let Some(guest) = Guest::new() else { return };
    for id in [1, 3] {
        guest.breaks(ALL);
        let attempt = guest.place.prepared(id);
        // A shell that waits for the first stage has begun before.
        attempt.run("get_sources", "true\n");
        assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(2));
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        guest.place.wait_until_quiet();
        guest.is_repaired();
        assert_eq!(guest.job(id + 1), Ok(()));
    }
    let events = guest.place.events();
    let count = |found: fn(&Change) -> bool| events.iter().filter(|event| found(&event.change)).count();
    assert_eq!(count(|change| matches!(change, Change::StageNotBegun { .. })), 2);
    assert_eq!(count(|change| matches!(change, Change::StageBegun { .. })), 2);
    assert_eq!(count(|change| matches!(change, Change::DrainingBegun { .. })), 0);
    guest.place.expect_sound();
}
