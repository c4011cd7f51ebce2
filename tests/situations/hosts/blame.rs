//! Kind: blame comes from what Greenroom measured, never from what a job, an image or a registry wrote. On hosts that stay.

use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use crate::cleaned::cleaned;
use crate::engine::{CONTENT, IMAGE, hosts, setting};
use crate::machine::{Hosts, Make};

fn job(id: u64) -> Job {
    Job::new(id).project(id, &format!("g/{id}")).image(IMAGE).script(["cat /content"])
}

fn place(hosts: &Hosts) -> Place {
    setting(hosts, |_| {}).open()
}

/// The host is in service after this job, and the next job of another project runs there.
#[track_caller]
fn the_next_runs_there(place: &Place, after: u64) {
    assert_eq!(cleaned(place), None);
    let result = place.run(&job(after + 100));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains(CONTENT), "{}", result.log_text());
    assert_eq!(cleaned(place), None);
}

/// Runs a job whose own fault it is: it fails as a build does, so that no `retry` for faults of the system repeats it.
#[track_caller]
fn its_own_failure(place: &Place, job: &Job) -> JobResult {
    let result = place.run(job);
    assert!(matches!(result.outcome, Outcome::ScriptFailure { .. }), "{}", result.describe());
    result
}

fn with_entrypoint(id: u64, entrypoint: Value) -> Job {
    job(id).image_option("entrypoint", entrypoint)
}

/// An image's entrypoint prints what `sudo` would, or a sentence of Greenroom's own, or an engine's error, and exits.
#[test]
fn an_entrypoint_that_speaks_like_the_host_fails_its_own_job_only() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = place(&hosts);
    for (id, text, status) in [
        (1, "sudo: bad", 5),
        (2, "the container engine did not start the container within 60 s", 5),
        (3, "Error: unable to start container a1: mounting storage: no space left on device", 125),
        (4, "/bin/sh: 1: exec: podman: not found", 127),
        (5, "unsound host the disk is full: 0 MiB free in /home", 1),
    ] {
        let says = format!("echo '{text}' >&2; exit {status}");
        its_own_failure(&place, &with_entrypoint(id, json!(["sh", "-c", says])));
        the_next_runs_there(&place, id);
    }
    let status = place.order(&["pool", "status"]);
    assert!(!status.contains("out of service"), "{status}");
    place.expect_sound();
}

/// Two projects in a row, and `parallel:`, do the same thing: no number of such jobs takes the host out of service.
#[test]
fn no_number_of_such_jobs_takes_a_host_out_of_service() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = place(&hosts);
    for id in 1..=4 {
        let says = json!(["sh", "-c", "echo 'sudo: a password is required' >&2; exit 1"]);
        its_own_failure(&place, &with_entrypoint(id, says));
    }
    the_next_runs_there(&place, 5);
    place.expect_sound();
}

/// A service has a typo in its entrypoint, whose name is in the runtime's error: `database` looks like the engine's own.
#[test]
fn a_service_that_cannot_start_is_a_warning_whatever_its_name() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = place(&hosts);
    for (id, program) in
        [(1, "/opt/database"), (2, "/opt/netavark-overlay-cgroup"), (3, "/no space left on device")]
    {
        let typo = json!({"name": IMAGE, "alias": "db", "entrypoint": [program]});
        let result = place.run(&job(id).service(typo));
        result.expect_outcome(&Outcome::Success);
        assert!(result.log_text().contains(program), "{}", result.log_text());
        the_next_runs_there(&place, id);
    }
    place.expect_sound();
}

/// Serves this status to each request, on the host's loopback interface.
const REFUSES: &str = "cat >/tmp/registry <<'END'
use IO::Socket::INET;
my $server = IO::Socket::INET->new(Listen => 50, LocalAddr => '127.0.0.1:5005', ReuseAddr => 1) or die;
while (my $client = $server->accept) {
  sysread $client, my $request, 4096;
  my $body = '{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no space left on device\"}]}';
  print $client \"HTTP/1.1 403 Forbidden\\r\\nContent-Type: application/json\\r\\nConnection: close\\r\\nContent-Length: \" .
    length($body) . \"\\r\\n\\r\\n$body\";
  close $client;
}
END
setsid perl /tmp/registry >/tmp/registry.log 2>&1 </dev/null &
until grep -q ' 0100007F:138D ' /proc/net/tcp; do sleep 0.05; done";

/// A registry that the job names answers 403, and its message is about a disk.
#[test]
fn a_registry_that_denies_with_the_words_of_a_full_disk_denies() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    if host.sh("command -v perl").is_empty() {
        skipped("`perl` is missing");
        return;
    }
    host.sh(REFUSES);
    let place = place(&hosts);
    let result = its_own_failure(&place, &Job::new(1).image("127.0.0.1:5005/database:1"));
    assert!(result.log_text().contains("registry `127.0.0.1:5005` denies access"), "{}", result.log_text());
    the_next_runs_there(&place, 1);
    place.expect_sound();
}

/// The engine is broken. The job is not at fault, the keeper's own container does not start either, and an operator reads
/// why.
#[test]
fn a_broken_engine_takes_the_host_out_of_service_by_the_keepers_check() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = place(&hosts);
    place.run(&job(1)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    host.sh("mount --bind /bin/false \"$(command -v crun)\"");
    let result = place.run(&job(2));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let out_of_service = || cleaned(&place).filter(|reason| reason.contains("keeper's check"));
    let reason = wait_for("the keeper's check", place.setting.patience, out_of_service);
    assert!(reason.starts_with("it did not pass the keeper's check: `podman run` failed: "), "{reason}");
    assert!(reason.ends_with("(after job 2 of `g/2`)"), "{reason}");
    let explained = place.order(&["explain", "a"]);
    let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("a did not start the containers of job 2"), "{explained}");
    let status = place.order(&["pool", "status"]);
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("keeper's check"), "{status}");
    host.sh("umount \"$(command -v crun)\"");
    place.order(&["pool", "resume", "--instance", "a"]);
    the_next_runs_there(&place, 3);
    place.expect_sound();
}

/// Somebody fills the host's disk while a job is there. The space is measured, and the reason has the number.
#[test]
fn a_full_disk_takes_the_host_out_of_service_by_its_measured_space() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = place(&hosts);
    let attempt = place.prepared_as(&job(1));
    host.sh("head -c 1000M /dev/zero >/home/other");
    let run = attempt.run("build_script", "true\n");
    assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
    let said = run.stderr_text();
    assert!(said.contains("the disk is full: 0 MiB free in /home"), "{said}");
    assert!(said.contains("it gets no more jobs until the keeper has started a container there"), "{said}");
    // As much as cleaning needs to find out the same.
    host.sh("truncate -s -20M /home/other");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    let reason = cleaned(&place).unwrap_or_default();
    // Cleaning finds it, or the keeper's check: whichever comes first.
    assert!(reason.contains("20 MiB ") && reason.contains("free in /home/ci"), "{reason}");
    assert!(reason.contains("after job 1 of `g/1`"), "{reason}");
    host.sh("rm /home/other");
    place.order(&["pool", "resume", "--instance", "a"]);
    the_next_runs_there(&place, 3);
    place.expect_sound();
}

/// A network cannot be made. Only jobs with services need one, and the keeper's check finds that, too.
#[test]
fn a_host_without_container_networks_fails_the_check_of_the_network() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = place(&hosts);
    place.run(&job(1)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    host.sh("mount --bind /bin/false \"$(command -v slirp4netns)\"");
    place.run(&job(2)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None, "no job needed it");
    let served = json!({"name": IMAGE, "alias": "store", "command": ["sh", "-c", "sleep 1000"]});
    let attempt = place.runner().attempt(&job(3).service(served));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    let out_of_service = || cleaned(&place).filter(|reason| reason.contains("keeper's check"));
    let reason = wait_for("the keeper's check", place.setting.patience, out_of_service);
    assert!(reason.contains("`podman run` with a network failed: "), "{reason}");
    host.sh("umount \"$(command -v slirp4netns)\"");
    place.expect_sound();
}
