//! The program: its processes end with it, and its exit status says what it did.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

#[test]
fn a_step_that_does_not_exist_is_wrong_usage() {
    let output = Command::new(XTASK).args(["test", "--only", "no such step"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "scripts/test: no step matches `no such step`\n");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_steps_are_listed_in_their_order() {
    let output = Command::new(XTASK).arg("steps").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("format\nshell and Python\nbenchmark tools\nbuild and lints\n"), "{text}");
    assert!(output.status.success() && text.ends_with("\nmutants of the core\n"), "{text}");
}

#[test]
fn a_process_ends_when_its_parent_is_killed() {
    let text = format!("'{XTASK}' exec-with-parent $$ sleep 1000 & echo $!; wait");
    let mut parent = Command::new("sh").args(["-c", &text]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = parent.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let process = Path::new("/proc").join(line.trim());
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        for _ in 0..3_000 {
            if is_so() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(is_so(), "{what}");
    };
    let runs = |program: &str| {
        std::fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == program)
    };
    wait_until("the program begins", &|| runs("sleep"));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the program ends", &|| !runs("sleep"));
}
