//! The state directory and its owner.

use std::collections::BTreeSet;

use greenroom_testkit::skipped::skipped;

use super::*;

#[test]
fn twenty_processes_that_open_a_new_directory_agree_on_one_owner() {
    let home = home();
    let procs: Vec<Proc> = (0..20).map(|_| start("open", home.path())).collect();
    let owners: Vec<String> = procs.into_iter().map(|mut proc| proc.hear()).collect();
    assert_eq!(owners[0].len(), 16);
    assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
    let files = fs::read_dir(home.path().join("state")).unwrap();
    let files: BTreeSet<_> = files.map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, ["manager", "owner"].map(Into::into).into());
}

#[tokio::test]
async fn a_copied_directory_says_so_and_a_renamed_one_does_not() {
    let home = home();
    let original = home.path().join("state");
    let owner = operator(&original).identity().await.unwrap().owner;
    let copy = home.path().join("copy");
    let copied = Command::new("cp").arg("-a").args([&original, &copy]).status().unwrap();
    assert!(copied.success());
    let identity = operator(&copy).identity().await.unwrap();
    assert_eq!(identity.owner, owner);
    let message = identity.moved.unwrap();
    assert!(message.contains("inode") && message.contains("greenroom doctor --take-over"), "{message}");
    let renamed = home.path().join("renamed");
    fs::rename(&original, &renamed).unwrap();
    assert_eq!(operator(&renamed).identity().await.unwrap().moved, None);
}

#[test]
fn a_read_only_and_a_full_file_system_are_named_as_such() {
    for (options, then, expected) in [
        ("size=1m", "mount -o remount,ro \"$0\"", "read-only"),
        ("size=4k", "dd if=/dev/zero of=\"$0/fill\" bs=4k count=1 status=none", "is full"),
    ] {
        let home = home();
        let script = format!("mount -t tmpfs -o {options} none \"$0\" && {{ {then}; \"$@\"; }}");
        let mut command = Command::new("unshare");
        let inner = child_command("open", home.path());
        command.args(["-r", "-m", "sh", "-c", &script]).arg(home.path()).arg(inner.get_program());
        command.args(inner.get_args()).env(ROLE, "open").env(DIR, home.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if stderr.contains("unshare failed") || stderr.contains("mount: ") {
            skipped("user and mount namespaces cannot be made (`unshare -r -m`)");
            return;
        }
        assert!(stderr.contains(expected), "{options}: {stderr}");
    }
}
