//! Services under a real systemd: the runner's, which stops in the middle of a job, and the units of the package.

#[path = "support/units.rs"]
mod package_units;
#[path = "support/service.rs"]
mod service;
#[path = "service/units.rs"]
mod units;

#[test]
fn a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours() {
    service::a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours("kind = 'local'\nallow_root = true");
}
