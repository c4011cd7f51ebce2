//! Services and virtual machines: the runner's service stops while a job runs on one, and the keeper's unit hangs and stops.

use crate::images;
use crate::package_units::Host;
use crate::support_service::a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours;

#[test]
fn a_graceful_stop_waits_for_the_job_and_its_machine_and_the_idle_one_lives_on() {
    let images = images::folder().display();
    let provider = format!("kind = 'qemu'\nmemory = '256M'\nimages = '{images}'");
    a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours(&provider);
}

#[test]
fn a_machine_of_the_keepers_unit_lives_on_while_the_unit_hangs_and_stops() {
    let images = images::folder().display();
    let provider = format!("kind = 'qemu'\nmemory = '256M'\nimages = '{images}'");
    // The guest sees no file of the host.
    let Some(host) = Host::start(&provider, "sleep 20", None) else { return };
    host.systemctl(&["start", "greenroom"]);
    host.await_idle(1);
    host.serves_a_job_through_a_hang_and_a_stop();
}
