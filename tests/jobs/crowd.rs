//! Many concurrent jobs on few instances.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::setting::Setting;
use crate::support::job::Job;
use crate::support::record::Outcome;

/// The last of them waits for all the others, possibly on a busy machine.
const PATIENCE: Duration = Duration::from_mins(5);

/// A hundred concurrent jobs request twenty instances: all are served, never two on one, in the order of their
/// requests.
#[test]
fn a_hundred_jobs_share_twenty_instances_and_each_has_one_to_itself() {
    let mut setting = Setting::new().pool("max_instances", 20).pool("max_launching", 20);
    setting.patience = PATIENCE;
    let place = setting.open();
    let runner = place.runner();
    let handles: Vec<_> = (1..=100).map(|id| runner.start(&Job::new(id).script(["sleep 0.1"]))).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    let mut served: BTreeMap<String, u32> = BTreeMap::new();
    // The replay checks every moment: never two on one instance, never more than twenty. This test checks: first come,
    // first served, and every job once.
    place.replay(|state, attempt| {
        let ticket = state.waiting_for(attempt).expect("it waits until it is granted").ticket;
        assert!(state.waiting.keys().all(|waiting| *waiting >= ticket), "{attempt} jumped the queue");
        *served.entry(attempt.to_string()).or_default() += 1;
    });
    assert_eq!(served.values().sum::<u32>(), 100);
    assert!(served.values().all(|grants| *grants == 1), "one grant for each job");
    place.wait_until_settled(0);
    place.expect_sound();
}
