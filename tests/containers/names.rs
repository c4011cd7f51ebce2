//! Names of images that variables complete.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::pool::setting;
use crate::site::{HOST, site};

#[test]
fn the_image_of_a_job_may_have_variables_in_its_name() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = Job::new(1)
        .variable("REGISTRY", format!("{HOST}:5000"))
        .variable("VERSION", "3.3")
        .image("$REGISTRY/library/ruby:${VERSION}")
        .script(["ruby -v", "echo \"in $CI_JOB_IMAGE\""]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for line in ["ruby 3.3.0", "in registry.test:5000/library/ruby:3.3"] {
        assert!(log.lines().any(|said| said == line), "`{line}` in {}", result.describe());
    }
    place.expect_sound();
}
