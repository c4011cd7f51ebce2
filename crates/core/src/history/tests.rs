//! Records of jobs, wherever the journal is cut.

use super::*;
use crate::event::{Change, Event};
use crate::images::WantedImages;
use crate::instance::Release;
use crate::job_end::JobResult;
use crate::notation::{NOW, attempt, facts, generation, instance, world};
use crate::policy::Policy;
use crate::pool::PoolState;

/// Events, each with its second.
#[derive(Default)]
struct Story(Vec<Event>);

impl Story {
    fn then(&mut self, second: u64, change: Change) -> &mut Self {
        self.0.push(change.at(NOW.plus(Duration::from_secs(second))));
        self
    }

    /// Instance `i1`, `i2`, …, launched as `c1`, `c2`, …
    fn launched(&mut self, number: u32, second: u64) -> &mut Self {
        let intent = Change::LaunchIntended {
            instance: instance(&format!("i{number}")),
            generation: generation(),
            number,
            attempt: 1,
            capacity: 1,
            uses_left: None,
            offering: Some(OfferingName::new(format!("c{number}"))),
            location: None,
            lifetime: None,
            ordered: None,
        };
        self.then(second, intent)
    }

    fn ready(&mut self, short: &str, second: u64) -> &mut Self {
        self.then(second, Change::BecameReady { instance: instance(short) })
    }

    /// An attempt whose name is not that of its job.
    fn asks(&mut self, name: u64, job: u64, second: u64) -> &mut Self {
        let mut job = facts(job, "a", Duration::from_hours(1));
        job.images = WantedImages::new(["ruby".into()]);
        let domain = Policy::default().domain_of(&job);
        let acquire_timeout = Duration::from_mins(30);
        self.then(second, Change::Requested { attempt: attempt(name), job, domain, acquire_timeout })
    }

    fn gets(&mut self, name: u64, short: &str, second: u64) -> &mut Self {
        self.then(second, Change::Granted { attempt: attempt(name), instance: instance(short) })
    }

    fn ends(&mut self, name: u64, result: JobResult, second: u64) -> &mut Self {
        self.then(second, Change::JobEnded { attempt: attempt(name), end: JobEnd::new(result, "") })
    }

    fn leaves(&mut self, name: u64, second: u64) -> &mut Self {
        let release = Release { how: End::CleanedUp, used: true, closing: false };
        self.then(second, Change::Released { attempt: attempt(name), release })
    }

    fn part(&self, from: usize, to: usize) -> Part {
        let mut builder = PartBuilder::default();
        self.0[from..to].iter().for_each(|event| builder.take(event));
        builder.finish()
    }

    /// The result of a collector if the journal is cut in two places.
    fn told(&self, period: Period, cuts: [usize; 2]) -> (Option<Stamp>, Vec<JobRecord>) {
        let mut collector = Collector::new(period);
        for (from, to) in [(0, cuts[0]), (cuts[0], cuts[1]), (cuts[1], self.0.len())] {
            collector.add(self.part(from, to));
        }
        (collector.begins(), collector.finish(&PoolState::default()))
    }

    /// A line for each job, the same wherever the journal is cut.
    #[track_caller]
    fn lines(&self) -> Vec<String> {
        let whole = self.told(Period::ALL, [0, 0]);
        for first in 0..=self.0.len() {
            for second in first..=self.0.len() {
                assert_eq!(self.told(Period::ALL, [first, second]), whole, "cut at {first} and {second}");
            }
        }
        assert_eq!(whole.0, self.0.first().map(|event| event.at));
        whole.1.iter().map(line).collect()
    }
}

/// `7 at 20: warm i1 c1 after 0, lasted 40, 1 attempt, passed`.
fn line(job: &JobRecord) -> String {
    let start = job.start.map_or("-", Start::word);
    let instance = job.instance.as_ref().map_or("-", |id| id.as_str());
    let offering = job.offering.as_ref().map_or("-", |offering| offering.as_str());
    let lasted = job.lasted().map_or("-".to_owned(), |lasted| lasted.as_secs().to_string());
    let end = job.end.as_ref().map_or("-".to_owned(), |end| format!("{:?}", end.result).to_lowercase());
    format!(
        "{} at {}: {start} {instance} {offering} after {}, lasted {lasted}, {} attempt, {end}",
        job.job.id,
        job.requested.since(NOW).as_secs(),
        job.waited.as_secs(),
        job.attempts,
    )
}

#[test]
fn each_way_to_an_instance_is_told() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10);
    story.asks(7, 7, 20).gets(7, "i1", 20).ends(7, JobResult::Passed, 50).leaves(7, 60);
    story.asks(8, 8, 70).launched(2, 71).ready("i2", 95).gets(8, "i2", 95);
    story.asks(9, 9, 98).ends(8, JobResult::Failed, 120).leaves(8, 130).gets(9, "i2", 130).leaves(9, 131);
    assert_eq!(
        story.lines(),
        [
            "7 at 20: warm p-g-1 c1 after 0, lasted 40, 1 attempt, passed",
            "8 at 70: booted p-g-2 c2 after 25, lasted 35, 1 attempt, failed",
            "9 at 98: freed p-g-2 c2 after 32, lasted 1, 1 attempt, -",
        ]
    );
}

#[test]
fn a_job_that_waited_for_a_resume_is_told_from_one_that_waited_for_a_boot() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 20).then(30, Change::SuspendIntended { instance: instance("i1") });
    story.asks(8, 8, 100).then(101, Change::ResumeIntended { instance: instance("i1") });
    story.ready("i1", 105).gets(8, "i1", 105);
    assert_eq!(story.lines(), ["8 at 100: resumed p-g-1 c1 after 5, lasted -, 1 attempt, -"]);
}

#[test]
fn a_cleaning_and_a_return_to_service_free_an_instance() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).asks(7, 7, 20).gets(7, "i1", 20).leaves(7, 30);
    story.asks(8, 8, 31).then(35, Change::Cleaned { instance: instance("i1"), images: Vec::new() });
    story.gets(8, "i1", 35).leaves(8, 40);
    // A static host: no launch, no boot, no offering.
    story.asks(9, 9, 50).then(55, Change::ReturnedToService { instance: instance("h1") });
    story.gets(9, "h1", 55).leaves(9, 60);
    assert_eq!(
        story.lines()[1..],
        [
            "8 at 31: freed p-g-1 c1 after 4, lasted 5, 1 attempt, -",
            "9 at 50: freed h1 - after 5, lasted 5, 1 attempt, -",
        ]
    );
}

#[test]
fn attempts_of_one_job_are_one_record_where_the_first_one_is() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10);
    story.asks(1, 7, 20).then(32, Change::Withdrawn { attempt: attempt(1), how: End::GivenBack });
    story.asks(2, 8, 33).gets(2, "i1", 33).ends(2, JobResult::Passed, 35).leaves(2, 36);
    story
        .asks(3, 7, 37)
        .launched(2, 38)
        .ready("i2", 42)
        .gets(3, "i2", 42)
        .ends(3, JobResult::Passed, 50)
        .leaves(3, 51);
    assert_eq!(
        story.lines(),
        [
            "7 at 20: booted p-g-2 c2 after 17, lasted 9, 2 attempt, passed",
            "8 at 33: warm p-g-1 c1 after 0, lasted 3, 1 attempt, passed",
        ]
    );
}

#[test]
fn an_instance_that_the_job_rejected_is_no_wait() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).launched(2, 0).ready("i2", 11);
    story.asks(7, 7, 20).gets(7, "i1", 20);
    story.then(25, Change::Rejected { attempt: attempt(7), message: String::new() });
    story.gets(7, "i2", 25).leaves(7, 30);
    // Before anything is known of the next instance.
    story.asks(8, 8, 40).gets(8, "i2", 40);
    story.then(45, Change::Rejected { attempt: attempt(8), message: String::new() });
    assert_eq!(
        story.lines(),
        [
            "7 at 20: warm p-g-2 c2 after 5, lasted 5, 1 attempt, -",
            "8 at 40: - - - after 0, lasted -, 1 attempt, -",
        ]
    );
    story.gets(8, "h1", 46);
    assert_eq!(story.lines()[1], "8 at 40: warm h1 - after 6, lasted -, 1 attempt, -");
}

#[test]
fn a_name_that_is_used_again_is_the_later_attempt() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).asks(1, 7, 20).gets(1, "i1", 20);
    story.asks(1, 8, 30).gets(1, "i1", 30).leaves(1, 35);
    assert_eq!(story.lines(), ["8 at 30: warm p-g-1 c1 after 0, lasted 5, 1 attempt, -"]);
}

#[test]
fn a_period_has_the_jobs_that_were_there_at_any_moment_of_it() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).asks(7, 7, 20).gets(7, "i1", 20).leaves(7, 30);
    story.asks(8, 8, 40).gets(8, "i1", 40);
    let jobs = |since: i64, until: i64| -> Vec<u64> {
        let wall = |second: i64| NOW.wall_ms + second * 1000;
        let period = Period { since_ms: wall(since), until_ms: wall(until) };
        story.told(period, [0, 0]).1.iter().map(|job| job.job.id).collect()
    };
    for ((since, until), expected) in [
        ((0, 19), &[][..]),
        ((0, 20), &[7]),
        ((22, 23), &[7]),
        ((30, 39), &[7]),
        ((31, 39), &[]),
        ((30, 40), &[7, 8]),
        ((500, 600), &[8]),
    ] {
        assert_eq!(jobs(since, until), expected, "{since} to {until}");
    }
}

#[test]
fn an_attempt_without_an_end_is_open_only_if_the_pool_still_knows_it() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).asks(7, 7, 20).gets(7, "i1", 20).asks(8, 8, 21).asks(9, 9, 22);
    let state = world("held 5m by 7; waits 8").state;
    let mut collector = Collector::new(Period::ALL);
    collector.add(story.part(0, story.0.len()));
    let jobs: Vec<_> = collector.finish(&state).iter().map(|job| (job.job.id, job.phase)).collect();
    assert_eq!(jobs, [(7, JobPhase::Running), (8, JobPhase::Waiting), (9, JobPhase::Ended)]);
}

#[test]
fn an_index_has_no_images_and_forgets_instances_that_are_gone() {
    let mut story = Story::default();
    story.launched(1, 0).ready("i1", 10).asks(7, 7, 20).gets(7, "i1", 20).leaves(7, 30);
    story.then(40, Change::Forgotten { instance: instance("i1") });
    let index = |from| serde_json::to_string(&story.part(from, story.0.len())).expect("it is text");
    assert!(!index(0).contains("ruby"), "{}", index(0));
    assert!(!index(0).contains("\"gone\"") && !index(0).contains("\"instances\""), "{}", index(0));
    assert!(index(1).contains("\"gone\":[\"p-g-1\"]"), "{}", index(1));
}
