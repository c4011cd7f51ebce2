//! `greenroom image …` as an operator calls it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::images;
use crate::machine::until;

fn image(arguments: &[&str], images: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
    command.arg("image").args(arguments).arg("--images").arg(images).stdin(Stdio::null());
    command
}

fn call(arguments: &[&str], images: &Path) -> Output {
    image(arguments, images).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The entries of a folder, the lock aside.
fn entries(images: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(images).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name != ".lock").collect()
}

#[test]
fn a_built_image_is_listed_and_passes_its_check() {
    let images = images::folder();
    let listed = text(&call(&["list"], images).stdout);
    assert!(listed.contains("light") && listed.contains("openssh"), "{listed}");
    let listed: serde_json::Value =
        serde_json::from_slice(&call(&["list", "--json"], images).stdout).expect("JSON");
    assert_eq!(listed["images"][0]["manifest"]["helper_version"], "19.4.0");
    let checked = call(&["check"], images);
    assert_eq!(text(&checked.stdout), "image `light` is intact\n");
    assert!(checked.status.success());
}

#[test]
fn an_unknown_image_has_a_near_miss_and_removal_can_be_rehearsed() {
    let images = images::folder();
    let missing = call(&["check", "ligth"], images);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("help: did you mean `light`?"), "{}", text(&missing.stderr));
    let rehearsed = call(&["remove", "light", "--dry-run"], images);
    assert!(text(&rehearsed.stdout).starts_with("would remove /"));
    assert!(images.join("light/manifest.json").is_file());
}

#[test]
fn a_damaged_image_is_found_and_removed() {
    let temporary = tempfile::tempdir().expect("a folder");
    let images = temporary.path();
    let mut copy = Command::new("cp");
    copy.args(["-r", "--sparse=always"]).arg(images::folder().join("light")).arg(images);
    assert!(copy.status().expect("cp").success());
    let kernel = std::fs::OpenOptions::new().append(true).open(images.join("light/vmlinux"));
    std::io::Write::write_all(&mut kernel.expect("the kernel"), b"more").expect("room");
    let checked = call(&["check", "light"], images);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stdout).contains("its digest is "), "{}", text(&checked.stdout));
    std::fs::write(images.join("light/manifest.json"), "{").expect("room");
    assert!(text(&call(&["list"], images).stdout).contains("is not a valid manifest"));
    assert!(call(&["remove", "light"], images).status.success());
    assert_eq!(entries(images), [""; 0]);
}

#[test]
fn a_mirror_that_does_not_answer_is_quoted_and_nothing_is_left() {
    let temporary = tempfile::tempdir().expect("a folder");
    let images = temporary.path().join("images");
    // Nothing listens on a port that was just given back.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("a port").port();
    let mirror = format!("http://127.0.0.1:{port}/debian");
    let failed = call(&["build", "--suite", "bookworm", "--mirror", &mirror], &images);
    let error = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(2), "{error}");
    assert!(error.contains("mmdebstrap failed with") && error.contains(&mirror), "{error}");
    assert!(error.contains("help: check that the archive is reachable"), "{error}");
    assert_eq!(entries(&images), [""; 0]);
}

#[test]
fn a_killed_build_is_swept_away_by_the_next() {
    let temporary = tempfile::tempdir().expect("a folder");
    let images = temporary.path().join("images");
    // A mirror that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mirror = format!("http://{}/debian", silent.local_addr().expect("an address"));
    let arguments = ["build", "one", "--suite", "bookworm", "--mirror", mirror.as_str()];
    let mut build = image(&arguments, &images).stderr(Stdio::null()).spawn().expect("the binary runs");
    until("packages are asked for", || silent.accept().ok().map(drop));
    let second = call(&arguments, &images);
    assert!(
        text(&second.stderr).contains("another `greenroom image build` is running"),
        "{}",
        text(&second.stderr)
    );
    build.kill().expect("our child");
    build.wait().expect("our child");
    assert_eq!(entries(&images), [".new-one"]);
    drop(silent);
    // What the killed one started ends by itself when the mirror is gone, and with it the lock.
    let third = until("the lock is free", || {
        let third = call(&arguments, &images);
        (!text(&third.stderr).contains("`greenroom image build` is running")).then_some(third)
    });
    assert!(text(&third.stderr).contains("mmdebstrap failed with"), "{}", text(&third.stderr));
    assert_eq!(entries(&images), [""; 0]);
}

#[test]
fn what_cannot_be_built_is_refused_at_once() {
    let temporary = tempfile::tempdir().expect("a folder");
    let images = temporary.path().join("images");
    for (arguments, said) in [
        (&["build", "../up"][..], "`../up` is not a valid name for an image"),
        (&["build", "--flavour", "systemd", "--ssh", "dropbear"], "supports only OpenSSH"),
        (&["build", "--size", "100M"], "is too small"),
        (&["build", "--size", "8"], "such as 8G"),
        (&["build", "--suite", "nosuch"], "no archive of Debian `nosuch`"),
        (&["build", "--gitlab-runner", "/nosuch"], "/nosuch is not a program that runs on this host"),
    ] {
        let refused = call(arguments, &images);
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
        assert!(!images.exists(), "{arguments:?} began something");
    }
}
