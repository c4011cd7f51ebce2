//! A few seeds of the deterministic simulation, and proof that a seed reproduces. `scripts/sim` runs many more.

use std::rc::Rc;

use greenroom_sim::cover::Coverage;
use greenroom_sim::product::Greenroom;
use greenroom_sim::run::run;

/// `GREENROOM_SEEDS=A..B` runs more of them.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("GREENROOM_SEEDS").unwrap_or_else(|_| "0..12".to_owned());
    let (from, to) = text.split_once("..").expect("GREENROOM_SEEDS is A..B");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn the_same_seed_tells_the_same_story_and_another_one_another() {
    let story = |seed| run(seed, Rc::new(Greenroom), true).story.unwrap();
    let first = story(3);
    assert_eq!(first, story(3));
    assert_ne!(first, story(4));
    assert!(first.lines().count() > 1_000, "a story of a world: {} lines", first.lines().count());
}

#[test]
fn no_seed_breaks_a_promise() {
    let mut failed = Vec::new();
    let mut cover = Coverage::default();
    for seed in seeds() {
        let outcome = run(seed, Rc::new(Greenroom), false);
        cover.merge(&outcome.cover);
        if outcome.problem().is_some() {
            failed.push(format!("{}\n  replay: scripts/sim --seed {seed} --story", outcome.line()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(cover.fault_kinds() > 20, "{}", cover.table());
}
