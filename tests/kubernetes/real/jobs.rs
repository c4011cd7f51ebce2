//! Ten whole jobs in pods of a real cluster.

use serde_json::json;

use super::Namespace;
use super::site::{MARK, MARKS, Site, marking};
use crate::support::job::Job;
use crate::support::record::Outcome;

/// The first job boots its pod, and the others find idle ones. A script that fails leaves no mark, which proves that the mark
/// can be missing.
#[test]
fn ten_jobs_run_in_pods_of_their_own_and_leave_nothing() {
    let Some(namespace) = Namespace::open() else { return };
    let site = Site::open(namespace, &json!({}), |setting| setting.pool("idle_count", 1));
    let runner = site.runner();
    for ids in [[1, 2], [3, 4], [5, 6]] {
        let jobs = ids.map(|id| runner.start(&Job::new(id).script(marking(id))));
        for (job, id) in jobs.into_iter().zip(ids) {
            job.finish().expect_outcome(&Outcome::Success);
            assert_eq!(site.mark(id).as_deref(), Some(MARK));
        }
    }
    let failing = [vec!["sh -c 'exit 9'".to_owned()], marking(7)].concat();
    site.run(&Job::new(7).script(failing)).expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
    assert_eq!(site.mark(7), None);

    let after = site.run(&Job::new(8).script(["false"]).after_script([format!("echo after >{MARKS}/job-8")]));
    after.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
    assert_eq!(site.mark(8).as_deref(), Some("after"));

    let long = site.run(&Job::new(9).script(["seq 200000", "echo the end >&2"]));
    let output = long.expect_outcome(&Outcome::Success).call("build_script").stdout_text();
    let numbers = (1..=200_000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join("\n");
    assert!(output.contains(&numbers), "{}", long.describe());

    let text = "two\nlines, \"quotes\" and 'more'";
    let file = site.run(&Job::new(10).file("SETTINGS", text).script(["cat \"$SETTINGS\"", "hostname"]));
    let output = file.expect_outcome(&Outcome::Success).call("build_script").stdout_text();
    assert!(output.contains(text), "{}", file.describe());
    let grants = site.grants();
    assert!(output.contains(grants.last().expect("a grant").1.as_str()), "{grants:?}: {output}");

    let pods: std::collections::BTreeSet<_> = grants.iter().map(|(_, instance)| instance).collect();
    assert_eq!((grants.len(), pods.len()), (10, 10), "a pod for each job: {grants:?}");
    site.wait_until_calm(1);
    site.expect_nothing_left();
}
