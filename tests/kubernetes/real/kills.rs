//! Jobs in pods while parts of the cluster and of Greenroom are killed at seeded moments.
//!
//! `GREENROOM_JOBS` and `GREENROOM_KILLS` set the numbers, `GREENROOM_SEED` replays the kills.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_testkit::dice::{Dice, number};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use super::Namespace;
use super::site::{ADDRESS, FORWARD_SERVED, MARK, PATIENCE, Site, Way, marking};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    /// A program of the node; the cluster's first process starts it again.
    Program(&'static str),
    Ours(Kind),
}

const VICTIMS: [Victim; 5] = [
    Victim::Program("kubelet"),
    Victim::Program("containerd"),
    Victim::Program("apiserver"),
    Victim::Ours(Kind::Keeper),
    Victim::Ours(Kind::Link),
];

/// Kills one; false if none lives now.
fn kill(site: &Site, victim: Victim) -> bool {
    match victim {
        Victim::Program(name) => {
            let line = format!("kill -9 $(cat /mnt/own/pids/{name}) && echo killed || :");
            site.namespace.cluster.on_node(&line).contains("killed")
        }
        Victim::Ours(kind) => site.of_kind(kind).first().is_some_and(Process::kill9_as_found),
    }
}

#[test]
fn no_job_is_green_whose_script_did_not_end_whatever_is_killed() {
    let jobs = number("GREENROOM_JOBS", 10);
    let green = no_job_is_green_too_early(ADDRESS, jobs, jobs);
    assert!(green.is_none_or(|green| green * 2 > jobs), "{green:?} of {jobs} jobs succeeded");
}

/// Most of these kills end all jobs that run.
#[test]
fn no_job_through_the_api_server_is_green_whose_script_did_not_end_whatever_is_killed() {
    let jobs = number("GREENROOM_JOBS", 10).div_ceil(2);
    let green = no_job_is_green_too_early(FORWARD_SERVED, jobs, jobs.div_ceil(2));
    assert!(green.is_none_or(|green| green > 0), "{green:?} of {jobs} jobs succeeded");
}

/// A green job always has the mark of its script's end. A script is never blamed, and nothing is left. Returns the number of
/// green jobs; `None`: there can be no cluster here.
#[track_caller]
fn no_job_is_green_too_early(way: Way, jobs: u64, kills: u64) -> Option<u64> {
    let namespace = Namespace::open_alone()?;
    let site = Site::by(way, namespace, &json!({}), |setting| setting.pool("idle_count", 1));
    let (seed, kills) = (number("GREENROOM_SEED", 1), number("GREENROOM_KILLS", kills));
    let replay = format!(
        "replay: GREENROOM_SEED={seed} GREENROOM_JOBS={} GREENROOM_KILLS={kills} cargo test --features kubernetes --test \
         kubernetes whatever_is_killed ({way:?})",
        number("GREENROOM_JOBS", 10)
    );
    eprintln!("{replay}");
    let mut dice = Dice::new(seed);
    let runner = site.runner();
    let mut victims = BTreeMap::<Victim, u64>::new();
    let (mut killed, mut green, mut turn) = (0, 0, 0);
    for first in (1..=jobs).step_by(2) {
        let pair = first..=(first + 1).min(jobs);
        let running: Vec<_> =
            pair.clone().map(|id| (id, runner.start(&Job::new(id).script(marking(id))))).collect();
        while killed < kills * pair.end() / jobs {
            std::thread::sleep(Duration::from_millis(dice.below(3000)));
            // Each kind in turn, so that a small number has all of them; the moment is drawn.
            let mut next = VICTIMS.iter().cycle().skip(turn % VICTIMS.len());
            let victim = wait_for("something to kill", PATIENCE, || {
                next.next().copied().filter(|victim| kill(&site, *victim))
            });
            *victims.entry(victim).or_default() += 1;
            killed += 1;
            turn += 1;
        }
        for (id, job) in running {
            let result = job.finish();
            let blamed = matches!(result.outcome, Outcome::ScriptFailure { .. });
            assert!(!blamed, "{replay}\n{}\n{}", result.describe(), site.log());
            if result.outcome == Outcome::Success {
                assert_eq!(site.mark(id).as_deref(), Some(MARK), "{replay}\n{}", result.describe());
                green += 1;
            }
        }
    }
    eprintln!("killed {killed}: {victims:?} over {jobs} jobs, {green} of them green");
    let reads = || (super::kubectl(&["get", "--raw", "/readyz"], None) == "ok").then_some(());
    wait_for("the API server", PATIENCE, reads);
    site.reap();
    site.run(&Job::new(jobs + 1).script(marking(jobs + 1))).expect_outcome(&Outcome::Success);
    assert_eq!(site.mark(jobs + 1).as_deref(), Some(MARK));
    site.wait_until_calm(1);
    site.expect_nothing_left();
    Some(green)
}
