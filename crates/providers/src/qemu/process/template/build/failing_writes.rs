//! The memory of a template, with each error of the table in each of its writes.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{complete, emptied_on_error};
use crate::instance_dir::InstanceDir;
use crate::qemu::process::template::{DISK, DONE, Done, RAM, STATE, Template};

const ACTIONS: [Action; 1] =
    [Action { name: "a template's memory", prepare: frozen, act: build, judge: judge_template }];

fn template(dir: &Path) -> Template {
    Template { dir: InstanceDir::at(dir) }
}

/// The files that a frozen machine has left.
fn frozen(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    for file in [DISK, STATE] {
        std::fs::write(template(dir).dir.file(file), "frozen").unwrap();
    }
}

fn memory() -> OwnedFd {
    let mut file = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(b"memory").unwrap();
    file.set_len(1 << 20).unwrap();
    file.into()
}

fn build(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    let (template, memory) = (template(dir), memory());
    begin();
    emptied_on_error(&template, complete(&template, &memory, &Done::default()))
        .map_err(|error| error.to_string())
}

fn judge_template(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let files = listed(dir);
    let whole = [DISK, DONE, RAM, STATE];
    assert!(
        files.is_empty() || whole.iter().all(|file| files.iter().any(|found| found == file)),
        "{how}: {files:?}"
    );
    assert_eq!(files.len(), if ended.is_done { whole.len() } else { 0 }, "{how}: {files:?}");
}

#[test]
#[ignore = "another test starts it in a process of its own"]
fn a_process_that_acts() {
    act(&ACTIONS);
}

#[test]
fn an_error_of_any_write_of_a_template_is_reported_and_gives_the_room_back() {
    let helper = "qemu::process::template::build::failing_writes::a_process_that_acts";
    with_each_error(helper, &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        assert!(tally.tried >= 5 && tally.reported == tally.tried, "{}: {tally:?}", action.name);
    });
}
