//! Kind: a sick machine does not attract all jobs. Between two jobs, the keeper checks that the next one can begin there.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::skipped::skipped;

/// Machines whose builds are on a small file system, in a mount namespace of their own.
struct Machines {
    place: Place,
    builds: PathBuf,
    /// Keeps the namespace. It ends with its standard input.
    namespace: Child,
    _home: tempfile::TempDir,
}

impl Drop for Machines {
    fn drop(&mut self) {
        drop(self.namespace.stdin.take());
        let _ended = self.namespace.wait();
    }
}

impl Machines {
    /// Machines on a small file system. `mount`: its options. `None`: the test is skipped.
    fn new(mount: &str, set: impl FnOnce(Setting) -> Setting) -> Option<Self> {
        const SSHD: &str = "/usr/sbin/sshd";
        if !Path::new(SSHD).exists() {
            skipped("OpenSSH's server is missing");
            return None;
        }
        let home = tempfile::tempdir().expect("a directory");
        let builds = home.path().join("builds");
        std::fs::create_dir(&builds).expect("a directory");
        let script = format!(
            "mount -t tmpfs -o {mount} tmpfs '{}' && echo up && read -r _ || exit 0",
            builds.display()
        );
        let mut namespace = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare of util-linux");
        let mut line = String::new();
        BufReader::new(namespace.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
        if line != "up\n" {
            let _ended = namespace.wait();
            skipped("this user cannot mount a file system");
            return None;
        }
        let sshd = home.path().join("sshd");
        let enter = format!("#!/bin/sh\nexec nsenter --mount --target {} {SSHD} \"$@\"\n", namespace.id());
        std::fs::write(&sshd, enter).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&sshd, mode).expect("its mode can be set");
        let setting = Setting::new()
            .pool("max_use_count", 0)
            .pool("builds_dir", builds.display().to_string())
            .pool("cache_dir", home.path().join("cache").display().to_string())
            .provider("server", "openssh")
            .provider("sshd", sshd.display().to_string());
        Some(Self { place: set(setting).open(), builds, namespace, _home: home })
    }

    /// Runs a job whose script is this.
    #[track_caller]
    fn job(&self, id: u64, script: &str) -> InstanceId {
        let attempt = self.place.prepared(id);
        let instance = self.place.instance_of(&attempt);
        let run = attempt.run("build_script", &format!("cd '{}'\n{script}\n", self.builds.display()));
        assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
        leave(&attempt);
        instance
    }

    /// The reason for which an instance was found unfit.
    #[track_caller]
    fn why_unfit(&self, instance: &InstanceId) -> String {
        wait_for("the instance to be replaced", SOON, || {
            self.place.events().into_iter().find_map(|event| match event.change {
                Change::DrainingBegun { instance: id, reason: DrainReason::Unfit { message } }
                    if id == *instance =>
                {
                    Some(message)
                }
                _ => None,
            })
        })
    }

    /// Makes room again, in the namespace.
    fn repair(&self, script: &str) {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.namespace.id().to_string(), "sh", "-ec", script]);
        assert!(command.current_dir("/").status().expect("nsenter of util-linux").success());
    }
}

#[track_caller]
fn leave(attempt: &Attempt) {
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
}

fn count(place: &Place, found: impl Fn(&Change) -> bool) -> usize {
    place.events().iter().filter(|event| found(&event.change)).count()
}

/// A job fills the disk of a machine that serves any number of jobs.
#[test]
fn a_machine_whose_disk_a_job_has_filled_gets_no_other_job() {
    let Some(machines) = Machines::new("size=101m", |setting| setting) else { return };
    let place = &machines.place;
    let full = machines.job(1, "head -c 2097152 /dev/zero > left-behind");
    let why = machines.why_unfit(&full);
    let builds = machines.builds.display();
    assert_eq!(why, format!("only 99 MiB are free in {builds}, less than 100 MiB"));
    let said = format!("{full} gets no more jobs: it failed the check between jobs: {why}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let explained = words(&place.order(&["explain", full.as_str()]));
    assert!(explained.contains(&format!("draining: it failed the check between jobs: {why}")), "{explained}");
    // By the keeper's last report: the next keeper does not know of it.
    let shows = || words(&place.order(&["pool", "status"])).contains(&words(&said)).then_some(());
    wait_for("the reason in pool status", SOON, shows);
    let doctor = place.greenroom(&["doctor", "--json"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout);
    assert!(doctor.contains("\"pool-unfit\""), "{doctor}");
    machines.repair(&format!("rm '{builds}/left-behind'"));
    assert_ne!(machines.job(2, "true"), full, "job 2 gets another machine");
    place.wait_until_quiet();
    place.expect_sound();
}

/// The inodes are used up, the file system has become read-only, or the builds directory is no directory any more.
#[test]
fn a_machine_on_which_a_job_cannot_write_gets_no_other_job() {
    let Some(machines) = Machines::new("size=300m,nr_inodes=1100", |setting| setting) else { return };
    let builds = machines.builds.display().to_string();
    for (id, spoil, repair, expected) in [
        (
            1,
            "n=0; while [ $n -lt 200 ]; do : > left-$n; n=$((n + 1)); done",
            format!("rm '{builds}'/left-*"),
            "inodes are free in",
        ),
        (3, "mount -o remount,ro .", format!("mount -o remount,rw '{builds}'"), "jobs cannot write to"),
    ] {
        let sick = machines.job(id, spoil);
        let why = machines.why_unfit(&sick);
        assert!(why.contains(expected) && why.contains(&builds), "{why}");
        machines.repair(&repair);
        assert_ne!(machines.job(id + 1, "true"), sick);
    }
    machines.place.wait_until_quiet();
    machines.place.expect_sound();
}

/// A machine that is well serves job after job, and the next one gets it as soon as it was checked.
#[test]
fn a_fit_machine_serves_on_and_each_job_is_followed_by_one_check() {
    let place = Setting::new().pool("max_use_count", 0).pool("max_instances", 1).open();
    for id in 1..=4 {
        let attempt = place.prepared(id);
        assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
        leave(&attempt);
    }
    wait_for("the last check", SOON, || {
        (count(&place, |change| matches!(change, Change::Rechecked { .. })) == 4).then_some(())
    });
    let used = place.grants();
    assert!(used.iter().all(|(_, instance)| *instance == used[0].1), "{used:?}");
    assert_eq!(count(&place, |change| matches!(change, Change::DrainingBegun { .. })), 0);
    place.expect_sound();
}

/// A machine that serves one job is not checked after it.
#[test]
fn a_machine_that_is_thrown_away_is_not_checked() {
    let place = Setting::new().pool("recheck_command", "exit 1").open();
    place.run(&Job::new(1)).expect_outcome(&greenroom_testkit::gitlab_runner::record::Outcome::Success);
    place.wait_until_settled(0);
    let is_check = |change: &Change| {
        matches!(change, Change::Rechecked { .. })
            || matches!(change, Change::DrainingBegun { reason: DrainReason::Unfit { .. }, .. })
    };
    assert_eq!(count(&place, is_check), 0);
}

/// DNS is gone on a machine, which the operator's own check finds. The waiting job reads why it gets another one.
#[test]
fn the_operators_check_replaces_a_machine_and_the_waiting_job_reads_why() {
    let home = tempfile::tempdir().expect("a directory");
    let at = home.path().display();
    let check = format!("while [ ! -e {at}/go ]; do sleep 0.02; done; echo no address for git.corp; exit 7");
    let setting = Setting::new().pool("max_use_count", 0).pool("max_instances", 1);
    let place = setting.pool("recheck_command", check).open();
    let first = place.prepared(1);
    let sick = place.instance_of(&first);
    assert_eq!(first.run("build_script", "true\n").exit_code(), Some(0));
    leave(&first);
    let second = place.runner().attempt(&Job::new(2));
    assert_eq!(second.config().exit_code(), Some(0));
    let prepare = second.start_prepare();
    prepare.wait_for_output(&format!("waiting: {sick} is checked after its last job"), SOON);
    std::fs::write(home.path().join("go"), "").expect("a file");
    let prepare = prepare.wait(SOON);
    let log = prepare.stderr_text();
    assert_eq!(prepare.exit_code(), Some(0), "{log}");
    let said = format!(
        "greenroom: {sick} gets no more jobs: it failed the check between jobs: `recheck_command`: exit status 7: no \
         address for git.corp"
    );
    assert!(log.lines().any(|line| line == said), "{log}");
    assert_ne!(place.instance_of(&second), sick);
    leave(&second);
    place.wait_until_quiet();
    place.expect_sound();
}

/// The operator names `ready_command` as the check between jobs, too.
#[test]
fn the_ready_command_may_be_the_check_between_jobs() {
    let home = tempfile::tempdir().expect("a directory");
    let broken = home.path().join("broken");
    let setting = Setting::new().pool("max_use_count", 0).pool("recheck_command", "ready_command");
    let place = setting.pool("ready_command", format!("[ ! -e {} ]", broken.display())).open();
    let attempt = place.prepared(1);
    let sick = place.instance_of(&attempt);
    assert_eq!(attempt.run("build_script", &format!("touch {}\n", broken.display())).exit_code(), Some(0));
    leave(&attempt);
    wait_for("the machine to be replaced", SOON, || {
        let unfit = |change: &Change| {
            matches!(change, Change::DrainingBegun { reason: DrainReason::Unfit { .. }, .. })
        };
        (count(&place, unfit) == 1).then_some(())
    });
    std::fs::remove_file(broken).expect("it was made");
    let attempt = place.prepared(2);
    assert_ne!(place.instance_of(&attempt), sick);
    leave(&attempt);
}

/// On a machine with two slots, one job spoils it while another one runs.
#[test]
fn a_machine_with_several_slots_is_checked_when_one_job_leaves_and_the_others_go_on() {
    let home = tempfile::tempdir().expect("a directory");
    let broken = home.path().join("broken");
    let setting = Setting::new().pool("max_use_count", 0).pool("capacity_per_instance", 2);
    let place = setting.pool("recheck_command", format!("[ ! -e {} ]", broken.display())).open();
    let stays = place.prepared(1);
    let shared = place.instance_of(&stays);
    let passes = place.prepared(2);
    assert_eq!(place.instance_of(&passes), shared);
    assert_eq!(passes.run("build_script", "true\n").exit_code(), Some(0));
    leave(&passes);
    let spoils = place.prepared(3);
    assert_eq!(place.instance_of(&spoils), shared, "checked, and fit");
    assert_eq!(spoils.run("build_script", &format!("touch {}\n", broken.display())).exit_code(), Some(0));
    leave(&spoils);
    let other = place.prepared(4);
    assert_ne!(place.instance_of(&other), shared);
    assert_eq!(stays.run("build_script", "true\n").exit_code(), Some(0), "its job goes on");
    std::fs::remove_file(broken).expect("it was made");
    leave(&stays);
    leave(&other);
    place.wait_until_quiet();
    place.expect_sound();
}
