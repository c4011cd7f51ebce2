//! Containers in a light machine whose image has an engine.

use std::time::Instant;

use crate::images::{containers, light, turn};
use crate::machine::{Identity, Machine};

const GREETING: &str = "HELLO 1 light openssh";
const SEED: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";

/// The image `localhost/bb` from the guest's own busybox.
const IMPORT: &str = "mkdir -p /tmp/bb/bin && cp /bin/busybox /tmp/bb/bin/ && \
    for tool in sh cat id nc ping sleep; do ln -s busybox /tmp/bb/bin/$tool; done && \
    tar -C /tmp/bb -c . | podman import --quiet - localhost/bb >/dev/null";

/// The script that `doctor --boot` runs on an instance.
const DOCTOR: &str = include_str!("../../src/cli/doctor/boot/guest.sh");

/// Doctor starts containers on both kinds of networks, and nothing is missing.
pub(crate) fn run_with_all_they_need(machine: &Machine) {
    let facts = machine.says(&format!("program=podman registries= logins= auth= ca=\n{DOCTOR}"));
    let words: Vec<&str> = facts.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(words, ["clock", "cgroups", "engine", "runtime", "driver", "free-kib"], "{facts}");
}

fn booted() -> Machine {
    let mut machine = Machine::boot(&containers(), GREETING);
    assert_eq!(machine.ask("WARM-UP"), "WARM");
    machine.become_one(&Identity { hostname: "linux-1", machine_id: "1".repeat(32), seed: SEED });
    machine
}

/// The output of a command; its duration is printed as a figure.
fn timed(machine: &Machine, command: &str) -> String {
    let began = Instant::now();
    let said = machine.says(command);
    eprintln!("{:>8.2} s  {command}", began.elapsed().as_secs_f64());
    said
}

#[test]
fn containers_run_on_the_host_network_and_reach_each_other_on_their_own() {
    let _turn = turn();
    let machine = booted();
    let says = |command: &str| timed(&machine, command);
    assert_eq!(
        says("stat -f -c %T /sys/fs/cgroup /run/greenroom /var/lib/containers"),
        "cgroup2fs\ntmpfs\next2/ext3"
    );
    assert_eq!(says("podman images --quiet; podman ps --all --quiet"), "", "the warm-up leaves nothing");
    run_with_all_they_need(&machine);
    says("podman --version");
    says(IMPORT);
    assert_eq!(
        says("podman run --rm --network host localhost/bb sh -c 'id -u; cat /etc/hostname'"),
        "0\nlinux-1"
    );
    says("podman network create --disable-dns --subnet 10.89.7.0/24 job");
    says(
        "podman run --detach --name db --network job --ip 10.89.7.5 localhost/bb \
         sh -c 'while :; do echo hello | nc -l -p 5000; done'",
    );
    says(
        "podman create --interactive --init --name job --log-driver none --network job --ip 10.89.7.6 \
         --add-host db:10.89.7.5 localhost/bb sh",
    );
    let script = "nc db 5000; ping -c 1 -q db >/dev/null && cat /sys/fs/cgroup/pids.max; cat /etc/hosts";
    let stage = |script: &str| format!("echo '{script}' | podman start --attach --interactive job");
    let said = says(&stage(script));
    assert!(said.starts_with("hello\nmax\n"), "{said}");
    assert!(said.contains("10.89.7.5\tdb"), "{said}");
    assert!(!said.contains("linux-1"), "the machine's own names stay outside: {said}");
    let failed = machine.ssh(&machine.host_key(), &stage("exit 7"));
    assert_eq!(failed.status.code(), Some(7));
    says("podman rm --force --time 0 db job");
    assert_eq!(says("ps -eo stat= | grep -c ^Z || true"), "0", "process 1 reaps what the engine leaves");
}

/// Memory that nothing can reclaim, in KiB.
fn used(machine: &Machine) -> u64 {
    let sum = "/^(AnonPages|KernelStack|PageTables|Percpu|Shmem|SUnreclaim|VmallocUsed):/ { sum += $2 } END { print sum }";
    let text = machine.says(&format!("echo 3 > /proc/sys/vm/drop_caches; awk '{sum}' /proc/meminfo"));
    text.parse().expect("a number")
}

#[test]
fn an_idle_machine_pays_little_for_its_engine() {
    let _turn = turn();
    let mut plain = Machine::boot(&light(), GREETING);
    assert_eq!(plain.ask("WARM-UP"), "WARM");
    plain.become_one(&Identity { hostname: "linux-2", machine_id: "2".repeat(32), seed: SEED });
    let without = used(&plain);
    let with = used(&booted());
    eprintln!("an idle machine uses {without} KiB without an engine, {with} KiB with one");
    assert!(with < without + 4 * 1024, "{with} KiB, {without} KiB without an engine");
}
