//! Machines that end by themselves, or never come up: who says what about it.

#![cfg(test)]

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_harness::provider::{Fixture, leave_nothing, request, until};
use greenroom_ports::provider::Provider;

use crate::clones::SOON;
use crate::fixture::{Guest, VmFixture};

/// Waits until a machine is listed as stopping, and says why.
async fn why(fixture: &VmFixture, provider: &dyn Provider, within: Duration) -> String {
    let pool = fixture.pool();
    let text = until("an end", within, async || {
        let listing = provider.list(&pool).await.unwrap();
        let one = listing.instances.into_iter().next().expect("a dead machine stays listed");
        (one.status == Status::Stopping).then_some(one.detail)
    });
    text.await.expect("a machine that ended says why")
}

/// Runs a command that ends the machine; why it ended.
async fn after(fixture: &VmFixture, command: &str) -> String {
    let (provider, guest) = fixture.one("").await;
    // The connection breaks: no answer is an answer, too.
    drop(guest.run(command));
    let why = why(fixture, &*provider, SOON).await;
    let console = provider.console(&guest.id).await.unwrap();
    assert!(console.contains(&format!("stopping: {why}")), "{console}");
    assert_eq!(fixture.qemu(&guest.id), None, "QEMU outlives its machine");
    why
}

#[tokio::test]
async fn a_guest_that_powers_itself_off_is_named() {
    let fixture = VmFixture::new();
    assert_eq!(after(&fixture, "poweroff || poweroff -f").await, "shut itself down");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_guest_that_reboots_is_over() {
    let fixture = VmFixture::new();
    let why = after(&fixture, "echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger").await;
    assert_eq!(why, "rebooted, which terminates a virtual machine");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_guest_whose_kernel_panics_is_quoted() {
    let fixture = VmFixture::new();
    let why = after(&fixture, "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger").await;
    assert_eq!(why, "was stopped: its kernel panicked (sysrq triggered crash)");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_full_disk_is_the_jobs_own_affair_and_stays_within_the_machine() {
    let fixture = VmFixture::new();
    let (provider, guest) = fixture.one("").await;
    let free =
        |guest: &Guest<'_>| guest.says("df --output=avail -m / | tail -1").trim().parse::<u64>().unwrap();
    let before = free(&guest);
    assert!(before > 100, "{before} MiB");
    // All but the last of it costs the host nothing; writing real data would.
    let filled =
        guest.run(&format!("fallocate -l {}M /fill && head -c 300M /dev/zero > /more", before - 100));
    assert!(!filled.status.success());
    let said = String::from_utf8_lossy(&filled.stderr);
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(guest.says("echo alive"), "alive");
    let listing = provider.list(&fixture.pool()).await.unwrap();
    assert_eq!(listing.instances[0].status, Status::Running);
    guest.gone(&*provider).await;
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_guest_that_hangs_at_boot_is_given_up() {
    // A limit that no boot keeps stands for one that hangs.
    let fixture = VmFixture::with("boot = \"direct\"\nboot_timeout = \"500ms\"");
    let provider = fixture.build("");
    provider.launch(&request(&fixture, 1)).await.unwrap();
    let why = why(&fixture, &*provider, SOON).await;
    assert_eq!(why, "failed to boot: the guest did not come up within 500 ms");
    assert_eq!(fixture.qemu(&request(&fixture, 1).instance), None);
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_launch_without_an_image_is_refused_with_its_folder_and_the_command_that_makes_one() {
    for (image, said) in [
        ("no-such-image", ": build one with `greenroom image build no-such-image`"),
        ("/no/such.qcow2", "the boot disk /no/such.qcow2 does not exist"),
    ] {
        let fixture = VmFixture::with(&format!("image = {image:?}"));
        let provider = fixture.build("");
        let refused = provider.launch(&request(&fixture, 1)).await.unwrap_err();
        assert_eq!(refused.class(), &ErrorClass::Invalid);
        assert!(refused.to_string().contains(said), "{refused}");
        leave_nothing(&fixture).await;
    }
}

#[tokio::test]
async fn a_qemu_that_does_not_start_says_why() {
    let fixture = VmFixture::with("qemu = \"/bin/false\"\naccel = \"tcg\"\nboot = \"direct\"");
    let provider = fixture.build("");
    provider.launch(&request(&fixture, 1)).await.unwrap();
    let why = why(&fixture, &*provider, SOON).await;
    assert_eq!(why, "failed to boot: QEMU failed to start (exit status: 1): no output");
    leave_nothing(&fixture).await;
}
