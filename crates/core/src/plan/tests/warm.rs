//! Tests of which images are pulled in advance, where and when, and which instance a job with images gets.

use crate::event::Change;
use crate::ids::AttemptName;
use crate::images::{FoundImage, SeenImages};
use crate::invariants::check;
use crate::notation::{NOW, does, instance, notes, render_events, table, world};
use crate::plan::{View, plan, request, warm};

#[test]
fn idle_instances_pull_what_they_lack_two_at_a_time() {
    table(
        does,
        &[
            ("idle 5m", ""),
            ("warm a b | idle 5m", "pull a on i1"),
            ("warm a b | idle 5m has a", "pull b on i1"),
            ("warm a b | idle 5m has b", "pull a on i1"),
            ("warm a b | idle 5m has a,b,c", ""),
            ("warm a | idle 5m; idle 5m; idle 5m", "pull a on i1; pull a on i2"),
            // The first image of the list comes first, and what is missing before what is old.
            ("warm a b | idle 5m has a; idle 5m has a; idle 5m", "pull a on i3; pull b on i1"),
            ("warm a b | idle 5m has a,b checked 2h; idle 5m has a", "pull b on i2; pull a on i1"),
            ("warm a | idle 5m pulls a; idle 5m; idle 5m", "pull a on i2"),
            ("warm a | idle 5m pulls a; idle 5m pulls a; idle 5m", ""),
            // What is being stopped counts until it has ended.
            ("warm a | held 5m by 7 pulls a; held 5m by 8 pulls a; idle 5m", ""),
        ],
    );
}

#[test]
fn nothing_is_pulled_where_a_job_runs_or_none_will() {
    table(
        does,
        &[
            ("warm a | held 5m by 7", ""),
            ("warm a, cap 2 | held 5m by 7", ""),
            ("warm a | idle 5m busy", ""),
            ("warm a | idle 5m starting", ""),
            // It has become ready since the list: nothing else would wake the keeper.
            ("warm a, list 10s | idle 5s starting", "pull a on i1"),
            ("warm a, list 3s | idle 5s starting", ""),
            // The grant comes first.
            ("warm a | idle 5m; waits 8 wants a", "a8 gets i1"),
        ],
    );
}

#[test]
fn what_an_instance_has_is_compared_with_the_registry_after_an_hour() {
    table(
        does,
        &[
            ("warm a | idle 5m has a checked 59m", ""),
            ("warm a | idle 5m has a checked 60m", "pull a on i1"),
            // Not what only a job has left there.
            ("warm a | idle 5m has a,b checked 59m", ""),
        ],
    );
}

#[test]
fn a_pull_that_failed_waits_holds_up_no_other_and_is_reported() {
    table(
        does,
        &[
            ("warm a | idle 5m lacks a 5s", ""),
            ("warm a b | idle 5m lacks a 5s", "pull b on i1"),
            ("warm a | idle 5m lacks a 5s; idle 5m", "pull a on i2"),
        ],
    );
    table(
        notes,
        &[
            ("warm a | idle 5m lacks a 5s; idle 4m lacks a 4s", "no a on 2"),
            // It is no longer wanted, or the instance no longer idle.
            ("warm b | idle 5m lacks a 5s", ""),
            ("warm a | held 5m by 7 lacks a 5s", ""),
        ],
    );
    let next = |text: &str| world(text).plan().report.next.map(|next| next.since(NOW).as_secs());
    assert_eq!(next("warm a | idle 5m lacks a 5s"), Some(5));
    // A keeper that has nothing else to do does not stay for an image that never comes.
    assert_ne!(next("breaker 1, warm a | idle 5m lacks a 5s"), Some(5));
}

#[test]
fn a_pull_ends_when_its_instance_is_granted_or_leaves_or_its_image_is_no_longer_wanted() {
    for (text, goes_on) in [
        ("warm a | idle 5m", true),
        ("warm b | idle 5m", false),
        ("idle 5m", false),
        ("warm a | held 5m by 7", false),
        ("warm a | draining 5m", false),
        ("warm a, drained | idle 5m", false),
    ] {
        assert_eq!(warm::goes_on(&world(text).state, &instance("i1"), "a"), goes_on, "{text}");
    }
    assert!(!warm::goes_on(&world("warm a | ").state, &instance("i1"), "a"));
}

#[test]
fn a_pool_that_learns_pulls_what_its_jobs_used() {
    assert_eq!(does("learn 9 | idle 5m"), "");
    // Both jobs are of another project than the idle instance serves.
    let learned = world("learn 9, max 1 | idle 5m of b; waits 8 wants a,c; waits 9 wants a");
    let policy = learned.state.policy.clone().unwrap();
    assert_eq!(learned.state.warm_images(&policy).join(" "), "a");
    assert!(warm::goes_on(&learned.state, &instance("i1"), "a"));
    assert!(!warm::goes_on(&learned.state, &instance("i1"), "c"));
    // What its jobs use may need their password: no note.
    assert_eq!(notes("learn 9 | idle 5m lacks a 5s"), "");
}

#[test]
fn the_first_job_that_may_get_a_booted_instance_has_its_images_pulled_there() {
    for (text, expected) in [
        ("checking 5s; waits 8 wants a,b; waits 9 wants c", "a b"),
        ("checking 5s has a; waits 8 wants a,b", "b"),
        ("static checking 5s; waits 8 wants a", ""),
        ("checking 5s", ""),
        ("booting 5s; waits 8 wants a", ""),
        ("idle 5m; waits 8 wants a", ""),
    ] {
        let ahead = warm::ahead(&world(text).state, &instance("i1"));
        assert_eq!(ahead.join(" "), expected, "{text}");
    }
}

#[test]
fn among_equals_a_job_gets_the_instance_with_most_of_its_images() {
    table(
        does,
        &[
            ("idle 5m has a; idle 4m; waits 8 wants a", "a8 gets i1"),
            ("idle 5m; idle 4m has a; waits 8 wants a", "a8 gets i2"),
            ("idle 5m has a,b; idle 4m has a; idle 3m has b; waits 8 wants a,b", "a8 gets i1"),
            ("idle 5m has a; idle 4m has b; idle 3m; waits 8 wants a,b", "a8 gets i2"),
            ("idle 5m has c; idle 4m has c; waits 8 wants a", "a8 gets i2"),
            // Among those that have all, the most recently used.
            ("idle 5m has a; idle 4m has a; idle 3m; waits 8 wants a", "a8 gets i2"),
            // The fullest first, whatever it has.
            ("cap 3, any | idle 5m has a; held 9m by 7; waits 8 wants a", "a8 gets i2"),
            // Nobody waits for an image.
            ("max 1 | idle 5m has b; waits 8 wants a", "a8 gets i1"),
            // A trust domain is no preference.
            ("max 2, bound | idle 5m of b has a; idle 4m; waits 8 of a wants a", "a8 gets i2"),
            ("idle 5m has a; idle 4m has b; waits 8 wants a; waits 9 wants b", "a8 gets i1; a9 gets i2"),
        ],
    );
}

#[test]
fn a_job_without_images_gets_what_it_got_before() {
    let both = |rest: &str| {
        let world = world(&format!("idle 5m{rest}; idle 4m; waits 8"));
        plan(View { recorded: &world.state, observed: &world.observed }, &world.policy, world.now).events
    };
    assert_eq!(both(""), both(" has a"));
}

// Which images of an instance are recorded, and when that ends.

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
        let events = warm::seen_by_keeper(&world.state, &instance("i1"), &seen, NOW);
        assert_eq!(events.len(), usize::from(recorded), "{text}");
        for event in events {
            world.state.apply(&event).unwrap();
        }
        let has = world.state.instance(&instance("i1")).is_some_and(|i| i.images.get("a").is_some());
        assert_eq!(has, recorded, "{text}");
        assert_eq!(check(&world.state), []);
    }
}

/// The record of an instance's images after the job of attempt `a7` saw these.
fn by_job(text: &str, seen: &SeenImages) -> String {
    let world = world(text);
    render_events(&warm::seen_by_job(&world.state, &AttemptName::new("a7"), seen, NOW))
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
