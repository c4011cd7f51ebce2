//! The file for a script's own exit code cannot be written: who is to blame, and what the job's log says.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use greenroom_harness::driver;
use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::exit_code::Failure;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::skipped::skipped;

/// A prepared job whose `run` calls go through a wrapper, which first reads a script of the test's.
fn prepared() -> (Place, Attempt, PathBuf) {
    let place = Setting::new().open();
    let (wrapper, fault) = (place.path().join("driver"), place.path().join("fault"));
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in *\" run \"*) . {};; esac\nexec {} \"$@\"\n",
        fault.display(),
        driver()
    );
    std::fs::write(&wrapper, text).expect("the wrapper can be written");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("and be made one");
    let attempt = place.runner_with(&wrapper).attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    assert_eq!(attempt.prepare().exit_code(), Some(0));
    (place, attempt, fault)
}

/// The driver with an error in each call of that name on that file. It keeps its process id, which drafts' names have.
fn injected(call: &str, file: &str, error: &str) -> String {
    let inject = format!("inject={call}:error={error}");
    format!("exec strace -D -qq -o /dev/null -P \"{file}\" -e '{inject}' {} \"$@\"\n", driver())
}

fn ptrace_works() -> bool {
    let tried = Command::new("strace").args(["-D", "-qq", "-o", "/dev/null", "true"]).output();
    let works = tried.is_ok_and(|output| output.status.success());
    if !works {
        skipped("strace is missing, or ptrace is not allowed");
    }
    works
}

const RENAMES: &str = "/^rename(at2?)?$";
const DRAFT: &str = "$BUILD_EXIT_CODE_FILE.$$";
const FILE: &str = "$BUILD_EXIT_CODE_FILE";

#[test]
fn a_failed_script_whose_code_cannot_be_written_stays_a_build_failure_and_the_log_names_the_cause() {
    let (place, attempt, fault) = prepared();
    let mut cases = vec![(
        "rm -f \"$BUILD_EXIT_CODE_FILE\"\nexport BUILD_EXIT_CODE_FILE=\"$TMPDIR/gone/code\"\n".to_owned(),
        "No such file or directory",
    )];
    if ptrace_works() {
        cases.extend([
            (injected("openat", DRAFT, "ENOSPC"), "No space left on device"),
            (injected("write", DRAFT, "ENOSPC"), "No space left on device"),
            (injected(RENAMES, DRAFT, "ENOSPC"), "No space left on device"),
            (injected("openat", DRAFT, "EIO"), "Input/output error"),
            (injected("write", DRAFT, "EIO"), "Input/output error"),
            (injected(RENAMES, DRAFT, "EIO"), "Input/output error"),
            (injected("openat", DRAFT, "EROFS"), "Read-only file system"),
            (injected("openat", DRAFT, "EMFILE"), "Too many open files"),
        ]);
    }
    for (how, cause) in &cases {
        // The code of an earlier stage is never this one's.
        std::fs::write(&fault, "").expect("the fault can be written");
        let run = attempt.run("build_script", "exit 43\n");
        assert_eq!(attempt.verdict(&run), Err(Failure::Build { exit_code: 43 }), "{how}");
        std::fs::write(&fault, how).expect("the fault can be written");
        let run = attempt.run("build_script", "echo heard\nexit 42\n");
        let log = run.stderr_text();
        assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(1), "heard\n"), "{how}: {log}");
        assert_eq!(attempt.verdict(&run), Err(Failure::Build { exit_code: 1 }), "{how}: {log}");
        let told = log.contains("cannot record the script's exit code for the runner") && log.contains(cause);
        assert!(told, "{how}: {log}");
        // Only a failure has a code.
        let run = attempt.run("build_script", "true\n");
        assert_eq!((run.exit_code(), run.stderr_text()), (Some(0), String::new()), "{how}");
    }
    println!("{} faults", cases.len());
    std::fs::write(&fault, "").expect("the fault can be written");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.expect_sound();
}

#[test]
fn a_code_of_an_earlier_stage_that_cannot_be_removed_is_a_system_failure_and_no_script_runs() {
    if !ptrace_works() {
        return;
    }
    let (place, attempt, fault) = prepared();
    for (error, cause) in [("EIO", "Input/output error"), ("EROFS", "Read-only file system")] {
        std::fs::write(&fault, "").expect("the fault can be written");
        let run = attempt.run("build_script", "exit 43\n");
        assert_eq!(attempt.verdict(&run), Err(Failure::Build { exit_code: 43 }));
        std::fs::write(&fault, injected("/^unlink(at)?$", FILE, error)).expect("the fault can be written");
        let run = attempt.run("build_script", "echo heard\nexit 42\n");
        let log = run.stderr_text();
        assert_eq!((run.exit_code(), run.stdout_text()), (Some(2), String::new()), "{error}: {log}");
        assert!(log.contains(cause) && log.contains("build_exit_code"), "{error}: {log}");
    }
    std::fs::write(&fault, "").expect("the fault can be written");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.expect_sound();
}
