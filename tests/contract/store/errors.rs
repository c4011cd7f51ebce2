//! Every system call that writes fails in turn, with each error of a disk.

use std::collections::BTreeSet;

use greenroom_testkit::faulty::said;
use greenroom_testkit::write_errors::{Call, Row, TABLE, ptrace_works};

use super::kill::{SCENES, calls, injected};

#[test]
fn an_error_of_any_write_is_reported_and_what_it_interrupts_is_not_recorded() {
    if !ptrace_works() {
        return;
    }
    for scene in &SCENES {
        let expected = scene.expected();
        let calls = calls(scene);
        let (mut tried, mut reported) = (0, 0);
        for row in &TABLE {
            for (call, file) in places(&calls, row) {
                let home = tempfile::tempdir().unwrap();
                let inject = format!("inject={call}:error={}:when=1", row.error);
                let path = home.path().join(file).display().to_string();
                let output = injected(scene, home.path(), &["-P", &path, "-e", &inject]);
                let how = format!("{}, {} of {call} on {file}", scene.name, row.error);
                let said = said(&output.stdout).join("\n");
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{how}: {said}\n{stderr}");
                let is_done = said == "done";
                assert!(is_done || row.is_told(&said), "{how}: {said}\n{stderr}");
                let is_recorded = scene.judge(home.path(), &expected, &how);
                assert_eq!(is_recorded, scene.commits && is_done, "{how}: {said}");
                tried += 1;
                reported += usize::from(!is_done);
            }
        }
        println!("{}: {reported} of {tried} errors are reported", scene.name);
        assert!(reported >= 3, "{}: {reported} of {tried}", scene.name);
    }
}

/// System calls of a scene that a row concerns, each with a file that it names or writes to.
fn places<'a>(calls: &'a [Call], row: &Row) -> BTreeSet<(&'a str, &'a str)> {
    let on_files = |call: &'a Call| call.files.iter().map(|file| (call.name.as_str(), file.as_str()));
    row.places(calls).flat_map(on_files).collect()
}
