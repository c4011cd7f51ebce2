//! On a user's machine hosts serve jobs as they do elsewhere.

use greenroom_testkit::program::on_a_users_machine;

#[test]
fn a_host_serves_a_job_where_a_users_settings_apply() {
    on_a_users_machine(&["clean::a_job_runs_on_a_host_and_leaves_neither_files_nor_processes_there"]);
}
