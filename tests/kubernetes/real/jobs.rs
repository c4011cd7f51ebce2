//! Ten whole jobs in pods of a real cluster: five by the pods' addresses, and five through the API server.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use super::Namespace;
use super::site::{ADDRESS, FORWARD_SERVED, MARK, MARKS, Site, Way, marking};

#[test]
fn five_jobs_run_in_pods_of_their_own_by_their_addresses_and_leave_nothing() {
    let Some(namespace) = Namespace::open() else { return };
    five_jobs(ADDRESS, namespace);
}

/// The image of these pods has a shell, and no server.
#[test]
fn five_jobs_run_in_plain_pods_through_the_api_server_and_leave_nothing() {
    let Some(namespace) = Namespace::open() else { return };
    five_jobs(FORWARD_SERVED, namespace);
}

/// The first job boots its pod, and the others find idle ones. A script that fails leaves no mark, which proves that the mark
/// can be missing.
#[track_caller]
fn five_jobs(way: Way, namespace: Namespace) {
    let site = Site::by(way, namespace, &json!({}), |setting| setting.pool("idle_count", 1));
    let runner = site.runner();
    let jobs = [1, 2].map(|id| (id, runner.start(&Job::new(id).script(marking(id)))));
    for (id, job) in jobs {
        job.finish().expect_outcome(&Outcome::Success);
        assert_eq!(site.mark(id).as_deref(), Some(MARK));
    }
    let failing = [vec!["sh -c 'exit 9'".to_owned()], marking(3)].concat();
    site.run(&Job::new(3).script(failing)).expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
    assert_eq!(site.mark(3), None);

    let after = site.run(&Job::new(4).script(["false"]).after_script([format!("echo after >{MARKS}/job-4")]));
    after.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
    assert_eq!(site.mark(4).as_deref(), Some("after"));

    let text = "two\nlines, \"quotes\" and 'more'";
    let script = ["cat \"$SETTINGS\"", "hostname", "seq 200000", "echo the end >&2"];
    let last = site.run(&Job::new(5).file("SETTINGS", text).script(script));
    let output = last.expect_outcome(&Outcome::Success).call("build_script").stdout_text();
    let numbers = (1..=200_000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join("\n");
    assert!(output.contains(text) && output.contains(&numbers), "{}", last.describe());
    let grants = site.grants();
    assert!(output.contains(grants.last().expect("a grant").1.as_str()), "{grants:?}");

    let pods: std::collections::BTreeSet<_> = grants.iter().map(|(_, instance)| instance).collect();
    assert_eq!((grants.len(), pods.len()), (5, 5), "a pod for each job: {grants:?}");
    site.wait_until_calm(1);
    site.expect_nothing_left();
    let forwards = site.namespace.calls().iter().filter(|call| call.ends_with(" pods/portforward")).count();
    assert_eq!(forwards > 0, way.via == "port-forward", "{way:?}: {forwards} port-forwards");
}
