//! Tests of lanes, second tries and what is printed, with small shell commands as steps.

use super::*;
use crate::step::Build;

/// Runs steps in an empty folder. A build is a shell script that names its test programs to the run.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A program of this text, which stands for a test program of libtest.
    fn script(&self, name: &str, text: &str) -> &'static str {
        let path = self.dir.path().join(name);
        // Another process writes the file: a test that starts a program at the same time would inherit the open file, and an open
        // file cannot be executed.
        let write = "printf '#!/bin/sh\n%s\n' \"$2\" >\"$1\"; chmod 755 \"$1\"";
        let mut writes = std::process::Command::new("sh");
        assert!(writes.args(["-c", write, "sh"]).arg(&path).arg(text).status().unwrap().success());
        path.to_str().unwrap().to_owned().leak()
    }

    fn run(&self, setting: Setting, steps: &[Step]) -> (Results, String) {
        let root = self.dir.path().to_owned();
        let dirs = Dirs { target: root.join("target"), root };
        let log = tempfile::tempdir().unwrap();
        let processes = Processes::new().unwrap();
        let mut out: Vec<u8> = Vec::new();
        let run = Run::new(setting, dirs, Vec::new(), log.path(), &processes, &mut out);
        let wanted: Vec<&Step> = steps.iter().collect();
        let results = run.run(&wanted, &wanted);
        (results, String::from_utf8(out).unwrap())
    }
}

const fn step(name: &'static str, lane: Lane, command: &'static [&'static str]) -> Step {
    Step::program(name, lane, command)
}

#[test]
fn the_steps_of_a_lane_run_in_order_and_lanes_beside_one_another() {
    let place = Place::new();
    // Each waits for the other lane, so that they end only if they run concurrently.
    let wait = |own: &str, other: &str| -> &'static [&'static str] {
        let text = format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done");
        Box::leak(Box::new(["sh", "-c", text.leak()]))
    };
    let steps = [
        step("first", Lane::First, &["touch", "begun"]),
        step("a", Lane::Programs, wait("a", "b")),
        step("after a", Lane::Programs, &["test", "-e", "a", "-a", "-e", "begun"]),
        step("b", Lane::Hosts, wait("b", "a")),
        step("last", Lane::Last, &["test", "-e", "b"]),
    ];
    let (results, printed) = place.run(Setting::default(), &steps);
    assert!(results.reports.iter().all(StepReport::is_passed), "{printed}");
    let names: Vec<&str> = results.reports.iter().map(|report| report.name.as_str()).collect();
    assert_eq!((names[0], names[4]), ("first", "last"));
    let place_of = |name| names.iter().position(|other| *other == name).unwrap();
    assert!(place_of("a") < place_of("after a"), "{names:?}");
    assert_eq!(printed.lines().count(), 5, "{printed}");
}

#[test]
fn the_output_of_a_step_is_shown_only_if_it_failed() {
    let place = Place::new();
    let steps = [
        step("good", Lane::First, &["echo", "quiet"]),
        step("bad", Lane::First, &["sh", "-c", "echo loud; echo louder >&2; exit 7"]),
        step("seeds", Lane::First, &["echo", "300 seeds, no broken promise"]),
        step("slow", Lane::First, &["sleep", "1000"]).seconds(1),
    ];
    let (results, printed) = place.run(Setting::default(), &steps);
    let passed: Vec<bool> = results.reports.iter().map(StepReport::is_passed).collect();
    assert_eq!(passed, [true, false, true, false]);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("good ") && lines[0].contains(" ok "), "{printed}");
    assert!(
        lines[1].starts_with("bad ") && lines[1].ends_with("FAILED    0 s, CPU    0 s   exit 7"),
        "{printed}"
    );
    assert_eq!(lines[2..4], ["    loud", "    louder"]);
    assert!(lines[4].ends_with("   300 seeds, no broken promise"), "{printed}");
    assert!(lines[5].ends_with("killed at its limit of 1 s"), "{printed}");
}

/// A suite of one program, which the build's messages name.
fn suite(place: &Place, text: &str) -> Step {
    let program = place.script("suite", text);
    let message = format!(
        "{{\"profile\":{{\"test\":true}},\"target\":{{\"kind\":[\"test\"],\"name\":\"jobs\"}},\
         \"manifest_path\":\"{0}/Cargo.toml\",\"executable\":\"{program}\"}}",
        place.dir.path().display()
    );
    let cargo = place.script("cargo", &format!("cat <<'END'\n{message}\nEND"));
    assert!(cargo.ends_with("/cargo"));
    Step::suite("jobs", Lane::Programs, Suite::tests(&["jobs"]))
}

/// Runs a suite with the place's `cargo`.
fn run_suite(place: &Place, step: Step) -> (StepReport, String) {
    let root = place.dir.path().to_owned();
    let dirs = Dirs { target: root.join("target"), root };
    let log = tempfile::tempdir().unwrap();
    let processes = Processes::new().unwrap();
    let mut out: Vec<u8> = Vec::new();
    let run = Run::new(Setting::default(), dirs.clone(), Vec::new(), log.path(), &processes, &mut out);
    let cargo = dirs.root.join("cargo").to_str().unwrap().to_owned();
    run.builds.make(&[(Build::Plain, vec![cargo])], &dirs, &[], log.path(), &processes);
    run.run_step(&step);
    let report = run.reports.into_inner().unwrap().remove(0);
    (report, String::from_utf8(out).unwrap())
}

/// Passes one test of two, unless it is run again.
const FLAKY: &str = r#"echo "$@" >>calls
case "$*" in
  *--exact*) printf 'test a::flaky ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n' ;;
  *) printf 'test b ... ok\ntest a::flaky ... FAILED\n\nfailures:\n\n---- a::flaky stdout ----\n\n'
 printf "thread 'a::flaky' (1) panicked at tests/a.rs:1:1:\nno answer in time\n\n\nfailures:\n    a::flaky\n\n"
 printf 'test result: FAILED. 1 passed; 1 failed; 0 ignored\n'
 exit 101 ;;
esac"#;

#[test]
fn a_failed_test_is_repeated_alone_and_reported_as_flaky() {
    let place = Place::new();
    let step = suite(&place, FLAKY);
    let (report, printed) = run_suite(&place, step);
    assert!(report.is_passed(), "{printed}");
    assert_eq!(report.flaky[0].name, "a::flaky");
    assert_eq!((report.passed, report.cases.len()), (2, 2));
    assert_eq!(fs::read_to_string(place.dir.path().join("calls")).unwrap(), "\na::flaky --exact\n");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].ends_with("   2 tests (flaky: a::flaky)"), "{printed}");
    assert_eq!(lines[2], "    first try: no answer in time");
}

#[test]
fn a_step_that_is_not_repeated_fails_at_once() {
    let place = Place::new();
    let step = suite(&place, FLAKY).once();
    let (report, printed) = run_suite(&place, step);
    assert!(!report.is_passed() && report.flaky.is_empty(), "{printed}");
    assert_eq!(report.failed[0].name, "a::flaky");
    assert!(printed.contains("    no answer in time"), "{printed}");
    assert!(!printed.contains("test b ... ok"), "{printed}");
}

#[test]
fn a_program_that_aborts_is_repeated_as_a_whole() {
    let place = Place::new();
    let aborts_once = "echo \"$#\" >>calls; [ \"$(wc -l <calls)\" = 2 ] || kill -ABRT $$; \
                       echo 'test result: ok. 1 passed; 0 failed'";
    let step = suite(&place, aborts_once);
    let (report, printed) = run_suite(&place, step);
    assert!(report.is_passed(), "{printed}");
    assert_eq!(report.flaky[0].name, "all of jobs");
    assert_eq!(fs::read_to_string(place.dir.path().join("calls")).unwrap(), "0\n0\n");
}

/// The result of such a program names no failed test, and names alone select none.
#[test]
fn a_program_that_fails_beyond_its_tests_is_repeated_as_a_whole() {
    let place = Place::new();
    let step = suite(&place, "echo \"$#\" >>calls; echo 'test result: ok. 1 passed; 0 failed'; exit 9");
    let (report, printed) = run_suite(&place, step);
    assert!(!report.is_passed() && printed.contains("   exit 9\n"), "{printed}");
    assert_eq!(fs::read_to_string(place.dir.path().join("calls")).unwrap(), "0\n0\n");
}

#[test]
fn a_second_try_that_runs_nothing_is_no_success() {
    let place = Place::new();
    let finds_nothing = FLAKY.replace("test a::flaky ... ok", "").replace("ok. 1 passed", "ok. 0 passed");
    let step = suite(&place, &finds_nothing);
    let (report, printed) = run_suite(&place, step);
    assert!(
        !report.is_passed() && printed.contains("the second try did not run the failed tests"),
        "{printed}"
    );
}

#[test]
fn a_suite_runs_as_often_as_it_says_and_stops_at_a_failure() {
    let place = Place::new();
    let thrice = "echo >>calls; [ \"$(wc -l <calls)\" -lt 3 ] || exit 101; \
                  echo 'test result: ok. 2 passed; 0 failed'";
    let built = suite(&place, thrice);
    let step = Step { action: Action::Suite(Suite::tests(&["jobs"]).times(50)), ..built };
    let (report, _) = run_suite(&place, step.once());
    assert!(!report.is_passed());
    assert_eq!(fs::read_to_string(place.dir.path().join("calls")).unwrap().lines().count(), 3);
}

#[test]
fn a_suite_fails_without_its_program_and_with_the_build() {
    let place = Place::new();
    let _writes_programs = suite(&place, "");
    let (report, printed) = run_suite(&place, Step::suite("vm", Lane::Hosts, Suite::tests(&["vm"])));
    assert!(!report.is_passed() && printed.contains("no test program of `vm`"), "{printed}");
    place.script("cargo", "echo 'error: expected `;`' >&2; exit 101");
    let (_, printed) = run_suite(&place, Step::suite("jobs", Lane::Hosts, Suite::tests(&["jobs"])));
    assert!(printed.contains("its build failed\n    error: expected `;`"), "{printed}");
    let (_, printed) = run_suite(&place, Step::build("build", Lane::First, Build::Plain));
    assert!(printed.contains("   exit 101\n    error: expected `;`"), "{printed}");
}

#[test]
fn a_build_that_warns_fails_its_step_only() {
    let place = Place::new();
    let step = suite(&place, "echo 'test result: ok. 1 passed; 0 failed'");
    let cargo = fs::read_to_string(place.dir.path().join("cargo")).unwrap();
    place.script("cargo", &format!("echo 'warning: unused' >&2\n{cargo}"));
    let (report, printed) = run_suite(&place, Step::build("build", Lane::First, Build::Plain));
    assert!(!report.is_passed(), "{printed}");
    assert!(printed.contains("printed a warning\n    warning: unused"), "{printed}");
    assert!(run_suite(&place, step).0.is_passed());
}
