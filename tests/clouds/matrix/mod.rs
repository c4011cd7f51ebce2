//! Every call × each of its faults × every moment at which the keeper may be killed.
//!
//! After each, once the grace is over and a pass has run, the cloud has exactly the recorded instances.

use std::sync::Mutex;
use std::time::Instant;

use crate::cloud::Cloud;

mod case;
mod scene;

use case::Case;
use scene::Scene;

/// Concurrent scenes for each cloud: a case mostly waits.
const SIDE_BY_SIDE: usize = 3;

/// The cases of a cloud, a few at a time.
fn play(cloud: Cloud) {
    let all = std::env::var("GREENROOM_MATRIX").is_ok_and(|which| which == "all");
    let mut cases = if all { Case::all(cloud) } else { Case::pairs(cloud) };
    let (count, begun) = (cases.len(), Instant::now());
    cases.reverse();
    let cases = Mutex::new(cases);
    let next = || cases.lock().expect("nobody fails while it is locked").pop();
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                while let Some(case) = next() {
                    Scene::open(&case).play(&case);
                }
            });
        }
    });
    eprintln!("{}: {count} cases in {:?}", cloud.name(), begun.elapsed());
}

#[test]
fn after_every_fault_and_crash_the_cloud_has_what_we_believe_in_ec2() {
    play(Cloud::Ec2);
}

#[test]
fn after_every_fault_and_crash_the_cloud_has_what_we_believe_in_gce() {
    play(Cloud::Gce);
}
