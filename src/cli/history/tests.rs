//! The whole output for operators.

use greenroom_core::attempt::End;
use greenroom_core::event::Change;
use greenroom_core::history::{Collector, Part, PartBuilder, Period};
use greenroom_core::job_end::{JobEnd, JobResult};
use greenroom_core::policy::Policy;
use serde_json::json;

use super::view::{HistoryView, JobRow, text};
use crate::cli::fixture::{EventFixture, at, attempt, id, pool, when};

/// A warm job that passes, one that boots and fails, one that is given up, one that runs and one that waits.
fn night() -> EventFixture {
    let mut story = EventFixture::of(Policy { max_instances: 4, max_use_count: None, ..Policy::default() });
    story.offerings(&["us-east1-b spot"]);
    story.ready(1, 10.0);
    story.asks("a", 4711, "acme/shop", 100.0).gets("a", 1, 100.0);
    ends(&mut story, "a", 160.0, JobEnd::new(JobResult::Passed, ""));
    story.asks("b", 4712, "acme/a-project-with-a-long-name", 200.0);
    story.ready(2, 200.0);
    story.gets("b", 2, 224.7);
    ends(&mut story, "b", 300.0, JobEnd::new(JobResult::Failed, "`build_script` exited with status 7"));
    story.asks("c", 4713, "acme/shop", 310.0);
    let why = JobEnd::new(JobResult::SystemFailed, "no instance within 10 s (`acquire_timeout`)");
    story.then(320.0, Change::JobEnded { attempt: attempt("c"), end: why });
    story.then(320.0, Change::Withdrawn { attempt: attempt("c"), how: End::GivenBack });
    story.then(330.0, Change::CleaningBegun { instance: id(1) });
    story.asks("d", 4714, "acme/shop", 350.0);
    story.then(360.0, Change::Cleaned { instance: id(1), images: Vec::new() });
    story.gets("d", 1, 360.0);
    story.asks("e", 4715, "acme/shop", 370.0);
    story
}

fn ends(story: &mut EventFixture, name: &str, seconds: f64, end: JobEnd) {
    story.then(seconds, Change::JobEnded { attempt: attempt(name), end });
    story.leaves(name, End::CleanedUp, seconds);
}

fn view(story: &EventFixture, since: f64, until: f64) -> HistoryView {
    let mut part = PartBuilder::default();
    story.events.iter().for_each(|event| part.take(event));
    let mut collector = Collector::new(Period { since_ms: at(since).wall_ms, until_ms: at(until).wall_ms });
    collector.add(part.finish());
    let begins = collector.begins();
    let jobs = collector.finish(&story.state).into_iter().map(|job| JobRow::of(job, &pool(), at(440.0)));
    HistoryView {
        at: at(440.0),
        since: Some(at(since)),
        until: at(until),
        history_begins: begins,
        jobs: jobs.collect(),
        left_out: 0,
        unreadable: Vec::new(),
    }
}

#[test]
fn a_night_has_a_row_for_each_job() {
    let shown = text(&view(&night(), 0.0, 440.0), &when(440.0), 120);
    let expected = "\
REQUESTED  JOB   PROJECT                   POOL   WAITED  START   INSTANCE      OFFERING         LASTED  ENDED           BLAME
14:01:40   4711  acme/shop                 linux  0 ms    warm    linux-7f3a-1  us-east1-b spot  1m      passed          -
14:03:20   4712  …roject-with-a-long-name  linux  24.7 s  booted  linux-7f3a-2  us-east1-b spot  1m 15s  failed          job
    `build_script` exited with status 7
14:05:10   4713  acme/shop                 linux  10 s    -       -             -                -       system failure  system
    no instance within 10 s (`acquire_timeout`)
14:05:50   4714  acme/shop                 linux  10 s    freed   linux-7f3a-1  us-east1-b spot  1m 20s  running         -
14:06:10   4715  acme/shop                 linux  1m 10s  -       -             -                -       waiting         -

5 jobs since 14:00:00: 1 failed, 1 passed, 1 running, 1 system failure, 1 waiting; 1 warm, 1 booted, 1 freed; median
  wait 10 s, longest 1m 10s
";
    assert_eq!(shown, expected, "{shown}");
}

#[test]
fn a_period_takes_the_jobs_that_were_there_at_any_moment_of_it() {
    let jobs = |since, until| view(&night(), since, until).jobs.iter().map(|row| row.job).collect::<Vec<_>>();
    assert_eq!(jobs(150.0, 199.0), [4711]);
    assert_eq!(jobs(161.0, 250.0), [4712]);
    assert_eq!(jobs(301.0, 309.0), [] as [u64; 0]);
    assert_eq!(jobs(400.0, 500.0), [4714, 4715]);
}

#[test]
fn a_period_without_jobs_says_since_when_there_is_a_history() {
    let shown = text(&view(&night(), 301.0, 309.0), &when(440.0), 80);
    assert_eq!(shown, "no jobs since 14:05:01 until 14:05:09; events are kept since 14:00:00\n");
}

#[test]
fn scripts_get_every_field() {
    let row = &json!(view(&night(), 0.0, 440.0))["jobs"][1];
    let expected = json!({
        "job": 4712, "server": "https://gitlab.example.com", "project": "acme/a-project-with-a-long-name",
        "name": null, "stage": null, "pipeline": null, "ref": null, "pool": "linux",
        "requested_at": "2026-11-20T13:03:20Z", "attempts": 1, "phase": "ended", "waited_ms": 24_700,
        "start": "booted", "instance": id(2).as_str(), "offering": "us-east1-b spot",
        "granted_at": "2026-11-20T13:03:44Z", "ended_at": "2026-11-20T13:05:00Z", "lasted_ms": 75_300,
        "result": "failed", "blame": "job", "reason": "`build_script` exited with status 7",
    });
    assert_eq!(*row, expected, "{row:#}");
}

#[test]
fn it_does_not_matter_where_the_journal_is_cut() {
    let story = night();
    let told = |cuts: &[usize]| {
        let mut collector = Collector::new(Period::ALL);
        let edges: Vec<usize> = [&[0], cuts, &[story.events.len()]].concat();
        for range in edges.windows(2) {
            let mut part = PartBuilder::default();
            story.events[range[0]..range[1]].iter().for_each(|event| part.take(event));
            let part = part.finish();
            let line = serde_json::to_string(&part).unwrap();
            assert_eq!(serde_json::from_str::<Part>(&line).unwrap(), part, "{line}");
            collector.add(part);
        }
        (collector.begins(), collector.finish(&story.state))
    };
    let whole = told(&[]);
    assert_eq!(whole.1.len(), 5);
    for first in 0..=story.events.len() {
        for second in first..=story.events.len() {
            assert_eq!(told(&[first, second]), whole, "{first} {second}");
        }
    }
}

#[test]
fn attempts_of_one_job_are_one_row_and_a_broken_instance_is_no_wait() {
    let mut story = EventFixture::of(Policy { max_instances: 4, max_use_count: None, ..Policy::default() });
    story.ready(1, 0.0).ready(2, 1.0);
    story.asks("a", 7, "acme/shop", 100.0).gets("a", 1, 100.0);
    story.then(105.0, Change::Rejected { attempt: attempt("a"), message: "no answer".into() });
    story.gets("a", 2, 105.0);
    story.leaves("a", End::GivenBack, 110.0);
    story.asks("b", 7, "acme/shop", 113.0).gets("b", 2, 113.0);
    ends(&mut story, "b", 163.0, JobEnd::new(JobResult::Passed, ""));
    let rows = view(&story, 0.0, 200.0).jobs;
    let row = &json!(rows)[0];
    assert_eq!((rows.len(), &row["attempts"], &row["waited_ms"]), (1, &json!(2), &json!(5_000)), "{row:#}");
    assert_eq!((&row["result"], &row["lasted_ms"]), (&json!("passed"), &json!(50_000)), "{row:#}");
    assert_eq!((&row["instance"], &row["start"]), (&json!("linux-7f3a-2"), &json!("warm")), "{row:#}");
}
