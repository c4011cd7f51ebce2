//! Clones of one template are different machines.

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom_harness::provider::leave_nothing;

use crate::fixture::VmFixture;

#[tokio::test]
async fn clones_differ_in_all_that_makes_a_machine_itself() {
    let fixture = VmFixture::new();
    let mut guests = Vec::new();
    for number in 1..=3 {
        let (_, guest) = fixture.nth(number, "").await;
        guests.push(guest);
    }
    let tier = |id| std::fs::read_to_string(fixture.instance_dir(id).join("boot.json")).unwrap();
    for guest in &guests {
        assert!(tier(&guest.id).contains("\"snapshot\""), "{}", tier(&guest.id));
        assert_eq!(guest.says("hostname"), guest.id.as_str());
        assert_eq!(guest.says("cat /etc/hostname"), guest.id.as_str());
    }
    for what in [
        "head -c 32 /dev/urandom | od -An -tx1",
        "cat /etc/machine-id",
        "cat /proc/sys/kernel/random/uuid",
        "hostname",
    ] {
        let said: BTreeSet<String> = guests.iter().map(|guest| guest.says(what)).collect();
        assert_eq!(said.len(), guests.len(), "{what}: {said:?}");
    }
    for guest in &guests {
        assert_eq!(guest.says("wc -c < /etc/machine-id"), "33");
        let there: u64 = guest.says("date +%s").parse().unwrap();
        let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(here.abs_diff(there) < 10, "the guest's clock is {there}, ours {here}");
    }
    leave_nothing(&fixture).await;
}

/// The suite gives all instances one host key; here each has its own, and answers with no other.
#[tokio::test]
async fn a_clone_answers_with_the_host_key_it_was_given() {
    let (one, first) = answering_key().await;
    let (other, second) = answering_key().await;
    assert_ne!(one, other);
    assert_eq!((one, other), (first, second));
}

/// The key that a clone of its own fixture shows to a stranger, and the one that it was given.
async fn answering_key() -> (String, String) {
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    let scan = std::process::Command::new("ssh-keyscan")
        .args(["-t", "ed25519", "-T", "30", "-p", &guest.endpoint.port.to_string(), "127.0.0.1"])
        .output()
        .expect("ssh-keyscan");
    let shown = String::from_utf8_lossy(&scan.stdout).into_owned();
    let keys: Vec<&str> = shown.lines().filter_map(|line| line.split_once(' ')).map(|(_, key)| key).collect();
    assert_eq!(keys.len(), 1, "{shown}");
    let given = guest.endpoint.host_key.clone();
    let shown = keys[0].to_owned();
    leave_nothing(&fixture).await;
    (shown, given)
}

#[tokio::test]
async fn a_direct_boot_is_a_machine_like_any_other() {
    let fixture = VmFixture::with("boot = \"direct\"");
    let (provider, guest) = fixture.one("").await;
    assert_eq!(guest.says("hostname"), guest.id.as_str());
    assert_eq!(guest.says("id -u"), "0");
    let listed = provider.list(&greenroom_harness::provider::Fixture::pool(&fixture)).await.unwrap();
    let detail = listed.instances[0].detail.clone().unwrap();
    assert!(detail.starts_with("direct, "), "{detail}");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn two_processors_are_seen_by_the_guest() {
    let fixture = VmFixture::with("vcpus = 2\nboot = \"direct\"\nmemory = \"384M\"");
    let (_, guest) = fixture.one("").await;
    assert_eq!(guest.says("nproc"), "2");
    let kib: u64 = guest.says("awk '/MemTotal/ {print $2}' /proc/meminfo").parse().unwrap();
    assert!((300..384).contains(&(kib >> 10)), "{kib} KiB");
    drop(guest);
    leave_nothing(&fixture).await;
}

pub(crate) const SOON: Duration = Duration::from_secs(30);
