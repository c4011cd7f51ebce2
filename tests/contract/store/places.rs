//! Directories that cannot be used: a clear error each, and nothing is lost.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output};

use greenroom_ports::store::{OperatorStore as _, Store};
use greenroom_testkit::faulty::said;
use greenroom_testkit::skipped::skipped;

use super::helper::{command, run};
use super::support::{block_on, eager, file, fill, open};

/// Runs a helper in a mount namespace of its own, after `setup` has changed what is there. `None`: not allowed here,
/// and the test is skipped.
fn elsewhere(dir: &Path, setup: &str, orders: &[&str]) -> Option<Vec<Output>> {
    let possible = Command::new("unshare").args(["-rm", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skipped("user and mount namespaces cannot be made (`unshare -r -m`)");
        return None;
    }
    let script = format!("{setup} && exec \"$@\"");
    let run =
        |order: &&str| command(&["unshare", "-rm", "sh", "-c", &script, "sh"], dir, order).output().unwrap();
    Some(orders.iter().map(run).collect())
}

#[track_caller]
fn assert_said(output: &Output, words: &[&str]) {
    let said = said(&output.stdout).join("\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}\n{stderr}");
    }
}

#[test]
fn a_read_only_directory_can_be_read_and_says_so_when_written() {
    let home = tempfile::tempdir().unwrap();
    let before = fill(&open(home.path(), eager()), "r", 3);
    let dir = home.path().display();
    let setup = format!("mount --bind {dir} {dir} && mount -o remount,ro,bind {dir}");
    let Some(outputs) = elsewhere(home.path(), &setup, &["load -", "request x", "compact -"]) else { return };
    assert_said(&outputs[0], &["done"]);
    assert_said(&outputs[1], &["cannot open", "journal.jsonl", "Read-only file system"]);
    assert_said(&outputs[2], &["cannot ", "Read-only file system"]);
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), before);
}

#[test]
fn a_directory_without_the_right_to_write_says_so_for_an_ordinary_user() {
    let home = tempfile::tempdir().unwrap();
    let before = fill(&open(home.path(), eager()), "r", 3);
    let journal = file(home.path(), "journal.jsonl");
    let mode = |mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o400);
    let output = run(home.path(), "request x");
    mode(0o600);
    if rustix::process::geteuid().is_root() {
        skipped("root may write whatever the mode says");
        return;
    }
    assert_said(&output, &["cannot open", "journal.jsonl", "Permission denied"]);
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), before);
}

#[test]
fn a_full_disk_refuses_the_record_and_keeps_everything_before_it() {
    let home = tempfile::tempdir().unwrap();
    let setup = format!("mount -t tmpfs -o size=128k,mode=700 none {}", home.path().display());
    if let Some(outputs) = elsewhere(home.path(), &setup, &["fill-up -"]) {
        let stderr = String::from_utf8_lossy(&outputs[0].stderr);
        assert!(outputs[0].status.success(), "{}{stderr}", String::from_utf8_lossy(&outputs[0].stdout));
        assert_said(&outputs[0], &["full after "]);
        println!("a full tmpfs: {}", said(&outputs[0].stdout).join(", "));
    }
}

#[test]
fn a_container_s_overlay_is_taken_with_a_warning() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().display();
    let setup = format!(
        "mount -t tmpfs -o mode=700 none {dir} && cd {dir} && mkdir lower upper work && \
         mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none {dir} && chmod 700 {dir}"
    );
    let Some(outputs) = elsewhere(home.path(), &setup, &["open -", "request x"]) else { return };
    if String::from_utf8_lossy(&outputs[0].stderr).contains("mount:") {
        skipped("an overlay cannot be mounted in a user namespace");
        return;
    }
    assert_said(&outputs[0], &["overlay", "`state_dir`"]);
    assert_said(&outputs[1], &["done"]);
}

#[test]
fn a_network_file_system_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    fill(&open(home.path(), eager()), "r", 1);
    // A real one needs a server; instead, the kernel's answer is changed on its way to the process.
    for (magic, name) in [("6969000000000000", "NFS"), ("4655736500000000", "FUSE"), ("97190201000000", "9p")]
    {
        let inject = format!("inject=statfs:poke_exit=@arg2={magic}");
        let launcher = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=statfs", "-e", &inject];
        let Ok(output) = command(&launcher, home.path(), "request x").output() else {
            skipped("strace is missing");
            return;
        };
        if said(&output.stdout).is_empty() {
            skipped("strace cannot change system calls (ptrace)");
            return;
        }
        assert_said(&output, &["is on", name, "`state_dir`"]);
    }
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap().revision, 1);
}

#[test]
fn another_user_s_directory_is_refused_with_both_uids() {
    let home = tempfile::tempdir().unwrap();
    let before = fill(&open(home.path(), eager()), "r", 2);
    if !rustix::process::geteuid().is_root() {
        let output = run(Path::new("/usr"), "open -");
        assert_said(&output, &["belongs to uid 0"]);
        skipped("only root can give a file to another user");
        return;
    }
    for victim in ["", "pools/linux", "pools/linux/journal.jsonl"] {
        let path = home.path().join(victim);
        chown(&path, Some(12345), None).unwrap();
        for order in ["request x", "load -"] {
            assert_said(
                &run(home.path(), order),
                &["belongs to uid 12345", "runs as uid 0", "sudo -u '#12345'"],
            );
        }
        chown(&path, Some(0), None).unwrap();
    }
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), before);
}

#[test]
fn files_are_private_and_links_are_not_followed() {
    use std::os::unix::fs::{MetadataExt, symlink};

    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "r", 2);
    block_on(store.compact()).unwrap();
    fill(&store, "s", 2);
    block_on(store.compact()).unwrap();
    fill(&store, "t", 3);
    let journal = file(home.path(), "journal.jsonl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let second = bytes.len() / 2;
    bytes[second] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let store = open(home.path(), eager());
    block_on(store.repair()).unwrap().unwrap();
    let mut looked = 0;
    for dir in ["pools", "pools/linux", "pools/linux/history"] {
        assert_eq!(home.path().join(dir).metadata().unwrap().mode() & 0o777, 0o700, "{dir}");
        for entry in std::fs::read_dir(home.path().join(dir)).unwrap() {
            let (path, meta) = entry.map(|e| (e.path(), e.metadata().unwrap())).unwrap();
            if meta.is_file() {
                assert_eq!(meta.mode() & 0o777, 0o600, "{}", path.display());
                looked += 1;
            }
        }
    }
    assert!(looked >= 8, "{looked} files");

    let away = home.path().join("away");
    std::fs::rename(&journal, &away).unwrap();
    symlink(&away, &journal).unwrap();
    let error = block_on(open(home.path(), eager()).load()).unwrap_err().to_string();
    assert!(error.contains("journal.jsonl") && error.contains("symbolic link"), "{error}");
}
