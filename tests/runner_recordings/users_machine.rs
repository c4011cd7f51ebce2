//! On a user's machine the harness plays what it plays elsewhere.

use greenroom_testkit::program::on_a_users_machine;

#[test]
fn recordings_hold_where_a_runner_is_installed_and_a_users_settings_apply() {
    on_a_users_machine(&[
        "by_hand::a_runner_in_its_own_process_is_the_parent_of_the_calls_and_takes_orders",
        "contract::a_cache_that_cannot_be_saved_fails_the_job_but_not_its_artifacts",
        "contract::a_cancel_before_the_script_ends_the_whole_job_and_one_after_it_nothing",
        "contract::a_failed_after_script_counts_only_where_the_job_says_so",
        "contract::all_stages_come_in_the_order_of_the_runner",
        "contract::the_first_failed_step_ends_the_steps",
        "contract::the_script_sees_the_sources_and_all_kinds_of_variables",
        "facts::every_call_gets_the_recorded_environment_and_nothing_else",
        "facts::every_call_starts_as_recorded",
        "scenarios::a_job_with_sources_cache_and_artifacts_succeeds",
        "scenarios::a_script_that_fails_with_42_reports_42",
    ]);
}
