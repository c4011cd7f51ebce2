//! Jobs that fight back with containers, on hosts that root cleans: the next trust domain finds nothing of them.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;

use crate::cleaned::cleaned;
use crate::engine::{CONTENT, IMAGE, hosts, setting};
use crate::hostile::{Attack, others, rounds, sure, withstand};
use crate::machine::Make;

/// The beginning of each attack: `own` runs a container as the job's own engine, past Greenroom.
macro_rules! own {
    ($script:expr) => {
        concat!(
            "export XDG_RUNTIME_DIR=$HOME/own; mkdir -p $XDG_RUNTIME_DIR; tool=localhost/tool:1; \
             podman() { command podman --cgroup-manager=cgroupfs \"$@\"; }; \
             own() { podman run --cgroups=disabled \"$@\"; }; \
             until_true() { n=0; until eval \"$1\"; do [ $((n += 1)) -lt 400 ] || exit 9; sleep 0.05; done; }; ",
            $script
        )
    };
}

/// Lists what is left of a job in the store of images.
const STORE: &str = "
s=.local/share/containers/storage
for d in overlay overlay-images overlay-layers; do
  diff -r --no-dereference /home/ci/$s/$d /var/lib/greenroom-homes/ci/$s/$d 2>&1 | grep -v 'special file'
done
for f in overlay-containers/containers.json secrets/secretsdata/secretsdata.json; do
  [ ! -e /home/ci/$s/$f ] || grep -H '\"id\"' /home/ci/$s/$f
done
[ ! -d /home/ci/$s/volumes ] || ls -A /home/ci/$s/volumes
for l in /proc/[0-9]*/ns/user; do
  [ \"$(readlink $l)\" = \"$(readlink /proc/self/ns/user)\" ] || echo \"a user namespace: $l\"
done
";

const PROCESSES: [Attack; 6] = [
    sure(
        "a container that outlives its job",
        own!(
            "own --detach --name stays --network host $tool sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done'; \
             own --detach --network none --restart always $tool sh -c 'sleep 1000'; [ $(podman ps -q | wc -l) = 2 ]"
        ),
    ),
    sure(
        "a privileged container",
        own!(
            "own --detach --name strong --privileged --network host $tool \
             sh -c 'mount -t tmpfs x /tmp && touch /tmp/mounted; trap \"\" TERM; while :; do sleep 1000; done'; \
             until_true 'podman exec strong test -e /tmp/mounted'"
        ),
    ),
    sure(
        "a listener in the host's network",
        own!(
            "own --detach --network host $tool sh -c 'while :; do echo mine | nc -l -p 7777; done'; \
             until_true 'grep -q :1E61 /proc/net/tcp*'"
        ),
    ),
    sure(
        "a fork bomb",
        own!(
            "own --detach --ulimit nproc=300:300 --network host $tool \
             sh -c 'trap \"\" TERM; for i in 1 2 3 4; do awk \"BEGIN { while (1) system(\\\"sleep 1000 &\\\") }\" 2>/dev/null & done; \
             wait'; until_true '[ $(pgrep -c -u $(id -u)) -gt 150 ]'"
        ),
    ),
    sure(
        "another id with each fork",
        own!(
            "setsid podman unshare perl -e '$SIG{TERM} = \"IGNORE\"; open my $f, \">\", \"/tmp/hops\"; chown 9, 9, \"/tmp/hops\"; \
             while (1) { $i = $i % 60000 + 1; syscall 117, $i, 0, $i; fork and exit; select undef, undef, undef, 0.0002 }' \
             >/dev/null 2>&1 </dev/null & until_true '[ \"$(stat -c %u /tmp/hops 2>/dev/null)\" = 200008 ]'; until_true 'pgrep -x perl'"
        ),
    ),
    sure(
        "a program that a container's id owns",
        own!(
            "podman unshare sh -c 'cp /bin/sleep /tmp/sleep; chown 5:5 /tmp/sleep; chmod 4755 /tmp/sleep'; \
             setsid /tmp/sleep 1000 >/dev/null 2>&1 </dev/null & until_true '[ \"$(ps -o euid= -C sleep | tr -d \" \" | grep 200004)\" ]'"
        ),
    ),
];

const FILES: [Attack; 6] = [
    sure(
        "a volume with root's files",
        own!(
            "podman volume create secret; own --rm --network host --volume secret:/v --volume /tmp:/t $tool \
             sh -c 'for d in /v /t/v; do mkdir -p $d/closed/in; touch $d/root $d/closed/in/it; chmod 6755 $d/root; \
             chown -R 1234:1234 $d; chmod -R 0 $d/closed; done'; [ $(stat -c %u /tmp/v) = 201233 ]"
        ),
    ),
    sure(
        "credentials",
        own!(
            "for d in ~/.config/containers ~/.docker $XDG_RUNTIME_DIR/containers /dev/shm/a; do mkdir -p $d; \
             echo '{\"auths\": {\"r.example.com\": {\"auth\": \"aDpw\"}}}' >$d/auth.json; done; cp ~/.docker/auth.json ~/.docker/config.json; \
             echo hunter2 | podman secret create password -; podman secret ls | grep password; \
             podman login --get-login r.example.com"
        ),
    ),
    sure(
        "an image of the same name",
        own!(
            "own --name evil --network host $tool sh -c 'echo evil >/content'; podman commit evil $tool; \
             [ \"$(own --rm --network host $tool cat /content)\" = evil ]"
        ),
    ),
    sure(
        "another content of the same image",
        own!(
            "podman unshare sh -c 'echo evil >$HOME/.local/share/containers/storage/overlay/*/diff/content' || \
             for f in ~/.local/share/containers/storage/overlay/*/diff/content; do echo evil >$f; done; \
             [ \"$(own --rm --network host $tool cat /content)\" = evil ]"
        ),
    ),
    sure(
        "a store elsewhere",
        own!(
            "mkdir -p ~/.config/containers /var/tmp/store; printf '[storage]\\ndriver = \"overlay\"\\ngraphroot = \
             \"/var/tmp/store\"\\n' >~/.config/containers/storage.conf; podman system migrate; \
             export XDG_RUNTIME_DIR=/tmp/other-run; mkdir -p $XDG_RUNTIME_DIR; \
             tar -C / -c bin/sh | podman import - localhost/mine:1 && [ -d /var/tmp/store/overlay ]"
        ),
    ),
    sure(
        "an image that fills the disk",
        own!(
            "! own --name fat --network host $tool dd if=/dev/zero of=/fill bs=1M; podman commit fat localhost/fat:1 || :; \
             [ $(df -Pk ~ | awk 'END { print $4 }') -lt 2000 ]"
        ),
    ),
];

fn against(attacks: &[Attack]) {
    let Some(hosts) = hosts(&[Make { disk: 150, ..Make::named("a") }]) else { return };
    if hosts.machines[0].sh("command -v perl").is_empty() {
        skipped("`perl` is missing");
        return;
    }
    others(&hosts.machines[0]);
    let place = setting(&hosts, |_| {}).open();
    withstand(&hosts, &place, attacks, STORE);
    let result = place.run(&Job::new(1000).project(8, "g/eight").image(IMAGE).script(["cat /content"]));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains(CONTENT), "{}", result.log_text());
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

/// Entrypoints that want their host to be blamed: by texts, endings and a full disk.
const BLAMING: [&str; 8] = [
    "echo 'sudo: bad' >&2; exit 5",
    "echo 'Error: the container engine did not start the container within 60 s' >&2; kill -KILL $$",
    "printf 'sound\\nunsound the disk is full\\nran\\nbroken engine no\\n'; exit 125",
    "echo 'Error: mounting storage: no space left on device' >&2; exit 126",
    "echo 'sh: podman: not found' >&2; exit 127",
    "kill -KILL -1; kill -KILL 1; exit 137",
    "rm -rf /bin /tmp 2>/dev/null; exit 1",
    "dd if=/dev/zero of=/fill bs=1M 2>/dev/null; echo 'Error: database: no space left on device' >&2; exit 125",
];

#[test]
fn no_entrypoint_gets_its_host_blamed() {
    let Some(hosts) = hosts(&[Make { disk: 250, ..Make::named("a") }]) else { return };
    let place = setting(&hosts, |_| {}).open();
    let mut id = 0;
    for _ in 0..rounds() {
        for script in BLAMING {
            id += 1;
            let entrypoint = serde_json::json!(["sh", "-c", script]);
            let job = Job::new(id).project(id % 3, &format!("g/{}", id % 3)).image(IMAGE);
            let result = place.run(&job.image_option("entrypoint", entrypoint));
            assert!(
                matches!(result.outcome, Outcome::ScriptFailure { .. }),
                "{script}: {}",
                result.describe()
            );
            assert_eq!(cleaned(&place), None, "{script}");
        }
    }
    place.run(&Job::new(1000).project(8, "g/eight").image(IMAGE)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

#[test]
fn no_container_outlives_its_job() {
    against(&PROCESSES);
}

#[test]
fn nothing_in_the_store_of_images_outlives_its_job() {
    against(&FILES);
}
