//! The trust domains that a host serves, and what they find there: nothing of another domain.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;

use crate::machine::{Hosts, Make, possible};

const JOBS: u64 = 40;
/// One of the hosts takes two seconds for each stage, and jobs wait for one another.
const PATIENCE: Duration = Duration::from_mins(3);

/// Looks everywhere for the other domain, then leaves as much as it can.
fn job(id: u64) -> Job {
    let (own, other) = if id.is_multiple_of(2) { ("red", "blue") } else { ("blue", "red") };
    // Its own script, which names what it looks for, is not what it looks for.
    let (head, tail) = other.split_at(1);
    let fills = id % 10 == 3;
    let job = Job::new(id).project(id % 2, &format!("g/{own}")).variable("OWN", own);
    job.script([
        format!("other=trace-of-{head}; other=${{other}}{tail}"),
        "seen=$(find /home /tmp /var/tmp /dev/shm -name \"*$other*\" 2>/dev/null)".into(),
        "[ -z \"$seen\" ] || { echo \"SEEN files: $seen\"; exit 1; }".into(),
        "seen=$(grep -lsF \"$other\" /proc/[0-9]*/environ /proc/[0-9]*/cmdline || true)".into(),
        "[ -z \"$seen\" ] || { echo \"SEEN processes: $seen\"; exit 1; }".into(),
        "seen=$(env | grep -F \"$other\" | grep -v ^other= || true)".into(),
        "[ -z \"$seen\" ] || { echo \"SEEN variables: $seen\"; exit 1; }".into(),
        "t=trace-of-$OWN; mkdir -p /home/ci/cache \"$TMPDIR/$t\"; touch $t /home/ci/cache/$t /tmp/$t /var/tmp/$t \"$(mktemp -u)$t\"".into(),
        "export TRACE=$t; for how in '' setsid 'setsid env -i'; do $how sh -c \"sleep 900; : $t\" >/dev/null 2>&1 </dev/null & done".into(),
        if fills { "dd if=/dev/zero of=fill bs=1M 2>/dev/null || echo the disk is full".into() } else { "true".into() },
    ])
}

/// A script that lists the traces of jobs: files by name, processes by a variable or an argument. The script names
/// neither.
const TRACES: &str = "t=trace-; t=${t}of; find /home /tmp /var/tmp /dev/shm -name \"*$t*\"
    grep -lsF $t /proc/[0-9]*/environ /proc/[0-9]*/cmdline || true";
/// A script that lists the processes of the user of jobs, but for the server's end of a connection.
const PROCESSES: &str = "ps -u 4711 -o comm= | grep -v '^sshd$'";

fn finish_all(handles: Vec<Handle>) {
    for handle in handles {
        // A job that sees something fails.
        handle.finish_within(PATIENCE).expect_outcome(&Outcome::Success);
    }
}

fn hosts_used(place: &Place, from: usize) -> BTreeSet<String> {
    place.grants().split_off(from).into_iter().map(|(_, host)| host.to_string()).collect()
}

#[test]
fn nobody_finds_anything_of_another_domain_though_hosts_come_and_go() {
    if !possible() {
        return;
    }
    let small = |name| Make { disk: 150, ..Make::named(name) };
    let mut hosts = Hosts::boot(&[Make { profile: "sleep 2\n", ..small("slow") }, small("b"), small("c")]);
    // A list waits for the host that is unplugged, and a pass for its list.
    let setting = hosts.setting().timing("connect_timeout", "15s").timing("list_interval", "5s");
    // Twenty calls that wait and poll five times a second leave little of the processors to the jobs.
    let setting = setting.timing("waiter_poll_interval", "1s").provider("dedicated_user", true);
    let place = setting.clone().open();
    let mut runner = place.runner();
    runner.patience = PATIENCE;
    runner.run(&Job::new(1000)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(3);
    // One is unplugged while nothing runs there: all jobs find another.
    hosts.machines[2].unplug();
    finish_all((0..JOBS / 2).map(|id| runner.start(&job(id))).collect());
    hosts.machines[2].plug_in();
    place.wait_until_idle(3);
    // It is back; another one is installed anew.
    hosts.machines[1].change_host_key();
    let before = place.grants().len();
    finish_all((JOBS / 2..JOBS).map(|id| runner.start(&job(id))).collect());
    let used = hosts_used(&place, before);
    assert!(used.contains("c") && used.contains("slow"), "{used:?}");
    // Its new key is stated: nothing else has to be done.
    place.write_config(&hosts.setting().provider("dedicated_user", true).text(&place.state_dir));
    place.wait_until_idle(3);
    for host in &hosts.machines {
        assert_eq!(host.sh(TRACES), "", "{}", host.name);
    }
    // The keeper checks the health of idle hosts with a login of its own, which takes two seconds on one of them.
    for keeper in place.of_kind(Kind::Keeper) {
        keeper.signal(Signal::TERM);
    }
    for host in &hosts.machines {
        wait_for("a host without any process of its user", SOON, || {
            host.sh(PROCESSES).is_empty().then_some(())
        });
    }
    place.expect_sound();
}

/// A job of a project, on a protected ref or not.
fn of(project: &str, id: u64, protected: bool) -> Job {
    let number = project.bytes().map(u64::from).sum();
    Job { protected: Some(protected), ..Job::new(id).project(number, project) }
}

#[test]
fn a_host_stays_with_its_first_domain_until_the_operator_unbinds_it() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let place = hosts.setting().pool("clean_unbinds", false).open();
    let keep =
        "mkdir -p /home/ci/cache; [ -z \"$(ls /home/ci/cache)\" ] || exit 3; touch /home/ci/cache/of-red";
    // A trial binds it to nothing.
    place.order(&["try"]);
    place.wait_until_idle(1);
    place.run(&of("g/red", 1, false).script([keep])).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    // Its own domain finds its cache.
    place
        .run(&of("g/red", 2, false).script(["[ -e /home/ci/cache/of-red ]"]))
        .expect_outcome(&Outcome::Success);
    // No other: neither another project, nor the protected refs of the same one.
    for (id, project, protected) in [(3, "g/blue", false), (4, "g/red", true)] {
        place.wait_until_idle(1);
        let refused = place.run(&of(project, id, protected));
        refused.expect_outcome(&Outcome::RunnerSystemFailure);
        let log = String::from_utf8_lossy(&refused.log).into_owned();
        let sentence = "no host may run this job: a, the pool's only host, is bound to another trust domain; the \
                        runner's administrator can add a host, or release one with `greenroom pool resume pool \
                        --instance a --unbind`";
        assert!(log.contains(sentence), "{log}");
    }
    let explained = place.order(&["explain", "a"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("stays with unprotected refs of g/red"), "{explained}");
    // Not under a job.
    let job = of("g/red", 5, false).script(["while [ ! -e /tmp/go ]; do sleep 0.05; done"]);
    let handle = place.runner().start(&job);
    handle.wait_for_stage("build_script");
    let unbind = ["pool", "resume", "pool", "--instance", "a", "--unbind"];
    let refused = place.greenroom(&unbind);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("still runs a job"), "{words}");
    hosts.machines[0].sh("touch /tmp/go");
    handle.finish().expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    let said = place.order(&unbind);
    assert!(said.contains("a belongs to no trust domain"), "{said}");
    place.run(&of("g/blue", 6, true).script([keep])).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    place.run(&of("g/red", 7, false)).expect_outcome(&Outcome::RunnerSystemFailure);
    place.expect_sound();
}
