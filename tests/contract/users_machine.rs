//! On a user's machine, adapters work as elsewhere, whatever the account's login shell is.

use greenroom_testkit::program::on_a_users_machine;

#[test]
fn servers_work_where_the_login_shell_is_not_bash() {
    on_a_users_machine(&[
        "connector::guest::busybox_can_be_the_interpreter",
        "connector::guest::a_script_ends_with_its_own_exit_code_in_every_shell",
        "link::shells::a_guest_without_bash_and_pkill_works_on_one_connection",
        "provider::local::ssh::openssh_serves_the_same",
    ]);
}
