//! Laws of instances that jobs have ordered, for any world.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::laws::{could_serve, is_claimed, launched, planned};
use super::random::a_world_with_orders;
use crate::event::Change;
use crate::failure::ErrorClass;
use crate::instance::{Answer, Instance, Phase};
use crate::invariants::check;
use crate::notation::{NOW, failure, world};
use crate::plan::Effect;
use crate::pool::LaunchHealth;
use crate::reservation::Reservation;

/// True if this is what the job asks for, by the test's own reading.
fn is_its_kind(instance: &Instance, job: &Reservation) -> bool {
    let own = instance.ordered.as_ref().map(|ordered| &ordered.attempt);
    own == job.job.order.as_ref().map(|_| &job.attempt)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_job_gets_its_own_kind_and_none_waits_beside_it(line in a_world_with_orders()) {
        let (before, plan, after) = planned(&line);
        prop_assert_eq!(check(&before.state), vec![]);
        prop_assert_eq!(check(&after.state), vec![]);
        let mut at = before.clone();
        for event in &plan.events {
            if let Change::Granted { attempt, instance } = &event.change {
                let job = at.state.waiting_for(attempt).expect("it waits").clone();
                let instance = at.state.instance(instance).expect("it is recorded");
                prop_assert!(is_its_kind(instance, &job), "{attempt} on {}", instance.id);
            }
            at.carry(std::slice::from_ref(event));
        }
        for job in after.state.waiting.values().filter(|_| after.state.drained.is_none()) {
            for instance in after.state.instances.values().filter(|i| is_its_kind(i, job)) {
                prop_assert!(!could_serve(&after, instance, job), "{} could serve {}", instance.id, job.attempt);
            }
        }
    }

    #[test]
    fn what_no_job_needs_ends_and_no_order_has_two_instances(line in a_world_with_orders()) {
        let (before, _, after) = planned(&line);
        let mut served = BTreeSet::new();
        for instance in after.state.instances.values().filter(|i| !matches!(i.phase, Phase::Draining { .. })) {
            let Some(ordered) = &instance.ordered else { continue };
            prop_assert!(served.insert(ordered.attempt.clone()), "{} has two", ordered.attempt);
            let needed = after.state.waiting_for(&ordered.attempt).is_some_and(|job| job.refused.is_none());
            let in_use = !instance.holders.is_empty() || is_claimed(&before, instance);
            prop_assert!(needed || in_use, "{} is kept", instance.id);
        }
    }

    #[test]
    fn no_answer_to_an_order_touches_the_pool(line in a_world_with_orders(), which in 0..7_usize) {
        let (_, _, after) = planned(&line);
        let classes = [
            None,
            Some(ErrorClass::Order { by_job: true }),
            Some(ErrorClass::NoCapacity { scope: "zone".to_owned() }),
            Some(ErrorClass::Quota),
            Some(ErrorClass::Denied),
            Some(ErrorClass::Transient),
            Some(ErrorClass::Throttled { until: None }),
        ];
        for instance in after.state.instances.values().filter(|i| i.ordered.is_some()) {
            let Some(launch) = instance.launch.as_ref().filter(|l| l.answer == Answer::Pending) else { continue };
            let answer = classes[which].clone().map_or(Answer::Accepted { at: NOW }, |class| {
                Answer::Refused { at: NOW, failure: failure(class) }
            });
            let mut told = after.clone();
            told.tell(NOW, Change::LaunchAnswered { instance: instance.id.clone(), attempt: launch.attempt, answer });
            prop_assert_eq!(&told.state.availability, &after.state.availability);
            let own = LaunchHealth { recent_ordered: Vec::new(), ..told.state.launches.clone() };
            let pools = LaunchHealth { recent_ordered: Vec::new(), ..after.state.launches.clone() };
            prop_assert_eq!(own, pools);
            prop_assert_eq!(check(&told.state), vec![]);
        }
    }

    #[test]
    fn orders_take_at_most_half_of_what_may_launch(line in a_world_with_orders()) {
        let (before, plan, after) = planned(&line);
        let ordered = |world: &crate::notation::World| {
            let boots = |i: &&std::sync::Arc<Instance>| {
                matches!(i.phase, Phase::Launching | Phase::Checking) && !i.is_refused() && i.ordered.is_some()
            };
            world.state.instances.values().filter(boots).count()
        };
        let intended = |e: &&crate::event::Event| matches!(&e.change, Change::LaunchIntended { ordered: Some(_), .. });
        if plan.events.iter().any(|e| intended(&e)) {
            let half = (before.policy.max_launching as usize / 2).max(1);
            prop_assert!(ordered(&after) <= half, "{} of {half}", ordered(&after));
        }
    }

    #[test]
    fn orders_exceed_no_limit_and_no_effect_comes_twice(line in a_world_with_orders()) {
        let (before, plan, after) = planned(&line);
        let made = |i: &&std::sync::Arc<Instance>| !i.is_refused();
        let count = after.state.instances.values().filter(made).count();
        prop_assert!(launched(&plan) == 0 || count <= before.policy.max_instances as usize);
        let unique: BTreeSet<&Effect> = plan.effects.iter().collect();
        prop_assert_eq!(unique.len(), plan.effects.len(), "an effect twice");
        prop_assert_eq!(world(&line).plan(), plan);
    }
}
