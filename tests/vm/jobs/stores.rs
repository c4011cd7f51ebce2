//! Jobs whose images are in an image store, on machines that reach no registry.

use std::time::Instant;

use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use toml::{Table, Value};

use super::containers::{expect, report};
use super::machines;
use super::registry::Registries;
use crate::images;
use crate::published::{Image, PLAIN, publish};
use crate::stores::{ONE, StoreFolder, TWO};

/// A pool whose machines are clones of the folder's image.
fn setting(folder: &StoreFolder) -> Setting {
    let mut setting = machines().provider("image", "containers").provider("template_retention", "5s");
    setting = setting.provider("images", folder.images().display().to_string());
    setting.patience *= 3;
    setting
}

/// Containers whose images come from where they are.
fn from_store() -> Table {
    let policy = Value::Array(vec!["if-not-present".into()]);
    Table::from_iter([("pull_policy".to_owned(), policy)])
}

#[test]
fn a_job_and_its_service_have_their_images_without_a_registry() {
    let Some(folder) = StoreFolder::new(&[&ONE, &TWO]) else { return };
    folder.build("ci", &[&ONE, &TWO]);
    let _turn = images::turn();
    let place = setting(&folder).provider("image_store", "ci").pool("containers", from_store()).open();
    let job = Job::new(1)
        .image("one:1")
        .service(serde_json::json!({"name": "two:1", "entrypoint": ["/bin/sleep", "1000"]}))
        .script(["cat /etc/word", "echo written >/etc/word", "cat /etc/word"]);
    let result = place.runner().run(&job);
    report("store", &result);
    expect(&result, &Outcome::Success, &["the first", "written"]);
    assert!(!result.log_text().contains("pulling image"), "{}", result.describe());
    let explained = place.order(&["explain", "1"]);
    assert!(explained.contains("the instance had image `one:1`"), "{explained}");
    let status = place.order(&["pool", "status"]);
    assert!(status.contains("image store: `ci`, 2 images, refreshed "), "{status}");
    place.wait_until_settled(0);
}

/// An image of as many MB as GREENROOM_IMAGE_MB says (150), in one layer that nothing compresses.
const BIG: Image = Image { name: "library/big:1", tree: &["busybox", "noise"], ..PLAIN };
const ROUNDS: u64 = 3;

/// The time of a job's `prepare` on an idle machine that has its image in a store, on one that has it from its
/// template, on one on which the keeper has pulled it, and on one that lacks it.
#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_a_store_saves() {
    let Some(folder) = StoreFolder::new(&[&BIG]) else { return };
    if let Some(why) = Registries::obstacle() {
        return skipped(why);
    }
    let begun = Instant::now();
    folder.build("ci", &[&BIG]);
    eprintln!("the store is built after {:.1} s", begun.elapsed().as_secs_f64());
    let dir = tempfile::tempdir().expect("a directory");
    let registries = Registries::serve(dir.path(), &[]);
    let work = tempfile::tempdir().expect("a directory");
    publish(&BIG, &dir.path().join("registry"), work.path());
    drop(work);
    let pulled = format!("{}/{}", registries.open, BIG.name);
    let _turn = images::turn();
    let idle = || {
        let mut setting = setting(&folder).pool("idle_count", 1).pool("max_instances", 1);
        // Where other work takes the processors, a pull takes a quarter of an hour.
        setting.patience *= 5;
        setting
    };
    let mut warmed = registries.keys();
    warmed.extend(from_store());
    warmed.insert("pull_timeout".to_owned(), "1h".into());
    let lacking = warmed.clone();
    warmed.insert("images_warm".to_owned(), pulled.clone().into());
    let stored = idle().provider("image_store", "ci").pool("containers", from_store()).open();
    let templated = idle().provider("network", "open").pool("containers", warmed.clone()).open();
    let warm =
        idle().provider("network", "open").provider("boot", "direct").pool("containers", warmed).open();
    let without = idle().provider("network", "open").pool("containers", lacking).open();
    for place in [&stored, &templated, &warm, &without] {
        place.warm_up(1);
    }
    let patience = warm.setting.patience;
    wait_for("a template with the image", patience, || folder.has_template_with(&pulled).then_some(()));
    // Ends the machine that was there before its template.
    let first = templated.runner().run(&Job::new(99).image(&pulled).script(["echo ran"]));
    expect(&first, &Outcome::Success, &["ran"]);
    let has_pulled = || {
        let state = warm.state();
        let mut idle = state.instances.values().filter(|machine| machine.is_idle());
        idle.any(|machine| machine.images.get(&pulled).is_some()).then_some(())
    };
    let prepare = |place: &Place, id: u64, image: &str| {
        // The machine that boots in place of the last one, or pulls, would disturb the other pool's job.
        for place in [&stored, &templated, &without] {
            place.wait_until_idle(1);
        }
        wait_for("the image on the idle machine", warm.setting.patience, has_pulled);
        let result = place.runner().run(&Job::new(id).image(image).script(["echo ran"]));
        expect(&result, &Outcome::Success, &["ran"]);
        result.call("prepare").took().expect("it ended").as_secs_f64()
    };
    for round in 1..=ROUNDS {
        let ways = [
            ("a store", &stored, "big:1"),
            ("a template", &templated, &*pulled),
            ("`images_warm`", &warm, &*pulled),
            ("a pull", &without, &*pulled),
        ];
        for (way, place, image) in ways {
            eprintln!("round {round}: `prepare` with {way} {:.1} s", prepare(place, round, image));
        }
    }
}
