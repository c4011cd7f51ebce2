//! A disk such as distributions offer for clouds, with its own boot loader and cloud-init: it is made for these tests,
//! which `scripts/test --full` has the time for.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use greenroom_harness::provider::leave_nothing;

use crate::fixture::VmFixture;
use crate::images;

mod hostile;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/foreign/make-disk");

static DISK: LazyLock<PathBuf> = LazyLock::new(|| {
    let (recipe, disk) =
        (std::fs::read(RECIPE).expect("the recipe"), images::folder().join(".foreign.qcow2"));
    let note = images::folder().join(".foreign-made-by");
    if std::fs::read(&note).is_ok_and(|made_by| made_by == recipe) {
        return disk;
    }
    let home = tempfile::tempdir().expect("a folder");
    let sources = home.path().join("sources.list");
    std::fs::write(&sources, in_light_image("/etc/apt/sources.list")).expect("a list of archives");
    let release = in_light_image("/usr/lib/os-release");
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).expect("a release");
    let begun = Instant::now();
    let made = Command::new(RECIPE).arg(&disk).arg(suite).arg(&sources).output().expect("bash runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(note, recipe).expect("a note");
    eprintln!("a disk with cloud-init in {:?}", begun.elapsed());
    disk
});

/// A qcow2 file that boots by itself, made once, and again when its recipe changes.
pub(crate) fn disk() -> &'static str {
    DISK.to_str().expect("a path in UTF-8")
}

/// A file of the image that greenroom made: it knows this machine's archives of packages.
fn in_light_image(name: &str) -> String {
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-R").arg(format!("cat {name}")).arg(images::light().rootfs());
    debugfs.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    let output = debugfs.output().expect("debugfs, which comes with e2fsprogs");
    String::from_utf8(output.stdout).expect("text")
}

/// Small ones, with a larger disk than the image's.
fn machines(more: &str) -> VmFixture {
    VmFixture::with(&format!("image = \"{}\"\nmemory = \"512M\"\ndisk = \"4G\"\n{more}", disk()))
}

#[tokio::test]
#[ignore = "makes a disk of its own"]
async fn cloud_init_makes_each_machine_the_one_it_is_told_to_be() {
    let fixture = machines("");
    let mut guests = Vec::new();
    for number in 1..=2 {
        let begun = Instant::now();
        let (_, guest) = fixture.nth(number, "").await;
        // The very first login has to work: what has an address answers, with the host key that it was given.
        assert_eq!(guest.says("id -un"), guest.endpoint.user);
        assert_eq!(
            guest.says("systemctl show -P ActiveState cloud-config"),
            "active",
            "it may restart sshd yet"
        );
        eprintln!("a foreign disk answers over SSH {:?} after its launch", begun.elapsed());
        guests.push(guest);
    }
    for guest in &guests {
        assert_eq!(guest.says("cloud-init status --wait | tail -n 1"), "status: done");
        assert_eq!(guest.says("cloud-id"), "nocloud");
        // What it did not understand would make it "degraded" in later versions.
        assert_eq!(guest.says("grep -c 'Invalid cloud-config' /var/log/cloud-init.log || true"), "0");
        assert_eq!(guest.says("hostname; cat /etc/hostname"), format!("{0}\n{0}", guest.id));
        assert_eq!(guest.says("ls /etc/ssh/ssh_host_*_key"), "/etc/ssh/ssh_host_ed25519_key");
        assert_eq!(guest.says("wc -l < ~/.ssh/authorized_keys"), "1");
        assert_eq!(guest.says("sshd -T | grep ^passwordauthentication"), "passwordauthentication no");
        let mebibytes: u64 = guest.says("df --output=size -m / | tail -1").trim().parse().expect("a number");
        assert!(mebibytes > 3500, "the file system grew to {mebibytes} MiB only");
    }
    for what in ["cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "cat /etc/hostname"] {
        let said: BTreeSet<String> = guests.iter().map(|guest| guest.says(what)).collect();
        assert_eq!(said.len(), guests.len(), "{what}: {said:?}");
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
#[ignore = "makes a disk of its own"]
async fn a_proxy_is_in_the_environment_of_every_command() {
    let fixture = machines("network = \"proxy\"\nproxy = \"127.0.0.1:3128\"");
    let (_, guest) = fixture.one("").await;
    assert_eq!(guest.says("echo $http_proxy"), "http://10.0.2.100:3128");
    assert_eq!(guest.says("bash -lc 'echo $https_proxy'"), "http://10.0.2.100:3128");
    leave_nothing(&fixture).await;
}
