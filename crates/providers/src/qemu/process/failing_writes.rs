//! A virtual machine's disk and console, and a template's memory, with each error of the table in each of their writes.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_testkit::faulty::{Action, Ended, act, listed, with_each_error};
use rustix::fs::{MemfdFlags, memfd_create};

use super::machine::Console;
use super::qcow2::{new_layer, virtual_size};
use super::template::build::{complete, emptied_on_error};
use super::template::{DISK, DONE, RAM, STATE, Template, TemplateRecord};
use crate::supervised::instance_dir::InstanceDir;

const ACTIONS: [Action; 4] = [
    Action { name: "a disk", prepare: made, act: layer, judge: judge_layer },
    Action { name: "the first output", prepare: made, act: print, judge: judge_console },
    Action { name: "output", prepare: printed, act: print, judge: judge_console },
    Action { name: MEMORY, prepare: frozen, act: complete_template, judge: judge_template },
];
const MEMORY: &str = "a template's memory";
const BYTES: u64 = 1 << 30;

fn made(dir: &Path) {
    fs::create_dir(dir).unwrap();
}

fn disk(dir: &Path) -> PathBuf {
    dir.join("disk.qcow2")
}

fn layer(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    begin();
    new_layer(&disk(dir), BYTES).map(drop).map_err(|error| error.to_string())
}

fn judge_layer(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    assert!(!ended.is_done || virtual_size(&disk(dir)).unwrap() == BYTES, "{how}");
    // Half a disk takes room for nothing, and stands in the way of the next one.
    assert_eq!(listed(dir).is_empty(), !ended.is_done, "{how}");
    if !ended.is_done {
        new_layer(&disk(dir), BYTES).unwrap_or_else(|error| panic!("{how}: {error}"));
    }
}

fn write(dir: &Path, text: &str, begin: &dyn Fn()) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    begin();
    let console = Console::open(&InstanceDir::at(dir)).map_err(|error| error.to_string())?;
    runtime.block_on(console.pump(text.as_bytes()));
    Ok(())
}

fn print(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    write(dir, "new\n", begin)
}

fn printed(dir: &Path) {
    made(dir);
    write(dir, "old\n", &|| ()).unwrap();
}

/// A guest goes on without its output.
fn judge_console(dir: &Path, ended: &Ended) {
    let how = &ended.how;
    let read = || fs::read_to_string(dir.join("console.log")).unwrap_or_default();
    let before = read();
    assert!(["new\n", "old\nnew\n"].iter().any(|whole| whole.starts_with(&before)), "{how}: {before:?}");
    write(dir, "next\n", &|| ()).unwrap_or_else(|error| panic!("{how}: {error}"));
    assert_eq!(read(), format!("{before}next\n"), "{how}");
}

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

fn complete_template(dir: &Path, begin: &dyn Fn()) -> Result<(), String> {
    let template = template(dir);
    let memory = memory();
    begin();
    emptied_on_error(&template, complete(&template, &memory, &TemplateRecord::default()))
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
fn an_error_of_any_write_of_a_machine_is_reported_and_leaves_nothing_half_written() {
    let helper = "qemu::process::failing_writes::a_process_that_acts";
    with_each_error(helper, &ACTIONS, |action, tally| {
        println!("{}", tally.text);
        let least = if action.name == MEMORY { 5 } else { 3 };
        assert!(tally.tried >= least, "{}: {tally:?}", action.name);
        // What a guest prints is lost on a full disk, and only noted.
        let is_console = ["the first output", "output"].contains(&action.name);
        assert!(tally.reported == tally.tried || is_console, "{}: {tally:?}", action.name);
    });
}
