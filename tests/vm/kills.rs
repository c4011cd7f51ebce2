//! Kill -9 of anything, and what is left of it.

#![cfg(test)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_harness::here::{command_lines, kill, kill_all};
use greenroom_harness::provider::{Fixture, class, gone, leave_nothing, request, running, status, until};
use rustix::process::Signal;

use crate::clones::SOON;
use crate::fixture::VmFixture;
use crate::images::folder;

/// Does a port of this machine take calls?
fn is_open(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test]
async fn qemu_dies_with_its_supervisor_and_the_machine_is_found_and_buried() {
    let fixture = VmFixture::new();
    let (provider, guest) = fixture.one("").await;
    kill(fixture.supervisor(&guest.id).unwrap(), Signal::KILL);
    until("QEMU is gone", Duration::from_secs(5), async || fixture.qemu(&guest.id).is_none().then_some(()))
        .await;
    assert_eq!(status(&*provider, &fixture.pool(), &guest.id).await, Some(Status::Stopping));
    // Its memory goes first, its port a moment later.
    let port = guest.endpoint.port;
    until("its port is closed", Duration::from_secs(5), async || (!is_open(port)).then_some(())).await;
    guest.gone(&*provider).await;
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_killed_qemu_is_told_from_a_guest_that_ended() {
    let fixture = VmFixture::new();
    let (provider, guest) = fixture.one("").await;
    kill(fixture.qemu(&guest.id).unwrap(), Signal::KILL);
    let pool = fixture.pool();
    let why = until("an end", SOON, async || {
        provider.list(&pool).await.unwrap().instances[0].detail.clone().filter(|text| text.contains("killed"))
    });
    assert_eq!(why.await, "was killed on its host (QEMU was killed by signal 9)");
    guest.gone(&*provider).await;
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn everything_killed_at_once_leaves_nothing_that_a_list_cannot_see() {
    let fixture = VmFixture::new();
    for number in 1..=3 {
        fixture.nth(number, "").await;
    }
    fixture.build("").launch(&request(&fixture, 4)).await.unwrap();
    kill_all(fixture.processes());
    until("nobody lives", SOON, async || fixture.processes().is_empty().then_some(())).await;
    let provider = fixture.build("");
    let listing = provider.list(&fixture.pool()).await.unwrap();
    assert_eq!(listing.instances.len(), 4);
    for one in &listing.instances {
        assert_eq!(one.status, Status::Stopping);
        gone(&fixture, &*provider, &one.id).await;
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_supervisor_killed_at_any_moment_of_the_boot_leaves_no_qemu() {
    let fixture = VmFixture::new();
    // So that every boot after this one is a resume.
    let (provider, guest) = fixture.one("").await;
    guest.gone(&*provider).await;
    for number in 2..=13 {
        let request = request(&fixture, number);
        provider.launch(&request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(u64::from(number) * 50)).await;
        kill(fixture.supervisor(&request.instance).expect("it supervises"), Signal::KILL);
        let left = || fixture.processes();
        until("nobody lives", Duration::from_secs(5), async || left().is_empty().then_some(())).await;
        // The same token does not bring it back.
        provider.launch(&request).await.unwrap();
        assert_eq!(status(&*provider, &fixture.pool(), &request.instance).await, Some(Status::Stopping));
        gone(&fixture, &*provider, &request.instance).await;
        assert_eq!(class(provider.endpoint(&request.instance).await), ErrorClass::NotFound);
    }
    leave_nothing(&fixture).await;
}

/// The process that the next test kills. This is not a test by itself.
#[tokio::test]
#[ignore = "run by a_keeper_killed_while_it_launches_leaves_nothing_unseen"]
async fn launches_in_a_process_of_its_own() {
    let (Some(state), Ok(pool), Ok(number)) =
        (std::env::var_os("LAUNCH_IN"), std::env::var("LAUNCH_POOL"), std::env::var("LAUNCH_NUMBER"))
    else {
        return;
    };
    let fixture = VmFixture::borrowed(Path::new(&state), &pool);
    let table = std::env::var("LAUNCH_TABLE").unwrap();
    fixture.build(&table).launch(&request(&fixture, number.parse().unwrap())).await.unwrap();
}

/// Starts that process.
pub(crate) fn launcher(fixture: &VmFixture, number: u32) -> Command {
    let mut launcher = Command::new(std::env::current_exe().unwrap());
    launcher.args(["--exact", "--ignored", "kills::launches_in_a_process_of_its_own"]);
    launcher.stdout(Stdio::null()).stderr(Stdio::null());
    launcher.env("LAUNCH_IN", fixture.state_dir()).env("LAUNCH_POOL", fixture.pool().as_str());
    launcher.env("LAUNCH_TABLE", fixture.own_table()).env("LAUNCH_NUMBER", number.to_string());
    launcher
}

#[tokio::test]
async fn a_keeper_killed_while_it_launches_leaves_nothing_unseen() {
    let fixture = VmFixture::new();
    let provider = fixture.build("");
    for number in 1..=16_u32 {
        let mut launcher = launcher(&fixture, number).spawn().unwrap();
        // The whole takes some milliseconds: the kills are spread over it.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(u64::from(number) * 1500) {
            std::hint::spin_loop();
        }
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        let listing = provider.list(&fixture.pool()).await.unwrap();
        let seen: BTreeSet<String> = listing.instances.iter().map(|one| one.id.to_string()).collect();
        let living = fixture.living();
        assert!(living.is_subset(&seen), "{living:?} live, {seen:?} are listed");
        let request = request(&fixture, number);
        if number % 4 == 0 {
            provider.launch(&request).await.unwrap();
            running(&fixture, &*provider, &request.instance).await;
            assert_eq!(fixture.living().len(), 1);
        }
        gone(&fixture, &*provider, &request.instance).await;
    }
    for entry in std::fs::read_dir(fixture.pool_dir()).into_iter().flatten().flatten() {
        // What was cut off before it became an instance is swept away once it is old.
        if entry.file_name().to_string_lossy().starts_with(".new-") {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_deleted_state_directory_leaves_nothing_running() {
    let fixture = VmFixture::new();
    fixture.one("").await;
    std::fs::remove_dir_all(fixture.pool_dir()).unwrap();
    until("nobody lives", SOON, async || fixture.processes().is_empty().then_some(())).await;
}

#[tokio::test]
async fn signals_of_the_runners_stop_change_nothing() {
    let fixture = VmFixture::new();
    let (_, guest) = fixture.one("").await;
    let supervisor = fixture.supervisor(&guest.id).unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        kill(supervisor, signal);
    }
    assert_eq!(guest.says("echo alive"), "alive");
    let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().to_owned();
    assert_eq!(session, supervisor.to_string(), "it leads no session of its own");
    leave_nothing(&fixture).await;
}

/// The holder of our images' template, by its command line.
fn holders() -> Vec<u32> {
    let folder = folder().join(".templates");
    let is_ours = |arguments: &[String]| {
        let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
        matches!(texts.as_slice(), [_, "instance", "qemu", "template", "--dir", dir] if Path::new(dir).starts_with(&folder))
    };
    command_lines().into_iter().filter(|(_, arguments)| is_ours(arguments)).map(|(pid, _)| pid).collect()
}

#[tokio::test]
async fn clones_outlive_the_holder_of_their_template_and_the_next_one_finds_another() {
    let fixture = VmFixture::new();
    // An earlier test's template of another kind may be held until its `template_retention` ends.
    until("no template is held", SOON, async || holders().is_empty().then_some(())).await;
    let (provider, guest) = fixture.one("").await;
    let before = holders();
    assert_eq!(before.len(), 1, "one holder for one template");
    kill(before[0], Signal::KILL);
    until("the holder is gone", SOON, async || holders().is_empty().then_some(())).await;
    assert_eq!(guest.says("sha256sum /usr/bin/git | wc -c"), "79");
    let (_, second) = fixture.nth(2, "").await;
    let tier = std::fs::read_to_string(fixture.instance_dir(&second.id).join("boot.json")).unwrap();
    assert!(tier.contains("\"snapshot\""), "{tier}");
    assert_eq!(holders().len(), 1);
    guest.gone(&*provider).await;
    second.gone(&*provider).await;
    until("nobody needs it", SOON, async || holders().is_empty().then_some(())).await;
    leave_nothing(&fixture).await;
}
