//! Kill -9 of any process of ours, at seeded moments.

use std::time::{Duration, Instant};

use crate::processes::Kind;
use crate::setting::Setting;
use crate::support::dice::{Dice, number};
use crate::support::job::Job;
use crate::support::record::Outcome;

/// Jobs run two at a time while processes of ours are killed; after the grace nothing is leaked, nothing is lost, and
/// no script is blamed.
#[test]
fn whatever_is_killed_nothing_is_leaked_or_lost_and_no_script_is_blamed() {
    let seed = number("GREENROOM_SEED", 1);
    let kills = number("GREENROOM_KILLS", 60);
    let replay = format!("replay: GREENROOM_SEED={seed} GREENROOM_KILLS={kills} cargo test --test jobs kill");
    println!("{replay}");
    // As far as the machine's own timing lets it, a seed gives the same victims in the same order.
    let mut dice = Dice::new(seed);
    let place = Setting::new().pool("max_instances", 4).pool("idle_count", 1).open();
    let runner = place.runner();
    let (mut killed, mut id) = (0, 0);
    let mut victims = std::collections::BTreeMap::<Kind, u64>::new();
    let deadline = Instant::now() + Duration::from_secs(60 + 3 * kills);
    while killed < kills {
        assert!(Instant::now() < deadline, "{killed} of {kills} kills: {replay}\n{}", place.log());
        let jobs: Vec<_> = (0..2)
            .map(|_| {
                id += 1;
                runner.start(&Job::new(id).script(["for i in 1 2 3; do sleep 0.05; done"]))
            })
            .collect();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(dice.below(120)));
            let kinds = [Kind::Call, Kind::Keeper, Kind::Instance, Kind::Trampoline];
            let living: Vec<_> =
                place.processes().into_iter().filter(|process| kinds.contains(&process.kind)).collect();
            let Some(victim) = dice.pick(&living) else { continue };
            if victim.kill9_as_found() {
                killed += 1;
                *victims.entry(victim.kind).or_default() += 1;
            }
        }
        for job in jobs {
            let result = job.finish();
            let blamed = matches!(result.outcome, Outcome::ScriptFailure { .. });
            assert!(!blamed, "{replay}\n{}\n{}", result.describe(), place.log());
        }
    }
    println!("killed {killed}: {victims:?} over {id} jobs");
    // The pool heals: jobs run as if nothing had happened.
    place.reap();
    for _ in 0..3 {
        id += 1;
        place.run(&Job::new(id).script(["true"])).expect_outcome(&Outcome::Success);
    }
    place.wait_until_settled(1);
    place.expect_sound();
    let state = place.state();
    assert!(state.granted.is_empty() && state.waiting.is_empty(), "{replay}\n{state:?}");
}
