//! An instance's life until it is idle, as events.

use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{Generation, InstanceId};
use greenroom_core::instance::Answer;
use greenroom_core::time::Stamp;

/// Launched, reached and ready at the same moment, for any number of jobs, one at a time.
pub(crate) fn booted(
    instance: &InstanceId,
    (generation, number): (&Generation, u32),
    endpoint: Endpoint,
    now: Stamp,
) -> [Event; 4] {
    let launched = Change::LaunchIntended {
        instance: instance.clone(),
        generation: generation.clone(),
        number,
        attempt: 1,
        capacity: 1,
        uses_left: None,
        offering: None,
        location: None,
        lifetime: None,
        ordered: None,
    };
    let answer = Answer::Accepted { at: now };
    let answered = Change::LaunchAnswered { instance: instance.clone(), attempt: 1, answer };
    let reached = Change::Reached { instance: instance.clone(), endpoint };
    let became = Change::BecameReady { instance: instance.clone() };
    [launched, answered, reached, became].map(|change| change.at(now))
}
