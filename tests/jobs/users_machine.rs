//! On a user's machine jobs run as they do elsewhere.

use greenroom_testkit::program::on_a_users_machine;

#[test]
fn a_job_passes_where_a_runner_is_installed_and_a_users_settings_apply() {
    on_a_users_machine(&[
        "pass::a_job_clones_its_sources_and_passes",
        "pass::a_script_that_fails_with_42_reports_42_and_its_after_script_runs",
    ]);
}
