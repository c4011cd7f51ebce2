//! Kind: a job finds its directory where the job before it had it, and nothing there that is not its own.

use greenroom_core::instance::Phase;
use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use serde_json::Value;

use crate::machine::{Hosts, Machine, Make, possible};

const WHERE: &str = "echo \"directory $PWD\"";
/// Waits until the test lets it go on.
const UNTIL_GO: &str = "echo started; while [ ! -e /tmp/go ]; do sleep 0.1; done";

/// The working directory of a job with the line [`WHERE`].
fn directory(result: &JobResult) -> String {
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    let line = log.lines().find_map(|line| line.strip_prefix("directory "));
    line.unwrap_or_else(|| panic!("no directory: {log}")).to_owned()
}

fn one_host() -> Option<Hosts> {
    possible().then(|| Hosts::boot(&[Make::named("a")]))
}

/// Caches with absolute paths and `GIT_CLONE_PATH` need the same path for each job of a project.
#[test]
fn two_jobs_of_a_project_have_the_same_path() {
    let Some(hosts) = one_host() else { return };
    let place = hosts.setting().open();
    let first = directory(&place.run(&Job::new(1).script([WHERE])));
    place.wait_until_idle(1);
    assert_eq!(directory(&place.run(&Job::new(2).script([WHERE]))), first);
    assert!(first.starts_with("/home/ci/builds/0/"), "{first}");
    place.expect_sound();
}

/// On a host with several slots, a path belongs to a number that the runner gives to concurrent jobs.
#[test]
fn concurrent_jobs_of_a_project_have_paths_of_their_own() {
    let Some(hosts) = one_host() else { return };
    let place = hosts.setting().pool("capacity_per_instance", 2).open();
    let runner = place.runner();
    let first = runner.start(&Job::new(1).script([WHERE, UNTIL_GO]));
    first.wait_for_log("started");
    let second = directory(&runner.run(&Job::new(2).script([WHERE])));
    hosts.machines[0].sh("touch /tmp/go");
    let first = directory(&first.finish());
    assert_ne!(first, second);
    assert!(first.contains("-0/") && second.contains("-1/"), "{first} {second}");
    place.wait_until_idle(1);
    assert_eq!(directory(&place.run(&Job::new(3).script([WHERE]))), first);
    place.expect_sound();
}

/// A second process of GitLab Runner with the same token gives the same number. So does a job that sets the variable.
#[test]
fn a_job_waits_for_a_concurrent_job_that_has_its_path() {
    let Some(hosts) = one_host() else { return };
    let place = hosts.setting().pool("capacity_per_instance", 2).open();
    let first = place.runner().start(&Job::new(1).script([WHERE, UNTIL_GO]));
    first.wait_for_log("started");
    let second = Job::new(2).variable("CI_CONCURRENT_PROJECT_ID", "0").script(["ls -A; test ! -e /tmp/in"]);
    let second = place.runner().start(&second);
    second.wait_for_log("greenroom: job 1 still uses /home/ci/builds/");
    hosts.machines[0].sh("touch /tmp/go");
    directory(&first.finish());
    second.finish().expect_outcome(&Outcome::Success);
    place.expect_sound();
}

/// With `keep_builds`, `GIT_STRATEGY: fetch` finds the clone of the project's last job. A release removes it.
#[test]
fn a_host_that_stays_with_its_project_keeps_the_clone_and_loses_it_when_it_is_released() {
    if !possible() {
        return;
    }
    for by_root in [false, true] {
        let hosts = Hosts::boot(&[Make::named("a")]);
        let setting = if by_root { hosts.cleaned_by("root") } else { hosts.setting() };
        let place = setting.pool("clean_unbinds", false).pool("keep_builds", true).open();
        let first = Job::new(1).script(["touch clone; mkdir -p /home/ci/builds/0.tmp/x", WHERE]);
        let dir = directory(&place.run(&first));
        place.wait_until_idle(1);
        assert_eq!(hosts.machines[0].sh("ls /home/ci/builds").trim(), "0", "by root: {by_root}");
        let second = place.run(&Job::new(2).script(["ls clone", WHERE]));
        assert_eq!(directory(&second), dir, "by root: {by_root}");
        place.wait_until_idle(1);
        place.order(&["pool", "resume", "--instance", "a", "--unbind"]);
        place.wait_until_idle(1);
        let other = Job::new(3).project(7, "other/project").script(["ls -A /home/ci/builds/0", WHERE]);
        let result = place.run(&other);
        directory(&result);
        let log = result.log_text();
        assert!(log.lines().any(|line| line == "other") && !log.lines().any(|line| line == "group"), "{log}");
        place.expect_sound();
    }
}

/// While a job runs, root makes files in its workspace, as a container of `docker run -v $PWD:/x` does.
fn job_with_files_of_root(place: &Place, host: &Machine, id: u64) {
    let job = place.runner().start(&Job::new(id).script(["mkdir own; touch own/file", UNTIL_GO]));
    job.wait_for_log("started");
    host.sh("d=$(dirname $(find /home/ci/builds -name own)); mkdir -p $d/of-root/in /home/ci/cache/project/of-root; \
         touch $d/of-root/in/file /home/ci/cache/project/of-root/file; chown ci /home/ci/cache /home/ci/cache/project; touch /tmp/go");
    job.finish().expect_outcome(&Outcome::Success);
}

/// The messages of doctor's findings about directories that cleaning could not remove.
fn unremovable(place: &Place) -> Vec<String> {
    let output = place.greenroom(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("doctor prints JSON");
    let all = report["findings"].as_array().expect("findings").iter();
    let ours = all.filter(|finding| finding["code"] == "host-unremovable");
    ours.map(|finding| finding["message"].as_str().expect("a message").to_owned()).collect()
}

/// Without `clean_user`, the directory moves out of the way of the next job, and `doctor` names it.
#[test]
fn files_of_root_in_a_workspace_cost_no_host() {
    let Some(hosts) = one_host() else { return };
    let host = &hosts.machines[0];
    for keeps in [false, true] {
        let setting = hosts.setting().pool("clean_unbinds", !keeps);
        let place = if keeps { setting.pool("keep_builds", true).open() } else { setting.open() };
        job_with_files_of_root(&place, host, 1);
        place.wait_until_idle(1);
        assert!(place.state().instances.values().all(|host| host.phase == Phase::Ready), "keeps: {keeps}");
        let left = host.sh("ls /home/ci/builds");
        assert!(left.starts_with("0.unremovable.") && left.lines().count() == 1, "keeps: {keeps}: {left}");
        let cached = host.sh("ls /home/ci/cache");
        let begin = if keeps { "project\n" } else { "project.unremovable." };
        assert!(cached.starts_with(begin) && cached.lines().count() == 1, "keeps: {keeps}: {cached}");
        assert_eq!(host.sh("find /home/ci -name of-root -user root").lines().count(), 2, "keeps: {keeps}");
        assert_eq!(unremovable(&place).len(), 1, "keeps: {keeps}");
        let second = place.run(&Job::new(2).script(["echo files: $(ls -A | wc -l); touch here"]));
        second.expect_outcome(&Outcome::Success);
        let log = second.log_text();
        assert!(log.lines().any(|line| line == "files: 0"), "keeps: {keeps}: {log}");
        place.wait_until_idle(1);
        // Cleaning moves each directory once.
        assert_eq!(host.sh("ls -d /home/ci/builds/*.unremovable.*"), format!("/home/ci/builds/{left}"));
        // What root removes is gone, whatever is done later.
        host.sh("rm -rf /home/ci/builds/* /home/ci/cache/* /tmp/go");
        place.expect_sound();
    }
}

/// Cleaning removes such files if the account may use `sudo` without a password.
#[test]
fn files_of_root_go_where_the_account_has_sudo() {
    let Some(hosts) = one_host() else { return };
    let host = &hosts.machines[0];
    if host.sh("command -v sudo; ls -d /etc/sudoers.d").lines().count() < 2 {
        greenroom_testkit::skipped::skipped("sudo is missing");
        return;
    }
    host.sh("echo 'ci ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/ci; chmod 440 /etc/sudoers.d/ci");
    let place = hosts.setting().open();
    job_with_files_of_root(&place, host, 1);
    place.wait_until_idle(1);
    assert_eq!(host.sh("ls /home/ci/builds"), "");
    assert_eq!(host.sh("ls /home/ci/cache"), "");
    assert_eq!(unremovable(&place), Vec::<String>::new());
    place.expect_sound();
}
