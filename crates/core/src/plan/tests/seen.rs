//! Which images of an instance are recorded, and when that ends.

use crate::event::Change;
use crate::ids::AttemptName;
use crate::images::{FoundImage, SeenImages};
use crate::invariants::check;
use crate::notation::{NOW, instance, render_events, table, world};
use crate::plan::{request, seen};

fn found(name: &str, digest: &str) -> FoundImage {
    FoundImage { name: name.into(), digest: Some(digest.into()), bytes: 7 }
}

fn seen(found: Vec<FoundImage>, removed: &[&str]) -> SeenImages {
    SeenImages { found, removed: removed.iter().map(|name| (*name).into()).collect() }
}

#[test]
fn what_the_keeper_pulled_is_recorded_where_the_instance_still_serves() {
    for (text, recorded) in [
        ("idle 5m", true),
        ("held 5m by 7", true),
        ("checking 5s", true),
        ("draining 5s", false),
        ("booting 5s", false),
        ("", false),
    ] {
        let mut world = world(text);
        let seen = seen(vec![found("a", "sha256:0a")], &[]);
        let events = seen::by_keeper(&world.state, &instance("i1"), &seen, NOW);
        assert_eq!(events.len(), usize::from(recorded), "{text}");
        for event in events {
            world.state.apply(&event).unwrap();
        }
        let has = world.state.instance(&instance("i1")).is_some_and(|i| i.images.get("a").is_some());
        assert_eq!(has, recorded, "{text}");
        assert_eq!(check(&world.state), []);
    }
}

/// What the job of attempt `a7` saw becomes of the record.
fn by_job(text: &str, seen: &SeenImages) -> String {
    let world = world(text);
    render_events(&seen::by_job(&world.state, &AttemptName::new("a7"), seen, NOW))
}

#[test]
fn what_a_job_pulled_is_recorded_where_another_job_may_find_it() {
    let has = |text: &str| by_job(text, &seen(vec![found("a", "sha256:0a")], &[]));
    table(
        has,
        &[
            ("held 5m by 7", "i1 has a, by a7"),
            ("held 5m by 7 uses 0", ""),
            ("held 5m by 7 uses 1", "i1 has a, by a7"),
            ("held 5m by 7 has a", ""),
            ("bound | static held 5m by 7", "h1 has a, by a7"),
            // Cleaning leaves nothing for a job of another domain, but others may run beside it.
            ("static held 5m by 7", ""),
            ("cap 2 | static held 5m by 7", "h1 has a, by a7"),
            // It has left: its host may have been cleaned since.
            ("idle 5m", ""),
            ("held 5m by 8", ""),
            ("", ""),
        ],
    );
}

#[test]
fn what_a_script_removed_is_forgotten_under_all_its_names() {
    let removes = |text: &str| by_job(text, &seen(vec![found("c", "sha256:0c")], &["a"]));
    table(
        removes,
        &[
            // All facts of these worlds have the same digest.
            ("held 5m by 7 has a,b", "i1 lost a b; i1 has c, by a7"),
            ("held 5m by 7 has b", "i1 has c, by a7"),
            ("held 5m by 7 has a uses 0", ""),
        ],
    );
    let mut world = world("held 5m by 7 has a");
    world.tell(NOW, Change::ImagesRemoved { instance: instance("i1"), images: vec!["a".into()] });
    assert!(world.state.instance(&instance("i1")).is_some_and(|i| i.images.is_empty()));
}

#[test]
fn a_cleaning_leaves_the_facts_of_images_that_are_still_there_unchanged() {
    let cleaned = |left: &[(&str, &str)]| {
        let mut world = world("bound | static cleaning 5s has a,b");
        let host = instance("h1");
        let begun = world.state.instances[&host].since;
        let left: Vec<_> = left.iter().map(|(name, digest)| ((*name).into(), (*digest).into())).collect();
        let events = request::cleaned(&world.state, &host, begun, &left, NOW);
        let said = render_events(&events);
        for event in events {
            world.state.apply(&event).unwrap();
        }
        let names = world.state.instances[&host].images.iter().map(|fact| fact.image.name.to_string());
        (said, names.collect::<Vec<_>>().join(" "))
    };
    for (left, said, names) in [
        (&[][..], "h1 cleaned", ""),
        (&[("a", "sha256:0a"), ("c", "sha256:0a")], "h1 cleaned, with a", "a"),
        // Another image has the name.
        (&[("a", "sha256:0b"), ("b", "sha256:0a")], "h1 cleaned, with b", "b"),
    ] {
        assert_eq!(cleaned(left), (said.to_owned(), names.to_owned()));
    }
}
