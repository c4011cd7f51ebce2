//! The runner's service stops while a job runs on a virtual machine.

use crate::images;
use crate::support_service::a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours;

#[test]
fn a_graceful_stop_waits_for_the_job_and_its_machine_and_the_idle_one_lives_on() {
    let images = images::folder().display();
    let provider = format!("kind = 'qemu'\nmemory = '256M'\nimages = '{images}'");
    a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours(&provider);
}
