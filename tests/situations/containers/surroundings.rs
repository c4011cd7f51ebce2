//! Kind: a container finds in its surroundings what programs expect there: its own name, the network's MTU, name servers, processes.

use greenroom_core::container::engine::ContainerEngine;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::engine::{engine, on_docker};
use crate::inside::Inside;
use crate::pool::{containers, job, plain};
use crate::site::site;

/// Answers each question for an address with 192.0.2.7: the name server of an internal network, at this address.
const NAME_SERVER: &str = r#"cat >/run/names <<'END'
use IO::Socket::INET;
my $s = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => 53, Proto => "udp") or die;
while (defined(my $from = recv($s, my $q, 512, 0))) {
  my $end = index($q, "\0", 12) + 5;
  my $is_four = substr($q, $end - 4, 2) eq "\0\1";
  my $answer = $is_four ? "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\7" : "";
  send($s, substr($q, 0, 2) . "\x81\x80\0\1" . pack("n", $is_four) . "\0\0\0\0" . substr($q, 12, $end - 12) . $answer, 0, $from);
}
END
setsid perl /run/names ADDRESS </dev/null >/run/names.log 2>&1 &
printf 'nameserver 127.0.0.1\nsearch corp.example\n' >/run/resolv.conf
mount --bind /run/resolv.conf /etc/resolv.conf
until grep -q ':0035 ' /proc/net/udp; do sleep 0.05; done
"#;

/// A pool whose machines run this when they have booted.
fn prepared(script: &str, change: impl FnOnce(&mut toml::Table)) -> Option<Setting> {
    let setting = containers(site()?, change);
    Some(setting.pool("max_instances", 1).pool("max_use_count", 4).pool("ready_command", script))
}

/// The log of a job, which passes.
#[track_caller]
fn log(place: &Place, job: &Job) -> String {
    let result = place.run(job);
    result.expect_outcome(&Outcome::Success);
    result.log_text()
}

fn with_service(id: u64) -> Job {
    job(id, "ash:1").service(json!({"name": plain("backend:1")}))
}

fn a_name() {
    let extra =
        |table: &mut toml::Table| drop(table.insert("extra_hosts".into(), vec!["cache:192.0.2.9"].into()));
    let Some(setting) = prepared("true", extra) else { return };
    let place = setting.open();
    let known = ["hostname -f", "grep -w registry.test /etc/hosts", "grep -w cache /etc/hosts"];
    let script = [known[0], known[1], known[2], "echo 192.0.2.8 own >>/etc/hosts"];
    assert!(log(&place, &job(1, "ash:1").script(script)).contains("\nmachine\n"));
    log(&place, &with_service(2).script(["hostname -f", "grep -w cache /etc/hosts"]));
    // The file is the container's, not the machine's.
    log(&place, &job(3, "ash:1").script(["! grep -w own /etc/hosts"]));
    place.expect_sound();
}

/// A test suite that looks up the name of its machine.
#[test]
fn a_container_resolves_its_own_name() {
    a_name();
}

/// A test suite on Docker that looks up the name of its machine. Docker drops the machine's hosts file where an option
/// adds a name.
#[test]
fn a_container_of_docker_resolves_its_own_name() {
    on_docker(a_name);
}

/// A machine in a network with an MTU of 1400, as many clouds and all tunnels have.
const NARROW: &str = "ip link set eth0 mtu 1400 && ip route add default via 198.18.0.1";

fn an_mtu() {
    let Some(setting) = prepared(NARROW, |_| {}) else { return };
    let place = setting.open();
    let daemon = json!({"name": plain("library/docker:27-dind"), "alias": "docker"});
    let script = ["ip link show eth0", "nc -w 5 docker 2376 </dev/null"];
    let log = log(&place, &job(1, "ash:1").service(daemon).script(script));
    assert!(log.contains(" mtu 1400 "), "{log}");
    assert!(log.contains("\"registry-mirrors\":[") && log.contains(",\"mtu\":1400}"), "{log}");
    place.expect_sound();
}

/// A job with services that uploads more than fits into one packet.
#[test]
fn the_networks_of_containers_have_the_mtu_of_the_machine() {
    an_mtu();
}

#[test]
fn the_networks_of_docker_have_the_mtu_of_the_machine() {
    on_docker(an_mtu);
}

/// An operator who knows better than the machine's routes.
#[test]
fn the_pools_own_mtu_comes_first_and_a_daemon_gets_it_without_mirrors() {
    let own = |table: &mut toml::Table| {
        table.insert("network_mtu".into(), 1300.into());
        table.remove("mirrors");
    };
    let Some(setting) = prepared(NARROW, own) else { return };
    let place = setting.open();
    let daemon = json!({"name": plain("library/docker:27-dind"), "alias": "docker"});
    let script = ["ip link show eth0", "nc -w 5 docker 2376 </dev/null"];
    let log = log(&place, &job(1, "ash:1").service(daemon).script(script));
    assert!(log.contains(" mtu 1300 ") && log.contains("\n{\"mtu\":1300}"), "{log}");
    place.expect_sound();
}

/// Ten thousand threads in a test: Podman's own limit is 2,048.
#[test]
fn a_container_may_have_any_number_of_processes() {
    for (limit, option) in [(None, "--pids-limit=-1"), (Some(4711), "--pids-limit=4711")] {
        let own = |table: &mut toml::Table| {
            table.extend(limit.map(|limit: i64| ("pids_limit".to_owned(), limit.into())));
        };
        let record = "printf '#!/bin/sh\\necho \"$*\" >>/run/calls\\nexec /usr/bin/podman \"$@\"\\n' >/usr/local/bin/podman; \
                      chmod +x /usr/local/bin/podman";
        let Some(setting) = prepared(record, own) else { return };
        let place = setting.open();
        let first = place.warm_up(1).remove(0);
        let inside = Inside::at(&place, &first);
        log(&place, &with_service(1));
        let calls = inside.sh("grep '^create ' /run/calls");
        assert!(calls.lines().count() == 2 && calls.lines().all(|call| call.contains(option)), "{calls}");
        // The check between jobs removes what it takes for a job's.
        wait_for("the check between jobs", SOON, || place.idle().contains(&first).then_some(()));
        // With a control group, which the engine has no right to make here, the option decides.
        let limit = inside.sh(&format!(
            "podman create --cgroups=enabled {option} --name it --pull never {} true >/dev/null; \
             podman inspect --format '{{{{.HostConfig.PidsLimit}}}}' it",
            plain("ash:1")
        ));
        assert_eq!(limit.trim(), if option.ends_with("-1") { "0" } else { "4711" });
    }
}

fn a_low_port() {
    let Some(setting) = prepared("true", |_| {}) else { return };
    let place = setting.open();
    let script = "id -u; cat /proc/sys/net/ipv4/ip_unprivileged_port_start";
    let served = job(1, "app:1").service(json!({"name": plain("backend:1")}));
    let said = log(&place, &served.script([&format!("{script} /proc/sys/net/ipv4/ping_group_range")]));
    assert!(said.contains("\n1000\n0\n0\t2147483647\n"), "{said}");
    // In the machine's network.
    let said = log(&place, &job(2, "app:1").script([script]));
    assert!(said.contains("\n1000\n0\n"), "{said}");
    place.expect_sound();
}

/// A web server of an image whose user is not root listens on port 80, as with Docker.
#[test]
fn a_container_whose_user_is_not_root_may_listen_on_any_port() {
    a_low_port();
}

#[test]
fn a_container_of_docker_whose_user_is_not_root_may_listen_on_any_port() {
    on_docker(a_low_port);
}

/// A machine whose name server answers on its loopback interface only, and has the servers of the network in a file.
#[test]
fn internal_names_resolve_with_and_without_services() {
    let listen = NAME_SERVER.replace("ADDRESS", "$(hostname -I)");
    let upstream =
        "mkdir -p /run/dnsmasq; printf 'nameserver %s\\n' $(hostname -I) >/run/dnsmasq/resolv.conf";
    let Some(setting) = prepared(&format!("{listen}{upstream}"), |_| {}) else { return };
    let place = setting.open();
    let log = log(&place, &with_service(1).script(["cat /etc/resolv.conf", "nslookup intern.corp.example"]));
    assert!(log.contains("search corp.example") && log.contains("192.0.2.7"), "{log}");
    place.expect_sound();
}

/// Names of an internal domain in containers of Docker, whose own name server asks the machine's.
#[test]
fn internal_names_resolve_in_containers_of_docker() {
    on_docker(|| {
        let listen = NAME_SERVER.replace("ADDRESS", "127.0.0.1");
        let Some(setting) = prepared(&listen, |_| {}) else { return };
        let place = setting.open();
        for job in [job(1, "ash:1"), with_service(2)] {
            let log = log(&place, &job.script(["nslookup intern.corp.example"]));
            assert!(log.contains("192.0.2.7") && !log.contains("set `dns`"), "{log}");
        }
        place.expect_sound();
    });
}

/// A machine whose name server answers on its loopback interface only, and nothing names another.
#[test]
fn name_servers_that_containers_cannot_reach_are_named_with_the_remedy() {
    assert_eq!(engine(), ContainerEngine::Podman);
    // Alone, and before a public one, which has no internal names.
    for also in ["", "nameserver 192.0.2.53\\n"] {
        let alone = format!(
            "printf 'nameserver 127.0.0.1\\n{also}' >/run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf"
        );
        let Some(setting) = prepared(&alone, |_| {}) else { return };
        let place = setting.open();
        let said = log(&place, &with_service(1));
        assert!(
            said.contains("reaches its name servers (127.0.0.1)") && said.contains("set `dns`"),
            "{said}"
        );
        let said = log(&place, &job(2, "ash:1"));
        assert!(!said.contains("set `dns`"), "a job without services uses the machine's network: {said}");
        place.expect_sound();
    }
}

/// The operator's check before the first job, on a machine with both faults: a control group that allows few processes, which
/// a played engine shows to its containers, and a name server that only the machine reaches.
#[test]
fn doctor_finds_both_before_a_job_does() {
    let few = "mkdir /run/limited; echo 1500 >/run/limited/pids.max; \
               printf '#!/bin/sh\\nif [ \"$1\" = run ]; then shift; set -- run --volume /run/limited:/sys/fs/cgroup:ro \"$@\"; fi\\n\
               exec /usr/bin/podman \"$@\"\\n' >/usr/local/bin/podman; chmod +x /usr/local/bin/podman; \
               printf 'nameserver 127.0.0.1\\n' >/run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf";
    let Some(setting) = prepared(few, |_| {}) else { return };
    let place = setting.open();
    let found = place.greenroom(&["doctor", "--boot", "pool"]);
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in ["[containers-processes]", "only 1500 processes", "[containers-name-servers]", "(127.0.0.1)"]
    {
        assert!(line.contains(said), "{said}: {text}");
    }
}
