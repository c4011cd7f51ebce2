//! Jobs, two at a time, while Greenroom's processes are killed at seeded moments.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use greenroom_testkit::dice::{Dice, number};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::place::Place;
use crate::processes::Kind;

/// The processes to kill, and the moments. `GREENROOM_SEED` replays a seed.
#[derive(Debug)]
pub struct Onslaught {
    /// The arguments of `cargo test` that repeat it.
    pub test: &'static str,
    /// The default of `GREENROOM_KILLS`.
    pub kills: u64,
    /// The kinds of processes to kill.
    pub kinds: &'static [Kind],
    /// The script of each job.
    pub script: &'static str,
    /// Kills during two jobs.
    pub blows: u32,
    /// Delay before each kill, in milliseconds.
    pub pause: Range<u64>,
    /// The longest time for each kill.
    pub patience: Duration,
}

impl Onslaught {
    /// Returns the number of the last job. No failure was attributed to a script.
    #[track_caller]
    pub fn on(&self, place: &Place) -> u64 {
        let seed = number("GREENROOM_SEED", 1);
        let kills = number("GREENROOM_KILLS", self.kills);
        let replay =
            format!("replay: GREENROOM_SEED={seed} GREENROOM_KILLS={kills} cargo test {}", self.test);
        eprintln!("{replay}");
        // As far as the machine's timing allows, a seed kills the same processes in the same order.
        let mut dice = Dice::new(seed);
        let runner = place.runner();
        let mut killed = 0;
        let mut id = 0;
        let mut victims = BTreeMap::<Kind, u64>::new();
        let deadline =
            Instant::now() + Duration::from_mins(1) + self.patience * kills.try_into().unwrap_or(u32::MAX);
        while killed < kills {
            assert!(Instant::now() < deadline, "{killed} of {kills} kills: {replay}\n{}", place.log());
            let jobs = [id + 1, id + 2].map(|id| runner.start(&Job::new(id).script([self.script])));
            id += 2;
            for _ in 0..self.blows {
                let pause = self.pause.start + dice.below(self.pause.end - self.pause.start);
                std::thread::sleep(Duration::from_millis(pause));
                let living: Vec<_> = place
                    .processes()
                    .into_iter()
                    .filter(|process| self.kinds.contains(&process.kind))
                    .collect();
                let Some(victim) = dice.pick(&living).filter(|_| killed < kills) else { continue };
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
        eprintln!("killed {killed}: {victims:?} over {id} jobs");
        id
    }
}
