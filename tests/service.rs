//! The runner's service stops: the effects on the job, the keeper and instances.

#[path = "support/program.rs"]
mod program;
#[path = "support/service.rs"]
mod service;
#[path = "support/settled.rs"]
mod settled;
#[path = "support/skipped.rs"]
mod skipped;
#[path = "support/systemd.rs"]
mod systemd;

#[test]
fn a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours() {
    service::a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours("kind = 'local'\nallow_root = true");
}
