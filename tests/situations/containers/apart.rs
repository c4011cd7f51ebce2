//! Kind: a job finds nothing of another job on its machine: no server, no password of the operator, no container.

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;
use serde_json::json;
use toml::Table;

use crate::engine::engine;
use crate::inside::Inside;
use crate::pool::{containers, job, plain};
use crate::proxy::{Fault, Proxy};
use crate::site::{ACCOUNT, PASSWORD, Site, site};

const FAILED: Outcome = Outcome::ScriptFailure { exit_code: 1 };

/// One machine for many jobs, so many at a time.
fn one_machine(site: &Site, at_a_time: i64, change: impl FnOnce(&mut Table)) -> Setting {
    let setting = containers(site, change).pool("max_instances", 1).pool("max_use_count", 30);
    setting.pool("capacity_per_instance", at_a_time)
}

/// Containers, networks and volumes of a machine by their names, those of the engine's own networks left out.
fn things(inside: &Inside) -> Vec<String> {
    let engine = engine().program();
    let listed = inside.sh(&format!(
        "{engine} ps --all --format '{{{{.Names}}}}'; {engine} network ls --format '{{{{.Name}}}}'; \
         {engine} volume ls --format '{{{{.Name}}}}'"
    ));
    let own = ["podman", "bridge", "host", "none"];
    listed.lines().filter(|name| !name.is_empty() && !own.contains(name)).map(str::to_owned).collect()
}

/// The things that are not of this attempt.
fn of_others(place: &Place, attempt: &Attempt) -> Vec<String> {
    let name = attempt.tmpdir.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let mut things = things(&Inside::of(place, attempt));
    things.retain(|thing| !thing.starts_with(&format!("greenroom-{name}")));
    things
}

fn end(attempt: &Attempt) {
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
}

/// *"Tests of another branch ran on the same machine, and ours talked to their server on 127.0.0.1:8080."*
#[test]
pub fn a_jobs_server_answers_no_other_job_on_the_machine() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 2, |_| {}).open();
    let first =
        place.prepared_as(&job(1, "ash:1").service(json!({"name": plain("backend:1"), "alias": "db"})));
    let serve = "nc -ll -p 8080 -e echo the first jobs own & sleep 0.2; nc -w 5 127.0.0.1 8080 </dev/null; nc -w 5 build \
                 8080 </dev/null; wait\n";
    let run = first.start_run("build_script", serve);
    run.wait_for_output("the first jobs own\nthe first jobs own\n", SOON);
    let inside = Inside::of(&place, &first);
    let program = engine().program();
    let addresses = inside.sh(&format!(
        "{program} inspect --format '{{{{range .NetworkSettings.Networks}}}}{{{{.IPAddress}}}}{{{{end}}}}' \
         $({program} ps --format '{{{{.Names}}}}')"
    ));
    let addresses: Vec<&str> = addresses.split_whitespace().collect();
    assert_eq!(addresses.len(), 2, "the job and its service: {addresses:?}");
    let tries = ["127.0.0.1", "build", "db"].into_iter().chain(addresses);
    let tries = tries.map(|at| format!("nc -w 2 {at} 8080 </dev/null || echo nothing at {at}"));
    let result = place.run(&job(2, "ash:1").script(tries));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(!log.contains("the first jobs own\n") && !log.contains("hello from"), "{log}");
    assert_eq!(log.matches("\nnothing at ").count(), 5, "{log}");
    run.signal_group(Signal::TERM);
    run.wait(SOON);
    end(&first);
    place.expect_sound();
}

/// *"With room for two jobs, jobs have a network of their own: are names, the host's and others', still known?"*
#[test]
pub fn in_a_network_of_its_own_a_job_has_its_names_and_reaches_others() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 2, |_| {}).open();
    let names = "grep -w build /etc/hosts; grep -w \"$(hostname)\" /etc/hosts";
    let result =
        place.run(&job(1, "ash:1").script([names, "nc -w 5 198.18.0.1 5000 </dev/null && echo reached"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\nreached\n"), "{log}");
    place.expect_sound();
}

/// The operator's file with the password, and what a spy looks for.
fn auth_file(site: &Site, name: &str) -> (String, String) {
    let (account, password) = ACCOUNT;
    let auth =
        <base64ct::Base64 as base64ct::Encoding>::encode_string(format!("{account}:{password}").as_bytes());
    let file = site.dir.join(name);
    std::fs::write(&file, json!({"auths": {PASSWORD: {"auth": auth}}}).to_string()).expect("a file");
    (file.display().to_string(), auth)
}

/// A job on the machine itself leaves a process that looks for the password as long as it lives.
fn spy(attempt: &Attempt, auth: &str) {
    let script = format!(
        "touch /tmp/seen\nsetsid sh -c 'while :; do grep -rhoF {auth} /run/greenroom.* /dev/shm /run/user; done \
         >>/tmp/seen 2>/dev/null' </dev/null >/dev/null 2>&1 &\n"
    );
    assert_eq!(attempt.run("build_script", &script).exit_code(), Some(0));
}

/// *"While the keeper pulled `images_warm`, a job of a shell got the machine, and found the password in its memory."*
///
/// The keeper is stopped, so that it ends nothing itself.
#[test]
fn a_job_on_the_machine_itself_begins_when_no_pull_has_a_password_there() {
    let Some(site) = site() else { return };
    let stalled = Proxy::new(site, Fault::Stall);
    let image = format!("{}/private:1", stalled.registry);
    let (account, password) = ACCOUNT;
    let auth =
        <base64ct::Base64 as base64ct::Encoding>::encode_string(format!("{account}:{password}").as_bytes());
    let file = site.dir.join("auth-stalled.json");
    std::fs::write(&file, json!({"auths": {&stalled.registry: {"auth": auth}}}).to_string()).expect("a file");
    let setting = containers(site, |table| {
        table.insert("registry_auth".into(), file.display().to_string().into());
        table.insert("images_warm".into(), vec![image.clone()].into());
    });
    let place = setting.pool("max_instances", 1).pool("idle_count", 1).open();
    let keeper = place.keep();
    wait_for("a pull", place.setting.patience * 2, || (stalled.seen() > 0).then_some(()));
    let inside = Inside::at(&place, &place.idle().remove(0));
    let look = format!("grep -rlF {auth} /run/greenroom.* /dev/shm /run/user 2>/dev/null; true");
    assert_ne!(inside.sh(&look), "", "the keeper's pull has the password");
    let signal =
        |signal| place.of_kind(Kind::Keeper).iter().for_each(|keeper| assert!(keeper.signal(signal)));
    signal(Signal::STOP);
    let attempt = place.prepared_as(&Job::new(1));
    let run = attempt.run("build_script", &format!("{look}\n"));
    assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(0), ""), "{}", run.stderr_text());
    assert!(inside.running(&image).is_empty());
    signal(Signal::CONT);
    end(&attempt);
    place.expect_sound();
    keeper.kill();
}

/// *"`capacity_per_instance = 2`: a job read the operator's registry password in `/dev/shm` while another's image came."*
#[test]
pub fn where_jobs_run_beside_each_other_the_operators_password_stays_away_unless_it_is_shared() {
    let Some(site) = site() else { return };
    let (file, auth) = auth_file(site, "auth-beside.json");
    for shared in [false, true] {
        let setting = one_machine(site, 2, |table| {
            table.insert("registry_auth".into(), file.clone().into());
            table.insert("registry_auth_shared".into(), shared.into());
        });
        let place = setting.open();
        let spying = place.prepared_as(&Job::new(1));
        spy(&spying, &auth);
        let seen = Inside::of(&place, &spying);
        let result = place.run(&Job::new(2).image(&format!("{PASSWORD}/private:1")).script(["echo ran"]));
        let log = result.log_text();
        if shared {
            result.expect_outcome(&Outcome::Success);
            assert_ne!(seen.sh("cat /tmp/seen"), "", "the spy sees what is there");
        } else {
            result.expect_outcome(&FAILED);
            assert!(
                log.contains("set DOCKER_AUTH_CONFIG, or have the operator set `registry_auth_shared`"),
                "{log}"
            );
            assert_eq!(seen.sh("cat /tmp/seen"), "");
            // With credentials of its own, the job gets the image.
            let (account, password) = ACCOUNT;
            let own = Job::new(3).image(&format!("{PASSWORD}/private:1")).script(["echo ran"]);
            place.run(&own.credential(PASSWORD, account, password)).expect_outcome(&Outcome::Success);
        }
        end(&spying);
        place.expect_sound();
    }
}

/// *"We set `max_use_count = 1` so that jobs get the password. A machine from before, with a job's process on it, got it, too."*
#[test]
fn a_machine_that_jobs_have_used_gets_no_password_whatever_new_machines_are_for() {
    let Some(site) = site() else { return };
    let (file, auth) = auth_file(site, "auth-before.json");
    let with = |count: i64| {
        let setting = one_machine(site, 1, |table| {
            table.insert("registry_auth".into(), file.clone().into());
        });
        setting.pool("max_use_count", count).pool("idle_time", "1h")
    };
    let place = with(5).open();
    let spying = place.prepared_as(&Job::new(1));
    spy(&spying, &auth);
    let (seen, machine) = (Inside::of(&place, &spying), place.instance_of(&spying));
    end(&spying);
    wait_for("the check between jobs", SOON, || place.idle().contains(&machine).then_some(()));
    place.write_config(&with(1).text(&place.state_dir));
    let private = |id| Job::new(id).image(&format!("{PASSWORD}/private:1")).script(["echo ran"]);
    let result = place.run(&private(2));
    assert_eq!(place.grants().last().map(|(_, instance)| instance.clone()), Some(machine));
    result.expect_outcome(&FAILED);
    assert!(result.log_text().contains("set DOCKER_AUTH_CONFIG"), "{}", result.log_text());
    assert_eq!(seen.sh("cat /tmp/seen"), "");
    place.expect_sound();
}

/// *"Machines serve five jobs. A process that a job left saw the password when the keeper pulled `images_warm` later."*
#[test]
fn on_a_machine_that_a_job_has_used_the_keeper_pulls_without_the_operators_password() {
    let Some(site) = site() else { return };
    let (file, auth) = auth_file(site, "auth-later.json");
    let image = format!("{PASSWORD}/private:1");
    let with = |images: Vec<String>| {
        one_machine(site, 1, |table| {
            table.insert("registry_auth".into(), file.clone().into());
            table.insert("images_warm".into(), images.into());
        })
    };
    let place = with(vec![plain("ash:1")]).pool("idle_count", 1).open();
    let keeper = place.keep();
    let spying = place.prepared_as(&Job::new(1));
    spy(&spying, &auth);
    let instance = place.instance_of(&spying);
    end(&spying);
    let has = |image: &str| {
        let state = place.state();
        state.instances.get(&instance).is_some_and(|i| i.images.get(image).is_some())
    };
    wait_for("the first image", place.setting.patience * 2, || has(&plain("ash:1")).then_some(()));
    let private = with(vec![plain("ash:1"), image.clone(), plain("bash:1")]).pool("idle_count", 1);
    place.write_config(&private.text(&place.state_dir));
    // It comes after the private one in the list.
    wait_for("the last image", place.setting.patience * 3, || has(&plain("bash:1")).then_some(()));
    assert!(!has(&image));
    let status = place.order(&["pool", "status"]);
    assert!(status.contains("`registry_auth_shared`"), "{status}");
    assert_eq!(Inside::at(&place, &instance).sh("cat /tmp/seen"), "");
    place.expect_sound();
    keeper.kill();
}

/// *"Services of jobs 1 and 2 still ran during job 3, with builds and cache mounted."*
#[test]
pub fn the_next_job_on_a_machine_finds_no_container_of_the_last_one() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 1, |_| {}).open();
    let served = |id| job(id, "ash:1").service(json!({"name": plain("backend:1"), "alias": "db"}));
    place.run(&served(1)).expect_outcome(&Outcome::Success);
    let next = |id| {
        let attempt = place.prepared_as(&job(id, "ash:1"));
        assert_eq!(of_others(&place, &attempt), [""; 0], "job {id}");
        assert_eq!(Inside::of(&place, &attempt).running("/serve"), [""; 0], "job {id}");
        end(&attempt);
    };
    next(2);
    // The runner was killed, and calls no `cleanup`.
    place.prepared_as(&served(3)).remove_tmpdir();
    next(4);
    // So was the keeper, which cannot know of the end.
    let keeper = place.keep();
    let attempt = place.prepared_as(&served(5));
    keeper.kill();
    end(&attempt);
    next(6);
    // Cancelled while its containers were prepared.
    let mut handle = place.runner().start(&served(7).image(&plain("big:1")));
    handle.wait_for_nth("prepare", 1).wait_for_output("big:1", SOON);
    handle.abort();
    handle.finish().expect_outcome(&Outcome::JobCanceled);
    next(8);
    let machines: std::collections::BTreeSet<InstanceId> =
        place.grants().into_iter().map(|(_, id)| id).collect();
    assert_eq!(machines.len(), 1, "it was no other machine");
    place.expect_sound();
}

/// *"A job started a database with `docker run -d` on the machine. The next job found it, with its volume."*
#[test]
pub fn what_a_job_made_itself_with_the_engine_goes_and_what_the_operator_brought_stays() {
    let Some(site) = site() else { return };
    let (program, image) = (engine().program(), plain("ash:1"));
    let agent = format!("{program} run --detach --name agent --network host {image} sleep 90000");
    for at_a_time in [1, 2] {
        let place = one_machine(site, at_a_time, |_| {}).pool("ready_command", agent.clone()).open();
        let attempt = place.prepared_as(&Job::new(1));
        let ran = attempt.run("build_script", &use_of_engine(program, &image));
        assert_eq!(ran.exit_code(), Some(0), "{}{}", ran.stdout_text(), ran.stderr_text());
        let made = of_others(&place, &attempt);
        for thing in ["agent", "db", "mine", "data", "never-started"] {
            assert!(made.iter().any(|made| made == thing), "{thing}: {made:?}");
        }
        end(&attempt);
        let next = place.prepared_as(&job(2, "ash:1"));
        assert_eq!(of_others(&place, &next), ["agent"], "{at_a_time} at a time");
        assert_eq!(Inside::of(&place, &next).running("sleep 9000").len(), 1, "the operator's");
        end(&next);
        place.expect_sound();
    }
}

/// The work of a job with the engine of its machine.
fn use_of_engine(program: &str, image: &str) -> String {
    format!(
        "set -e\n{program} network create mine\n{program} volume create data\n\
         {program} run --detach --name db --network mine --volume data:/data {image} sleep 90001\n\
         {program} run --detach --network host --volume /anonymous {image} sleep 90002\n\
         {program} create --name never-started {image}\n"
    )
}

/// *"Two jobs share a machine. When one ends, only its own containers may go."*
#[test]
pub fn beside_a_running_job_only_the_containers_of_the_other_one_go() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 2, |_| {}).open();
    let served = |id| job(id, "ash:1").service(json!({"name": plain("backend:1"), "alias": "db"}));
    let stays = place.prepared_as(&served(1));
    place.run(&served(2)).expect_outcome(&Outcome::Success);
    let attempt = place.prepared_as(&job(3, "ash:1"));
    let of_first = of_others(&place, &attempt);
    let name = stays.tmpdir.file_name().and_then(|name| name.to_str()).expect("a plain name");
    assert!(of_first.iter().all(|thing| thing.starts_with(&format!("greenroom-{name}"))), "{of_first:?}");
    assert_eq!(Inside::of(&place, &stays).running("nc -ll -p 8080").len(), 1, "the first job's own");
    assert_eq!(stays.run("build_script", "nc -w 5 db 8080 </dev/null\n").exit_code(), Some(0));
    end(&attempt);
    end(&stays);
    place.expect_sound();
}

/// *"A container could not be removed. The next job must not get that machine."*
#[test]
fn a_machine_whose_containers_cannot_be_removed_gets_no_other_job() {
    let Some(site) = site() else { return };
    let place = one_machine(site, 1, |_| {}).open();
    let attempt = place.prepared_as(&Job::new(1));
    let instance = place.instance_of(&attempt);
    let script = format!(
        "set -e\npodman create --name stays {}\ncat >/usr/local/bin/podman <<'END'\n#!/bin/sh\n\
         case $1 in rm) echo 'Error: it stays' >&2; exit 1 ;; esac\nexec /usr/bin/podman \"$@\"\nEND\n\
         chmod 755 /usr/local/bin/podman\n",
        plain("ash:1")
    );
    let ran = attempt.run("build_script", &script);
    assert_eq!(ran.exit_code(), Some(0), "{}", ran.stderr_text());
    end(&attempt);
    place.run(&job(2, "ash:1")).expect_outcome(&Outcome::Success);
    assert_ne!(place.grants().last().map(|(_, id)| id), Some(&instance));
    let reason = place.events().into_iter().find_map(|event| match event.change {
        Change::DrainingBegun { reason: DrainReason::Unfit { message }, .. } => Some(message),
        _ => None,
    });
    let reason = reason.expect("a reason");
    assert!(reason.contains("podman cannot remove what a job has left: container "), "{reason}");
    assert!(reason.contains("Error: it stays"), "{reason}");
    place.expect_sound();
}
