//! Machines that do not come up.

use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};
use rustix::process::Signal;

use super::{Machines, PATIENCE, machines, told};

/// The processor time that QEMU has used, in clock ticks (hundredths of a second), when it talks to its supervisor and
/// the guest is still far from up, emulated.
const HALF_WAY: u64 = 50;

/// The clock ticks for which a process has used a processor.
fn worked(process: &Process) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2));
    fields.into_iter().flatten().filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// The line about the first machine that did not come up, as the job log shows it, without the machine's name.
fn first_boot(prepare: &CallRecord) -> String {
    let told = told(prepare);
    let failed = told.iter().find(|line| line.ends_with("; the last lines of its console:"));
    let failed = failed.unwrap_or_else(|| panic!("{told:#?}"));
    failed.split_once(' ').expect("a name comes first").1.to_owned()
}

#[test]
fn a_guest_that_hangs_at_boot_is_given_up_and_replaced() {
    let setting = machines().pool("max_instances", 1).provider("accel", "tcg");
    let place = Machines::open(setting.provider("boot", "direct").provider("boot_timeout", "15s"));
    let handle = place.runner().start(&Job::new(1));
    wait_for("a machine half-way up", PATIENCE, || {
        let qemu = place.of_kind(Kind::Qemu).pop()?;
        (worked(&qemu) >= HALF_WAY).then(|| assert!(qemu.signal(Signal::STOP)))
    });
    let result = handle.finish();
    result.expect_outcome(&Outcome::Success);
    let why = first_boot(result.call("prepare"));
    assert!(why.starts_with("failed to boot: ") && why.contains(" within 15 s"), "{why}");
    place.expect_nothing_left(0);
}

#[test]
fn a_kernel_that_panics_at_boot_is_quoted() {
    let setting = machines().pool("max_instances", 1).pool("acquire_timeout", "20s");
    let place = Machines::with_own_images(setting.provider("image", "broken").provider("boot", "direct"));
    // Without its initrd the kernel finds no driver for its disk.
    let (images, light) = (place.state_dir.join("images"), crate::images::folder().join("light"));
    std::fs::create_dir(images.join("broken")).expect("a folder");
    for name in ["vmlinux", "rootfs.img"] {
        std::os::unix::fs::symlink(light.join(name), images.join("broken").join(name)).expect("a link");
    }
    std::fs::write(images.join("broken/initrd.cpio"), "").expect("an empty initrd");
    let manifest = std::fs::read(light.join("manifest.json")).expect("a manifest");
    let mut manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    manifest["name"] = "broken".into();
    std::fs::write(images.join("broken/manifest.json"), manifest.to_string()).expect("a manifest");
    let attempt = place.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare().wait(PATIENCE);
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    let why = first_boot(&prepare);
    assert!(
        why.starts_with("failed to boot: the virtual machine was stopped: its kernel panicked (VFS: "),
        "{why}"
    );
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_nothing_left(0);
}
