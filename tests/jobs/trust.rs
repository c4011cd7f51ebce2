//! The jobs that may follow one another on an instance.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::event::Change;
use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// Instances that serve any number of jobs.
fn reusing() -> Setting {
    Setting::new().pool("max_use_count", 0).pool("max_instances", 4)
}

fn of(project: &str, id: u64) -> Job {
    let number = project.bytes().map(u64::from).sum();
    Job::new(id).project(number, project)
}

/// Plays them one after the other; a slot is free before the next request.
fn one_by_one(place: &Place, jobs: &[(u64, &str)]) {
    for (id, project) in jobs {
        place.run(&of(project, *id)).expect_outcome(&Outcome::Success);
        place.wait_until_quiet();
    }
}

/// The projects whose jobs each instance served; with an asterisk, those whose refs were protected.
fn served(place: &Place) -> Vec<BTreeSet<String>> {
    let mut projects = BTreeMap::new();
    let mut served: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for event in place.events() {
        match event.change {
            Change::Requested { attempt, job, .. } => {
                let protected = if job.protected { "*" } else { "" };
                projects.insert(attempt, format!("{}{protected}", job.project));
            }
            Change::Granted { attempt, instance } => {
                served.entry(instance).or_default().insert(projects[&attempt].clone());
            }
            _ => {}
        }
    }
    served.into_values().collect()
}

#[test]
fn by_default_only_jobs_of_the_same_project_follow_one_another() {
    let place = reusing().open();
    one_by_one(&place, &[(1, "g/a"), (2, "g/b"), (3, "g/a"), (4, "h/a"), (5, "g/b"), (6, "g/a")]);
    let used: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    assert_eq!(
        (&used[0], &used[0]),
        (&used[2], &used[5]),
        "the same project has its instance again: {used:?}"
    );
    assert_eq!(used[1], used[4], "{used:?}");
    let served = served(&place);
    assert_eq!(served.len(), 3, "{served:?}");
    assert!(served.iter().all(|projects| projects.len() == 1), "{served:?}");
    place.expect_sound();
}

#[test]
fn jobs_of_two_projects_at_once_never_share_an_instance_with_room_for_both() {
    let place = reusing().pool("capacity_per_instance", 4).open();
    let runner = place.runner();
    let jobs = (1..=8).map(|id| of(if id % 2 == 0 { "g/a" } else { "g/b" }, id).script(["sleep 0.2"]));
    let handles: Vec<_> = jobs.map(|job| runner.start(&job)).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    let served = served(&place);
    assert!(served.len() >= 2 && served.iter().all(|projects| projects.len() == 1), "{served:?}");
    place.expect_sound();
}

#[test]
fn the_operator_may_let_a_group_or_anybody_share() {
    let jobs = [(1, "g/a"), (2, "g/b"), (3, "h/a"), (4, "h/b"), (5, "g/a")];
    for (reuse, instances) in [("namespace", 2), ("any", 1)] {
        let place = reusing().pool("reuse", reuse).open();
        one_by_one(&place, &jobs);
        assert_eq!(served(&place).len(), instances, "{reuse}: {:?}", served(&place));
        place.expect_sound();
    }
}

#[test]
fn an_idle_instance_of_strangers_makes_room_at_the_limit() {
    let place = reusing().pool("max_instances", 1).open();
    one_by_one(&place, &[(1, "g/a"), (2, "g/b"), (3, "g/b")]);
    let used: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    assert!(used[0] != used[1] && used[1] == used[2], "{used:?}");
    assert!(served(&place).iter().all(|projects| projects.len() == 1));
    place.expect_sound();
}

#[test]
fn jobs_of_protected_refs_follow_only_one_another_unless_anybody_may_share() {
    // GitLab says so of each ref; an older one says nothing.
    let jobs = [
        (1, "g/a", Some(true)),
        (2, "g/a", Some(false)),
        (3, "g/b", Some(true)),
        (4, "g/a", None),
        (5, "g/a", Some(true)),
        (6, "g/b", Some(false)),
    ];
    for (reuse, each) in [
        ("project", vec!["g/a", "g/a*", "g/b", "g/b*"]),
        ("namespace", vec!["g/a g/b", "g/a* g/b*"]),
        ("any", vec!["g/a g/a* g/b g/b*"]),
    ] {
        let place = reusing().pool("reuse", reuse).open();
        for (id, project, protected) in jobs {
            let job = Job { protected, ..of(project, id) };
            place.run(&job).expect_outcome(&Outcome::Success);
            place.wait_until_quiet();
        }
        let mut served: Vec<String> =
            served(&place).iter().map(|all| all.iter().cloned().collect::<Vec<_>>().join(" ")).collect();
        served.sort();
        assert_eq!(served, each, "{reuse}");
        place.expect_sound();
    }
}

#[test]
fn a_job_of_a_protected_ref_waits_beside_a_free_slot_of_an_unprotected_one() {
    let place = reusing().pool("capacity_per_instance", 4).open();
    let runner = place.runner();
    let jobs = (1..=6).map(|id| Job { protected: Some(id % 2 == 0), ..of("g/a", id).script(["sleep 0.2"]) });
    let handles: Vec<_> = jobs.map(|job| runner.start(&job)).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    let served = served(&place);
    assert!(served.len() >= 2 && served.iter().all(|kinds| kinds.len() == 1), "{served:?}");
    place.expect_sound();
}

#[test]
fn an_operator_unbinds_static_hosts_and_nothing_else() {
    let place = reusing().open();
    one_by_one(&place, &[(1, "g/a")]);
    let (_, instance) = place.grants().remove(0);
    for (instance, words) in [
        (instance.as_str(), "is not a static host: it stays with its trust domain"),
        ("b", "has no instance `b`"),
    ] {
        let refused = place.greenroom(&["pool", "resume", "--instance", instance, "--unbind"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(words), "{said}");
    }
    let refused = place.greenroom(&["pool", "resume", "--unbind"]);
    assert!(!refused.status.success(), "which host?");
    place.expect_sound();
}
