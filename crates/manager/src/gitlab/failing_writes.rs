//! The file for a script's own exit code, with each error of the table in each of its writes.

use std::path::Path;

use fs_err as fs;
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};

use super::env::JobEnv;
use super::exit::{CodeFile, Outcome};

const ACTIONS: [Action; 2] = [
    Action { name: "a stage's code", prepare: made, act: record, judge: judge_code },
    Action { name: "the removal of a code", prepare: recorded, act: clear, judge: judge_removal },
];

const NAME: &str = "build_exit_code";

fn file(dir: &Path) -> CodeFile {
    let path = dir.join(NAME);
    let variable = |name: &str| (name == "BUILD_EXIT_CODE_FILE").then(|| path.clone().into_os_string());
    JobEnv::read(variable).code_file().unwrap()
}

fn made(dir: &Path) {
    fs::create_dir(dir).unwrap();
}

fn recorded(dir: &Path) {
    made(dir);
    file(dir).record(Outcome::of_exit(43)).unwrap();
}

fn record(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    file(dir).record(Outcome::of_exit(42)).map_err(|error| error.to_string())
}

fn clear(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    file(dir).clear().map_err(|error| error.to_string())
}

fn read(dir: &Path) -> Option<String> {
    fs::read_to_string(dir.join(NAME)).ok()
}

fn judge_code(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let expected = ended.is_done.then_some("42\n");
    assert_eq!(read(dir).as_deref(), expected, "{how}");
    file(dir).record(Outcome::of_exit(44)).unwrap();
    assert_eq!(read(dir).as_deref(), Some("44\n"), "{how}");
    ended.no_remains(dir, |name| name != NAME);
}

fn judge_removal(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    assert_eq!(read(dir).is_none(), ended.is_done, "{how}");
    file(dir).clear().unwrap();
    assert_eq!(listed(dir), [""; 0], "{how}");
}

#[test]
#[ignore = "another test starts it in a process of its own"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_of_a_code_is_reported_and_leaves_no_other_number() {
    with_each_error("gitlab::failing_writes::a_process_that_acts", &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        assert!(tally.tried >= 2 && tally.reported == tally.tried, "{}: {tally:?}", action.name);
    });
}
