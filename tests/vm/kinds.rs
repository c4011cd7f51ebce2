//! The other kinds of images: each is built for its test, which `scripts/test --full` has the time for.

use std::path::Path;
use std::process::Command;

use greenroom_providers::qemu::image::Image;

use crate::containers;
use crate::machine::{Identity, Machine};

fn built(images: &Path, arguments: &[&str]) -> Image {
    let mut build = Command::new(env!("CARGO_BIN_EXE_greenroom"));
    build.args(["image", "build", "one", "--images"]).arg(images).args(arguments);
    let output = build.output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Image::open(images, "one").expect("an image")
}

fn identity() -> Identity {
    let seed = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";
    Identity { hostname: "linux-1", machine_id: "1".repeat(32), seed }
}

#[test]
#[ignore = "builds an image of its own"]
fn systemctl_works_in_a_systemd_machine() {
    let images = tempfile::tempdir().expect("a folder");
    let image = built(images.path(), &["--flavour", "systemd", "--containers"]);
    let mut machine = Machine::boot(&image, "HELLO 1 systemd openssh");
    assert_eq!(machine.ask("WARM-UP"), "WARM");
    assert!(!machine.greets());
    machine.become_one(&identity());
    assert_eq!(machine.says("systemctl is-system-running"), "running");
    assert_eq!(machine.says("systemctl --failed --quiet"), "");
    containers::run_with_all_they_need(&machine);
    assert_eq!(machine.says("hostname; cat /etc/machine-id"), format!("linux-1\n{}", "1".repeat(32)));
    machine.ssh(&machine.host_key(), "systemctl poweroff");
    assert!(machine.ended().success());
}

#[test]
#[ignore = "builds an image of its own"]
fn dropbear_lets_in_by_the_same_keys() {
    let images = tempfile::tempdir().expect("a folder");
    let image = built(images.path(), &["--ssh", "dropbear", "--package", "file"]);
    let mut machine = Machine::boot(&image, "HELLO 1 light dropbear");
    assert_eq!(machine.ask("WARM-UP"), "WARM");
    machine.become_one(&identity());
    assert_eq!(
        machine.says("hostname; echo $HOME $LANG; file -b /bin/sh"),
        "linux-1\n/root C.UTF-8\nsymbolic link to dash"
    );
    assert_eq!(machine.ask("PING 7"), "PONG 7");
    machine.say("POWER-OFF");
    assert!(machine.ended().success());
}
