//! Templates: built once, never changed by a clone, built anew when a clone cannot be resumed from them.

#![cfg(test)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use greenroom_harness::provider::{leave_nothing, request, running};
use rustix::fs::SealFlags;

use crate::fixture::VmFixture;
use crate::images::link_into;

/// A folder of images of its own, with the one image in it and no template.
struct Images(tempfile::TempDir);

impl Images {
    fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        link_into(own.path());
        Self(own)
    }

    fn fixture(&self) -> VmFixture {
        VmFixture::with(&format!("images = \"{}\"", self.0.path().display()))
    }

    /// The one template that there is.
    fn template(&self) -> PathBuf {
        let all: Vec<_> = std::fs::read_dir(self.0.path().join(".templates")).unwrap().flatten().collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].path()
    }
}

/// The record of how a machine came up.
fn boot(fixture: &VmFixture, number: u32) -> serde_json::Value {
    let dir = fixture.instance_dir(&request(fixture, number).instance);
    serde_json::from_slice(&std::fs::read(dir.join("boot.json")).unwrap()).unwrap()
}

fn contents(template: &Path) -> BTreeMap<&'static str, Vec<u8>> {
    use sha2::Digest as _;
    let read = |name| std::fs::read(template.join(name)).unwrap();
    ["disk.qcow2", "state", "ram.img", "template.json"]
        .into_iter()
        .map(|name| (name, sha2::Sha256::digest(read(name)).to_vec()))
        .collect()
}

#[tokio::test]
async fn machines_that_need_it_at_once_build_one_template() {
    let images = Images::new();
    let fixture = images.fixture();
    let provider = fixture.build("");
    for number in 1..=3 {
        provider.launch(&request(&fixture, number)).await.unwrap();
    }
    for number in 1..=3 {
        running(&fixture, &*provider, &request(&fixture, number).instance).await;
        assert_eq!(boot(&fixture, number)["tier"], "snapshot");
    }
    let console = std::fs::read_to_string(images.template().join("console.log")).unwrap();
    assert_eq!(console.matches("template built").count(), 1, "{console}");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_clone_changes_nothing_of_its_template_and_could_not() {
    let images = Images::new();
    let fixture = images.fixture();
    let (provider, guest) = fixture.one("").await;
    let before = contents(&images.template());
    guest.says("head -c 20M /dev/urandom > /written && sync && mount -o remount,ro / 2>/dev/null; true");
    let qemu = fixture.qemu(&guest.id).expect("a QEMU");
    let memory: Vec<PathBuf> = std::fs::read_dir(format!("/proc/{qemu}/fd"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("greenroom-template"))
        })
        .collect();
    assert!(!memory.is_empty(), "the clone's memory is not the template's: the test judges nothing");
    for path in memory {
        let seals = rustix::fs::fcntl_get_seals(std::fs::File::open(path).unwrap()).unwrap();
        assert!(seals.contains(SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL));
    }
    guest.gone(&*provider).await;
    assert_eq!(contents(&images.template()), before);
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_resume_that_fails_becomes_a_cold_boot_and_the_template_is_built_anew() {
    let images = Images::new();
    let fixture = images.fixture();
    let (provider, guest) = fixture.one("").await;
    guest.gone(&*provider).await;
    let template = images.template();
    let state = std::fs::read(template.join("state")).unwrap();
    std::fs::write(template.join("state"), &state[..state.len() / 2]).unwrap();
    let (_, second) = fixture.nth(2, "").await;
    let cold = boot(&fixture, 2);
    assert_eq!(cold["tier"], "direct");
    assert!(cold["because"].as_str().is_some_and(|why| !why.is_empty()), "{cold}");
    assert_eq!(second.says("hostname"), second.id.as_str());
    fixture.nth(3, "").await;
    assert_eq!(boot(&fixture, 3)["tier"], "snapshot", "{}", boot(&fixture, 3));
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn other_hardware_has_a_template_of_its_own() {
    let images = Images::new();
    let fixture = images.fixture();
    fixture.one("").await;
    fixture.nth(2, "memory = \"320M\"").await;
    assert_eq!(boot(&fixture, 2)["tier"], "snapshot");
    let templates = std::fs::read_dir(images.0.path().join(".templates")).unwrap().count();
    assert_eq!(templates, 2);
    leave_nothing(&fixture).await;
}
