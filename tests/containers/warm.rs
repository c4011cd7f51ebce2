//! Images that the keeper pulls on idle instances, with real Podman and real registries.

use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::images::ImageFact;
use greenroom_core::plan::warm::AT_MOST;
use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::Value;
use toml::Table;

use crate::images::{self, Image, PLAIN};
use crate::inside::Inside;
use crate::pool::{containers, job, plain};
use crate::proxy::{Fault, Proxy};
use crate::site::{ACCOUNT, PASSWORD, STOPPED, Site, site};

/// A pool that keeps so many idle machines with these images.
fn warm(site: &Site, idle: u32, images: &[String]) -> Setting {
    warm_with(site, idle, images, |_| {})
}

fn warm_with(site: &Site, idle: u32, images: &[String], change: impl FnOnce(&mut Table)) -> Setting {
    let setting = containers(site, |table| {
        table.insert("images_warm".into(), images.to_vec().into());
        change(table);
    });
    setting.pool("idle_count", i64::from(idle))
}

/// The record of an image on each idle machine that has it.
fn facts(place: &Place, image: &str) -> Vec<(InstanceId, ImageFact)> {
    let state = place.state();
    let idle = state.instances.values().filter(|i| i.is_idle());
    let has = idle.filter_map(|i| Some((i.id.clone(), i.images.get(image)?.clone())));
    has.collect()
}

/// Waits until so many machines have an image.
#[track_caller]
fn wait_until_warm(place: &Place, image: &str, machines: usize) -> Vec<(InstanceId, ImageFact)> {
    wait_for(image, place.setting.patience * 2, || {
        Some(facts(place, image)).filter(|facts| facts.len() == machines)
    })
}

fn said(place: &Place, arguments: &[&str]) -> String {
    place.order(arguments).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn idle_machines_have_the_images_and_a_job_finds_its_own_there() {
    let Some(site) = site() else { return };
    let images = [plain("ash:1"), plain("bash:1")];
    let place = warm(site, 2, &images).open();
    let keeper = place.keep();
    for image in &images {
        let facts = wait_until_warm(&place, image, 2);
        assert!(
            facts.iter().all(|(_, fact)| fact.image.digest.is_some() && fact.image.bytes > 0),
            "{facts:?}"
        );
    }
    let status = said(&place, &["pool", "status"]);
    assert!(status.contains("has `registry.test:5000/ash:1`, `registry.test:5000/bash:1`"), "{status}");
    let json: Value = serde_json::from_str(&place.order(&["pool", "status", "--json"])).expect("JSON");
    let instance = &json["pools"][0]["instances"][0];
    assert_eq!(instance["images"].as_array().map(Vec::len), Some(2), "{json}");
    assert!(instance["pulling"].is_null(), "{json}");
    let result = place.run(&job(1, "ash:1").script(["echo the script ran"]));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("is on the instance already"), "{}", result.describe());
    let explained = said(&place, &["explain", "1"]);
    assert!(explained.contains("the instance had image `registry.test:5000/ash:1` (sha256:"), "{explained}");
    let of_instance = said(&place, &["explain", facts(&place, &images[0])[0].0.as_str()]);
    assert!(of_instance.contains("image `registry.test:5000/ash:1` pulled in advance ("), "{of_instance}");
    place.run(&job(2, "exec:1")).expect_outcome(&Outcome::Success);
    let explained = said(&place, &["explain", "2"]);
    assert!(explained.contains("image `registry.test:5000/exec:1` (sha256:"), "{explained}");
    assert!(explained.contains(") pulled "), "{explained}");
    place.expect_sound();
    keeper.kill();
}

#[test]
fn a_pool_that_learns_pulls_on_its_next_machines_what_two_jobs_used() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("images_warm".into(), "learn".into());
    });
    let place = setting.pool("idle_count", 1).open();
    let keeper = place.keep();
    for id in 1..=2 {
        place.run(&job(id, "ash:1")).expect_outcome(&Outcome::Success);
    }
    place.run(&job(3, "bash:1")).expect_outcome(&Outcome::Success);
    // Each machine serves one job: only the keeper can have pulled it there.
    let id = wait_until_warm(&place, &plain("ash:1"), 1).remove(0).0;
    assert!(place.grants().iter().all(|(_, used)| *used != id), "{:?}", place.grants());
    assert_eq!(facts(&place, &plain("bash:1")), [], "one job used it");
    let result = place.run(&job(4, "ash:1"));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("is on the instance already"), "{}", result.describe());
    place.expect_sound();
    keeper.kill();
}

#[test]
fn a_job_gets_the_idle_machine_that_has_its_image() {
    let Some(site) = site() else { return };
    let image = plain("ash:1");
    let setting = warm(site, 1, std::slice::from_ref(&image));
    let place = setting.clone().open();
    let keeper = place.keep();
    let has = wait_until_warm(&place, &image, 1).remove(0).0;
    // The next machine lacks it, and would be preferred as the one that became ready last.
    let other = warm(site, 2, &[plain("bash:1")]);
    place.write_config(&other.text(&place.state_dir));
    wait_until_warm(&place, &plain("bash:1"), 2);
    assert_eq!(facts(&place, &image).len(), 1);
    place.run(&job(1, "ash:1")).expect_outcome(&Outcome::Success);
    assert_eq!(place.grants(), [(1, has)]);
    keeper.kill();
}

#[test]
fn the_next_job_gets_the_machine_on_which_another_jobs_prepare_pulled_its_image() {
    let Some(site) = site() else { return };
    let setting = containers(site, |_| ());
    let place = setting.pool("max_use_count", 5).pool("idle_count", 2).open();
    let keeper = place.keep();
    wait_for("machines", place.setting.patience * 2, || (place.idle().len() == 2).then_some(()));
    let image = plain("ash:1");
    place.run(&job(1, "ash:1")).expect_outcome(&Outcome::Success);
    let is_checked = |id: &InstanceId| place.state().instance(id).is_some_and(|i| i.usable() > 0);
    let checked = |id: &InstanceId| {
        wait_for("a checked machine", place.setting.patience, || is_checked(id).then_some(()));
    };
    let has = facts(&place, &image).remove(0);
    assert!(has.1.image.digest.is_some() && has.1.image.bytes > 0, "{has:?}");
    checked(&has.0);
    // The other machine becomes the one that was used last, which would be preferred.
    let attempt = place.prepared_as(&job(2, "ash:1"));
    place.run(&job(3, "bash:1")).expect_outcome(&Outcome::Success);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    checked(&place.grants().last().expect("job 3").1);
    place.run(&job(4, "bash:1")).expect_outcome(&Outcome::Success);
    checked(&has.0);
    let result = place.run(&job(5, "ash:1"));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("is on the instance already"), "{}", result.describe());
    let grants = place.grants();
    let of = |job: u64| grants.iter().find(|(id, _)| *id == job).map(|(_, instance)| instance.clone());
    assert_eq!((of(1), of(2), of(5)), (Some(has.0.clone()), Some(has.0.clone()), Some(has.0.clone())));
    assert!(of(3) != of(1) && of(3) == of(4), "{grants:?}");
    let explained = said(&place, &["explain", has.0.as_str()]);
    assert!(explained.contains(&format!("has image `{image}` since job ")), "{explained}");
    // A second job on the instance brings nothing new: no further event.
    let journal =
        std::fs::read_to_string(place.state_dir.join("pools/pool/journal.jsonl")).expect("a journal");
    assert_eq!(journal.matches("images-found").count(), 2, "{journal}");
    place.expect_sound();
    keeper.kill();
}

#[test]
fn the_operators_password_pulls_and_is_in_no_record() {
    let Some(site) = site() else { return };
    let (account, password) = ACCOUNT;
    let pair = format!("{account}:{password}");
    let auth = <base64ct::Base64 as base64ct::Encoding>::encode_string(pair.as_bytes());
    let file = site.dir.join("auth-warm.json");
    let text = serde_json::json!({"auths": {PASSWORD: {"auth": auth}}}).to_string();
    std::fs::write(&file, text).expect("the operator's file");
    let image = format!("{PASSWORD}/private:1");
    let setting = warm_with(site, 1, std::slice::from_ref(&image), |table| {
        table.insert("registry_auth".into(), file.display().to_string().into());
    });
    let place = setting.open();
    let keeper = place.keep();
    let id = wait_until_warm(&place, &image, 1).remove(0).0;
    let inside = Inside::at(&place, &id);
    let left = inside.sh(&format!("ls /run /var/tmp; grep -rlF '{auth}' /run /var /dev/shm /etc/containers"));
    assert!(!left.contains("greenroom-pull") && !left.contains("json"), "{left}");
    let journal = std::fs::read_to_string(place.state_dir.join("pools/pool/journal.jsonl"));
    assert!(!journal.expect("a journal").contains(&auth) && !keeper.log().contains(&auth));
    keeper.kill();
}

#[test]
fn a_registry_that_is_down_is_reported_and_costs_no_job_its_machine() {
    let Some(site) = site() else { return };
    let missing = format!("{STOPPED}/ash:1");
    let setting = warm_with(site, 1, std::slice::from_ref(&missing), |table| {
        table.insert("pull_timeout".into(), "30s".into());
    });
    let place = setting.open();
    let keeper = place.keep();
    let status = wait_for("a note", place.setting.patience * 2, || {
        Some(said(&place, &["pool", "status"])).filter(|status| status.contains("`images_warm` is missing"))
    });
    assert!(status.contains("registry.test:5003/ash:1"), "{status}");
    let id = place.idle().remove(0);
    let found = place.greenroom(&["doctor", "--json"]);
    let found = String::from_utf8_lossy(&found.stdout);
    assert!(found.contains("pool-pulls-failing"), "{found}");
    place.run(&job(1, "ash:1")).expect_outcome(&Outcome::Success);
    assert_eq!(place.grants(), [(1, id)], "it was not replaced");
    place.expect_sound();
    keeper.kill();
}

#[test]
fn a_job_that_comes_during_a_pull_does_not_wait_for_it() {
    let Some(site) = site() else { return };
    let stalled = Proxy::new(site, Fault::Stall);
    let image = format!("{}/ash:1", stalled.registry);
    let place = warm(site, 1, std::slice::from_ref(&image)).pool("max_instances", 1).open();
    let keeper = place.keep();
    wait_for("a pull", place.setting.patience * 2, || (stalled.seen() > 0).then_some(()));
    let status = said(&place, &["pool", "status"]);
    assert!(status.contains(&format!("pulls `{image}`")), "{status}");
    let attempt = place.prepared_as(&job(1, "ash:1"));
    let inside = Inside::of(&place, &attempt);
    wait_for("the pull's end", place.setting.patience, || inside.running(&image).is_empty().then_some(()));
    assert_eq!(attempt.run_stage("get_sources").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.expect_sound();
    keeper.kill();
}

/// The machine becomes ready when it has the image, so nothing but the keeper's pull makes it ready.
#[test]
fn a_machine_that_boots_for_a_job_pulls_its_image_before_it_is_ready() {
    let Some(site) = site() else { return };
    let image = plain("ash:1");
    let ready = format!("until podman image exists {image}; do sleep 0.1; done");
    let setting = containers(site, |_| {}).pool("ready_command", ready);
    let place = setting.timing("launch_timeout", "2m").timing("ready_timeout", "1m").open();
    let result = place.run(&job(1, "ash:1"));
    result.expect_outcome(&Outcome::Success);
    place.expect_sound();
}

#[test]
fn a_machine_that_pulls_still_answers_the_keeper() {
    let Some(site) = site() else { return };
    let stalled = Proxy::new(site, Fault::Stall);
    let image = format!("{}/ash:1", stalled.registry);
    let setting = warm(site, 3, std::slice::from_ref(&image)).timing("health_interval", "200ms");
    let place = setting.open();
    let keeper = place.keep();
    wait_for("pulls", place.setting.patience * 2, || (stalled.seen() >= 2).then_some(()));
    let before = place.idle();
    let machines: Vec<Inside> = before.iter().map(|id| Inside::at(&place, id)).collect();
    for _ in 0..10 {
        let pulling = machines.iter().filter(|inside| !inside.running("podman pull").is_empty()).count();
        assert!(pulling <= AT_MOST, "{pulling} machines pull");
        place.order(&["reap"]);
    }
    assert_eq!(place.idle(), before);
    let unreachable = place.state().instances.values().any(|i| i.unreachable.is_some());
    assert!(!unreachable, "{}", keeper.log());
    keeper.kill();
}

#[test]
fn a_keeper_killed_during_a_pull_leaves_nothing_and_the_next_one_pulls() {
    let Some(site) = site() else { return };
    let proxy = Proxy::new(site, Fault::StallFirst(1));
    let image = format!("{}/ash:1", proxy.registry);
    let place = warm(site, 1, std::slice::from_ref(&image)).open();
    let keeper = place.keep();
    wait_for("a pull", place.setting.patience * 2, || (proxy.seen() > 0).then_some(()));
    let id = place.idle().remove(0);
    keeper.kill();
    let inside = Inside::at(&place, &id);
    wait_for("the pull's end", place.setting.patience, || inside.running(&image).is_empty().then_some(()));
    let left = inside.sh("ls /run /var/tmp");
    wait_for("its files' end", place.setting.patience, || {
        (!inside.sh("ls /run /var/tmp").contains("greenroom-pull")).then_some(())
    });
    assert_eq!(facts(&place, &image), [], "{left}");
    let keeper = place.keep();
    assert_eq!(wait_until_warm(&place, &image, 1).remove(0).0, id);
    place.expect_sound();
    keeper.kill();
}

#[test]
fn a_digest_that_changes_under_a_tag_is_found_and_pulled() {
    let Some(site) = site() else { return };
    let publish = |word: &'static [(&'static str, &'static str)]| {
        let image = Image { name: "moving:1", files: word, ..PLAIN };
        let work = site.dir.join("work-moving");
        std::fs::create_dir_all(&work).expect("a folder");
        images::publish(&image, &site.dir.join("registry"), &work);
    };
    publish(&[("word", "#!/bin/sh\necho the old one\n")]);
    let image = plain("moving:1");
    let setting = warm(site, 1, std::slice::from_ref(&image)).timing("image_check_interval", "1s");
    let place = setting.timing("health_interval", "500ms").open();
    let keeper = place.keep();
    let before = wait_until_warm(&place, &image, 1).remove(0).1;
    publish(&[("word", "#!/bin/sh\necho the new one\n")]);
    let after = wait_for("another digest", place.setting.patience, || {
        let fact = facts(&place, &image).pop()?.1;
        (fact.image.digest != before.image.digest).then_some(fact)
    });
    assert!(after.since != before.since);
    let result = place.run(&job(1, "moving:1").script(["/word"]));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("\nthe new one\n"), "{}", result.describe());
    place.expect_sound();
    keeper.kill();
}

#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_a_warm_image_saves() {
    let Some(site) = site() else { return };
    for name in ["noise:1", "noise:2"] {
        let image = Image { name, tree: &["busybox", "noise"], ..PLAIN };
        let work = site.dir.join("work-noise");
        std::fs::create_dir_all(&work).expect("a folder");
        images::publish(&image, &site.dir.join("registry"), &work);
    }
    let mut setting = warm(site, 1, &[plain("noise:1")]);
    // GREENROOM_IMAGE_MB may ask for a large image.
    setting.patience *= 5;
    let place = setting.open();
    let keeper = place.keep();
    let took = |id, image: &str| {
        let result = place.run(&job(id, image));
        result.expect_outcome(&Outcome::Success);
        let prepare = result.calls.iter().find(|call| call.name() == "prepare").expect("a call");
        prepare.took().unwrap_or(Duration::ZERO)
    };
    for round in 0..5 {
        wait_until_warm(&place, &plain("noise:1"), 1);
        let warm = took(round * 2 + 1, "noise:1");
        wait_until_warm(&place, &plain("noise:1"), 1);
        let lacking = took(round * 2 + 2, "noise:2");
        eprintln!("prepare with the image {warm:?}, with a pull from loopback {lacking:?}");
    }
    keeper.kill();
}
