//! Images for several architectures, and for others than the machine's.

use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::pool::{job, run_all, setting};
use crate::site::site;

fn platform(name: &str) -> Value {
    json!({"docker": {"platform": name, "user": ""}, "kubernetes": {"user": ""}})
}

/// The programs in all of them are this machine's, so that each one runs.
#[test]
pub fn an_image_is_for_the_machine_or_for_the_platform_that_the_job_names() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let failed = Outcome::ScriptFailure { exit_code: 1 };
    let cases = [
        ("multi:1", "", &Outcome::Success, "amd64"),
        ("multi:1", "linux/arm64", &Outcome::Success, "arm64"),
        ("arm:1", "arm64", &Outcome::Success, "none"),
        ("arm:1", "", &failed, "is for arm64, but the instance is amd64"),
        ("arm:1", "linux/amd64", &failed, "is for arm64, but `platform` is `linux/amd64`"),
        ("ash:1", "linux/arm64/v8", &failed, "is for amd64, but `platform` is `linux/arm64/v8`"),
    ];
    let jobs = cases.iter().zip(1..).map(|((image, named, ..), id)| {
        job(id, image)
            .image_option("executor_opts", platform(named))
            .script(["echo \"built for $(cat /etc/built-for || echo none)\""])
    });
    for ((image, named, outcome, said), result) in cases.iter().zip(run_all(&place, jobs)) {
        assert_eq!(result.outcome, **outcome, "{image} {named}: {}", result.describe());
        let said =
            if result.outcome == Outcome::Success { format!("built for {said}") } else { (*said).to_owned() };
        assert!(result.log_text().contains(&said), "{image} {named}: {said}: {}", result.describe());
    }
    place.expect_sound();
}

/// All jobs run on one machine: an image that is there for another platform is no reason not to pull.
#[test]
pub fn an_image_of_another_platform_that_is_there_is_pulled_for_this_one() {
    let Some(site) = site() else { return };
    let place = setting(site).pool("max_instances", 1).pool("max_use_count", 4).open();
    let jobs = [("linux/arm64", "arm64"), ("", "amd64"), ("linux/arm64", "arm64")];
    for (id, (named, built)) in (1..).zip(jobs) {
        let job = job(id, "multi:1")
            .image_option("executor_opts", platform(named))
            .image_option("pull_policy", json!(["if-not-present"]))
            .script(["echo \"built for $(cat /etc/built-for)\""]);
        let result = place.run(&job);
        result.expect_outcome(&Outcome::Success);
        assert!(result.log_text().contains(&format!("built for {built}")), "{}", result.describe());
    }
    let mut instances: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    instances.dedup();
    assert_eq!(instances.len(), 1, "they shared a machine");
    place.expect_sound();
}
