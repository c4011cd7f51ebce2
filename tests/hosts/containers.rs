//! Jobs in containers on static hosts, without root there.

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use serde_json::json;

use crate::cleaned::cleaned;
use crate::engine::{CONTENT, IMAGE, OLD, bare_hosts, host_with_old, hosts, setting};
use crate::images::{Image, PLAIN, publish};
use crate::machine::{Machine, Make};

fn job(id: u64) -> Job {
    Job::new(id).image(IMAGE)
}

/// The findings of `doctor`, on one line.
fn examined(place: &Place) -> String {
    let found = place.greenroom(&["doctor"]);
    String::from_utf8_lossy(&found.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_job_and_its_services_run_in_containers_without_root() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = setting(&hosts, |_| {}).open();
    let host = &hosts.machines[0];
    let result = place.run(&job(1).script([
        "echo \"user $(id -u), host $(cat /proc/self/uid_map | tr -s ' ' | head -n 1)\"",
        "cat /content; mkdir -p made; touch made/by-root; chown 1000 made/by-root",
    ]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("user 0, host  0 4711 1"), "{log}");
    assert!(log.contains(CONTENT), "{log}");
    assert_eq!(cleaned(&place), None);
    let served = json!({"name": IMAGE, "alias": "store", "entrypoint": ["sh", "-c"],
        "command": ["while :; do echo hello from $(id -u) | nc -l -p 8080; done"],
        "variables": [{"key": "HEALTHCHECK_TCP_PORT", "value": "8080"}]});
    let user = json!({"user": "app"});
    let other = job(2)
        .project(9, "other/one")
        .image_option("executor_opts", json!({"docker": user}))
        .service(served)
        .script(["id -un; touch mine; sleep 0.2; nc -w 5 store 8080 </dev/null"])
        .after_script(["ls -l mine; touch after"]);
    let result = place.run(&other);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for said in ["\napp\n", "hello from 0", " app "] {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert_eq!(cleaned(&place), None);
    assert_eq!(host.sh("ls -A /home/ci/builds 2>/dev/null; pgrep -u 4711 -x conmon; ls /run/greenroom 2>&1 | grep -v cannot"), "");
    place.expect_sound();
}

#[test]
fn a_job_that_is_cancelled_ends_in_its_container() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = setting(&hosts, |_| {}).open();
    let host = &hosts.machines[0];
    // Another id than the account's, which has to end it nevertheless.
    let user = json!({"docker": {"user": "app"}});
    let busy = job(1)
        .image_option("executor_opts", user)
        .script(["echo left > /tmp/file; setsid sleep 47.11 & (trap '' TERM; while sleep 47.11; do :; done) & echo busy; while :; do sleep 0.1; done"])
        .after_script(["cat /tmp/file"]);
    let mut handle = place.runner().start(&busy);
    handle.wait_for_log("busy");
    wait_for("the job's processes", SOON, || {
        host.sh("pgrep -f '[s]leep 47.11'").contains('\n').then_some(())
    });
    handle.cancel();
    let result = handle.finish();
    assert!(result.log_text().contains("\nleft\n"), "{}", result.describe());
    assert_eq!(cleaned(&place), None);
    assert_eq!(host.sh("pgrep -f '[s]leep 47.11'"), "");
    place.expect_sound();
}

#[test]
fn a_host_that_lacks_what_containers_need_says_so_and_gets_no_job() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = setting(&hosts, |_| {}).open();
    let found = examined(&place);
    assert!(!found.contains("[host-containers"), "{found}");
    host.sh("mount --bind /dev/null /etc/subuid");
    let found = examined(&place);
    assert!(found.contains("65536 subordinate ids of `ci` in /etc/subuid and /etc/subgid"), "{found}");
    let handle = place.runner().start(&job(1));
    let reason = cleaned(&place).unwrap_or_default();
    assert!(reason.contains("jobs in containers need subordinate ids of ci in /etc/subuid"), "{reason}");
    host.sh("umount /etc/subuid");
    place.order(&["pool", "resume", "--instance", "a"]);
    handle.finish().expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

#[test]
fn an_account_that_shares_subordinate_ids_cannot_be_cleaned() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = setting(&hosts, |_| {}).open();
    // A host that cannot be cleaned serves no job: it has to be adopted by now.
    place.run(&Job::new(9)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    for (line, why) in [
        ("other:230000:10", "ci and other have the same ids (200000 to 265535, 230000 to 230009)"),
        ("ci:4712:1", "ci has the id 4712, which is that of the account janitor"),
    ] {
        host.sh(&format!("cp /etc/subuid /tmp/subuid; echo {line} >>/etc/subuid"));
        let found = examined(&place);
        assert!(found.contains("[host-clean-user]") && found.contains(why), "{found}");
        place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
        let reason = cleaned(&place).unwrap_or_default();
        assert!(reason.contains(why), "{reason}");
        host.sh("cat /tmp/subuid >/etc/subuid; rm /tmp/subuid");
        place.order(&["pool", "resume", "--instance", "a"]);
        wait_for("the host to be back", SOON, || cleaned(&place).is_none().then_some(()));
    }
    place.expect_sound();
}

/// A job that makes an image, as the account's own engine, and leaves all else that an engine can keep.
const MAKES: &str = "export XDG_RUNTIME_DIR=$HOME/own; mkdir -p $XDG_RUNTIME_DIR tree/bin; cp $(command -v busybox) tree/bin/sh; \
    podman() { command podman --cgroup-manager=cgroupfs \"$@\"; }; tar -C tree -c . | podman import - localhost/mine:1; \
    podman volume create v; echo x | podman secret create s -; podman network create n; \
    podman run --cgroups=disabled --detach --network host localhost/mine:1 sh -c 'while :; do read -t 100 x </dev/zero; done'; \
    podman create --cgroups=disabled --network host localhost/mine:1 sh";

#[test]
fn a_host_that_stays_with_its_domain_keeps_images_and_nothing_else() {
    let Some(hosts) = bare_hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = setting(&hosts, |_| {}).pool("clean_unbinds", false).open();
    place.run(&Job::new(1).script([MAKES])).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    let kept = "cd /home/ci/.local/share/containers/storage; ls overlay-images/images.json; \
                cat overlay-containers/containers.json; ls -d volumes/v secrets/secretsdata; ls networks; \
                pgrep -a -u 4711 | grep -v sshd";
    let kept = host.sh(kept);
    assert!(kept.starts_with("overlay-images/images.json\n[]") && !kept.contains("n.json"), "{kept}");
    assert!(!kept.contains("/v") && !kept.contains("secrets") && !kept.contains("podman\n"), "{kept}");
    let again = Job::new(2).image("localhost/mine:1").script(["echo \"user $(exec sh -c 'echo here')\""]);
    let result = place.run(&again);
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("image `localhost/mine:1` is on the instance already"));
    assert_eq!(cleaned(&place), None);
    let knows = || place.state().instances.values().any(|host| host.images.get("localhost/mine:1").is_some());
    assert!(knows(), "cleaning has left the image");
    place.order(&["pool", "resume", "pool", "--instance", "a", "--unbind"]);
    place.run(&Job::new(3).project(5, "g/five")).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    assert!(!host.sh("ls /home/ci/.local/share/containers/storage/overlay-images").contains("images.json"));
    assert!(!knows(), "cleaning has removed the image");
    place.expect_sound();
}

#[test]
fn little_room_removes_images_that_were_not_used_for_longest() {
    let Some(hosts) = host_with_old() else { return };
    let host = &hosts.machines[0];
    let free = host.sh("df -Pm /home | awk 'END { print $4 }'").trim().parse::<u64>().expect("a number");
    let wanted = format!("{}M", free + 20);
    let place = setting(&hosts, |table| drop(table.insert("min_free_space".into(), wanted.into()))).open();
    let result = place.run(&job(1).script(["cat /content"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    let removed =
        format!("removed image `{OLD}`, which no job has used: less than `min_free_space` was free");
    assert!(log.contains(&removed) && !log.contains(&format!("removed image `{IMAGE}`")), "{log}");
    let explained = place.order(&["explain", "1"]);
    assert!(explained.contains(&format!("image `{OLD}` was removed to make room")), "{explained}");
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

#[test]
fn a_full_disk_is_named_and_the_next_attempt_gets_another_host() {
    let Some(hosts) = hosts(&[Make::named("a"), Make::named("b")]) else { return };
    let place = setting(&hosts, |_| {}).open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(2);
    // Filled by somebody else; the other host is there for the second attempt.
    hosts.machines[0].sh("head -c 1000M /dev/zero >/home/other");
    place.order(&["pool", "drain", "--instance", "b"]);
    let handle = place.runner().start(&job(2).project(3, "g/three").script(["cat /content"]));
    handle.wait_for_log("disk is full");
    place.order(&["pool", "resume", "--instance", "b"]);
    let result = handle.finish();
    let log = result.log_text();
    result.expect_outcome(&Outcome::Success);
    assert!(log.contains(CONTENT), "{log}");
    let status = place.order(&["pool", "status"]);
    assert!(status.contains("pool resume pool --instance a"), "{status}");
    hosts.machines[0].sh("rm /home/other");
    place.order(&["pool", "resume", "--instance", "a"]);
    place.wait_until_idle(2);
    place.expect_sound();
}

#[test]
fn files_of_the_images_user_and_the_output_of_services_are_those_of_the_job() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = setting(&hosts, |_| {}).open();
    let talks = json!({"name": IMAGE, "alias": "talker", "command":
        ["sh", "-c", "while :; do echo asked | nc -l -p 8080 >/dev/null; echo one more; done"],
        "variables": [{"key": "HEALTHCHECK_TCP_PORT", "value": "8080"}]});
    let owned = job(1)
        .variable("FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR", "true")
        .variable("CI_DEBUG_SERVICES", "true")
        .image_option("executor_opts", json!({"docker": {"user": "app"}}))
        .file("KEY", "content of a file")
        .service(talks)
        .script([
            "ls -ld . \"$KEY\" | awk '{ print $1, $3 }'; cat $KEY; echo; echo made >file",
            "nc -w 5 talker 8080 </dev/null; sleep 0.5",
        ])
        .after_script(["cat file; echo more >>file"]);
    let result = place.run(&owned);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for said in ["drwxr-xr-x app", "-rw-r--r-- app", "content of a file", "made"] {
        assert!(log.lines().any(|line| line == said), "{said}: {log}");
    }
    assert!(
        log.lines()
            .any(|line| line.starts_with("greenroom:   localhost__tool ") && line.ends_with("| one more")),
        "{log}"
    );
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

#[test]
fn jobs_that_share_a_host_have_containers_of_their_own() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let place = setting(&hosts, |_| {}).pool("capacity_per_instance", 2).pool("max_instances", 1).open();
    let runner = place.runner();
    let handles: Vec<_> = [1, 2]
        .into_iter()
        .map(|id| {
            let served = json!({"name": IMAGE, "alias": "store", "command":
                ["sh", "-c", format!("while :; do echo hello from {id} | nc -l -p 8080; done")],
                "variables": [{"key": "HEALTHCHECK_TCP_PORT", "value": "8080"}]});
            let meets = "echo begun; touch /tmp/mine; sleep 3; nc -w 5 store 8080 </dev/null; ls /tmp";
            runner.start(&job(id).service(served).script([meets]))
        })
        .collect();
    for (handle, id) in handles.into_iter().zip([1, 2]) {
        let result = handle.finish();
        result.expect_outcome(&Outcome::Success);
        assert!(result.log_text().contains(&format!("hello from {id}\n")), "{}", result.log_text());
    }
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

/// Serves an image on the host's loopback interface, to one account; false where no registry is installed: the test is
/// skipped then.
fn serve(host: &Machine) -> bool {
    if host.sh("command -v docker-registry").is_empty() {
        skipped("`docker-registry` is missing");
        return false;
    }
    let image = Image { name: "private:1", ..PLAIN };
    publish(&image, &host.dir().join("registry"), host.dir());
    let write = |name: &str, text: &str| std::fs::write(host.dir().join(name), text).expect("a file");
    write("htpasswd", "reader:$2y$05$greenroomgreenroomgreukbtVYDDmlBUYWrU.or5DiBA1rLozTP6\n");
    write(
        "registry.yml",
        "version: 0.1\nstorage: {filesystem: {rootdirectory: /mnt/registry}}\nhttp: {addr: 127.0.0.1:5005, secret: lab}\n\
         auth: {htpasswd: {realm: lab, path: /mnt/htpasswd}}\n",
    );
    host.sh("setsid docker-registry serve /mnt/registry.yml >/mnt/registry.log 2>&1 </dev/null & \
             until grep -q ' 0100007F:138D ' /proc/net/tcp; do sleep 0.05; done");
    true
}

#[test]
fn the_keeper_pulls_images_in_advance_and_again_after_each_cleaning() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    if !serve(host) {
        return;
    }
    let name = "127.0.0.1:5005/private:1";
    let auth = <base64ct::Base64 as base64ct::Encoding>::encode_string(b"reader:a made-up password");
    let file = host.dir().join("auth.json");
    std::fs::write(&file, json!({"auths": {"127.0.0.1:5005": {"auth": auth}}}).to_string()).expect("a file");
    let warm = setting(&hosts, |table| {
        table.insert("images_warm".into(), name.into());
        table.insert("registry_auth".into(), file.display().to_string().into());
    });
    let place = warm.open();
    let keeper = place.keep();
    for id in [1, 2] {
        wait_for("the image", place.setting.patience, || {
            let state = place.state();
            let has = state.instances.values().any(|i| i.is_idle() && i.images.get(name).is_some());
            has.then_some(())
        });
        let result = place.run(&Job::new(id).project(id, "g/any").image(name).script(["echo ran"]));
        result.expect_outcome(&Outcome::Success);
        let log = result.log_text();
        assert!(log.contains(&format!("image `{name}` is on the instance already")), "{log}");
        assert_eq!(cleaned(&place), None);
    }
    assert_eq!(host.sh("grep -rl 'made-up password' /home /tmp /dev/shm /run /var/tmp"), "");
    place.expect_sound();
    keeper.kill();
}

#[test]
fn an_image_that_a_password_brought_is_there_for_its_job_only() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    if !serve(host) {
        return;
    }
    let place = setting(&hosts, |_| {}).open();
    let private =
        |id| Job::new(id).image("127.0.0.1:5005/private:1").script(["echo ran; cat /proc/self/uid_map"]);
    let result = place.run(&private(1).credential("127.0.0.1:5005", "reader", "a made-up password"));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\nran\n") && log.contains("pulling image"), "{log}");
    assert_eq!(cleaned(&place), None);
    let result = place.run(&private(2).project(4, "g/four"));
    let log = result.log_text();

    assert!(!log.contains("\nran\n") && log.contains("for which there are no credentials"), "{log}");
    assert_eq!(cleaned(&place), None);
    assert_eq!(host.sh("grep -rl 'a made-up password' /home /tmp /dev/shm /run /var/tmp"), "");
    place.expect_sound();
}
