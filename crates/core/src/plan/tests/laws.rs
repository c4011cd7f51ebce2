//! Laws that every plan obeys, for any world.
//!
//! Judged from outside: the test states in its own terms which jobs an instance can serve.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::settle::{a_world, a_world_with_orders};
use crate::event::Change;
use crate::failure::ErrorClass;
use crate::ids::{AttemptName, InstanceId, Location};
use crate::instance::{Answer, DrainReason, Instance, Phase};
use crate::invariants::check;
use crate::inventory::{Listed, Listing, Status, Suspends};
use crate::job::Reservation;
use crate::notation::{NOW, World, failure, render, world};
use crate::plan::{Effect, Plan};
use crate::policy::Reuse;
use crate::pool::{Grant, LaunchHealth};
use crate::report::WaitingOn;
use crate::time::{BootId, Stamp};

/// A world, its plan, and the world as the plan's events leave it.
pub(super) fn planned(line: &str) -> (World, Plan, World) {
    let before = world(line);
    let plan = before.plan();
    let mut after = before.clone();
    after.carry(&plan.events);
    (before, plan, after)
}

/// Open attempts that name it without being on it.
pub(super) fn is_claimed(world: &World, instance: &Instance) -> bool {
    world.observed.attempts.iter().any(|(name, seen)| {
        seen.closed.is_none()
            && seen.instance.as_ref() == Some(&instance.id)
            && world.state.granted.get(name).is_none_or(|g| g.instance != instance.id)
    })
}

fn is_listed_as(world: &World, id: &InstanceId, status: Status) -> bool {
    world
        .observed
        .listing
        .as_ref()
        .is_ok_and(|l| l.instances.iter().any(|i| i.id == *id && i.status == status))
}

/// True if this job could run there now.
pub(super) fn could_serve(world: &World, instance: &Instance, job: &Reservation) -> bool {
    let is_shown = |listing: &Listing| instance.ready.is_none_or(|ready| listing.begun.reached(ready));
    let is_recent = world.observed.listing.as_ref().is_ok_and(is_shown);
    let rebooting = is_listed_as(world, &instance.id, Status::Starting)
        || (instance.is_static() && is_listed_as(world, &instance.id, Status::Stopping));
    let is_held_back = is_claimed(world, instance) || (rebooting && is_recent && instance.holders.is_empty());
    let of_this_boot = instance.ready.is_some_and(|ready| ready.boot == world.now.boot);
    let has_room = instance.holders.len() < instance.capacity as usize && instance.uses_left != Some(0);
    let has_room = has_room && !instance.must_be_checked();
    let is_trusted = instance.domain.is_none() || instance.domain.as_ref() == Some(&job.domain);
    let has_time = match (world.policy.max_lifetime, instance.ready) {
        (Some(limit), Some(ready)) if !instance.is_static() => {
            world.now.since(ready) + job.job.timeout <= limit.0
        }
        _ => true,
    };
    instance.phase == Phase::Ready && !is_held_back && of_this_boot && has_room && is_trusted && has_time
}

/// Instances with a job, before and after the plan, or named by an open attempt.
fn in_use(before: &World, after: &World) -> BTreeSet<InstanceId> {
    let held = |i: &Instance| i.holders.values().any(|h| h.closing.is_none());
    let still = |i: &Instance| after.state.instance(&i.id).is_some_and(held);
    let instances = before.state.instances.values();
    instances.filter(|i| (held(i) && still(i)) || is_claimed(before, i)).map(|i| i.id.clone()).collect()
}

fn changed(plan: &Plan, matches: impl Fn(&Change) -> Option<&InstanceId>) -> BTreeSet<InstanceId> {
    plan.events.iter().filter_map(|e| matches(&e.change)).cloned().collect()
}

pub(super) fn launched(plan: &Plan) -> usize {
    plan.events.iter().filter(|e| matches!(e.change, Change::LaunchIntended { .. })).count()
}

fn forgotten(plan: &Plan) -> BTreeSet<InstanceId> {
    changed(plan, |c| if let Change::Forgotten { instance } = c { Some(instance) } else { None })
}

fn drained(plan: &Plan, which: impl Fn(&DrainReason) -> bool) -> BTreeSet<InstanceId> {
    changed(plan, |c| {
        if let Change::DrainingBegun { instance, reason: why } = c {
            which(why).then_some(instance)
        } else {
            None
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_fits_the_state_breaks_no_law_and_is_the_same_each_time(line in a_world()) {
        let (before, plan, after) = planned(&line);
        prop_assert_eq!(check(&after.state), vec![]);
        prop_assert_eq!(before.plan(), plan);
    }

    #[test]
    fn no_job_waits_while_an_instance_could_serve_it(line in a_world()) {
        let (_, _, after) = planned(&line);
        if after.state.drained.is_some() {
            return Ok(());
        }
        for job in after.state.waiting.values() {
            for instance in after.state.instances.values() {
                prop_assert!(!could_serve(&after, instance, job), "{} could serve {}", instance.id, job.attempt);
            }
        }
    }

    #[test]
    fn a_job_is_granted_only_what_could_serve_it_and_never_before_an_earlier_equal(line in a_world()) {
        let (before, plan, _) = planned(&line);
        let mut at = before.clone();
        for event in &plan.events {
            if let Change::Granted { attempt, instance } = &event.change {
                let job = at.state.waiting_for(attempt).expect("it waits").clone();
                let instance = at.state.instance(instance).expect("it is recorded");
                prop_assert!(could_serve(&at, instance, &job), "{attempt} on {}", instance.id);
                let passed_over = at.state.waiting.values().find(|other| {
                    other.ticket < job.ticket && other.domain == job.domain && other.job.timeout <= job.job.timeout
                });
                prop_assert_eq!(passed_over, None, "{} came before {}", line, attempt);
                let beside = instance.holders.keys().filter_map(|name| at.state.granted.get(name));
                let alike = |other: &Grant| other.reservation.job.protected == job.job.protected;
                let mixed = before.policy.reuse != Reuse::Any && !beside.into_iter().all(alike);
                prop_assert!(!mixed, "{attempt} shares {} with a job of the other protection", instance.id);
            }
            at.carry(std::slice::from_ref(event));
        }
    }

    #[test]
    fn nothing_in_use_is_touched(line in a_world()) {
        let (before, plan, after) = planned(&line);
        let in_use = in_use(&before, &after);
        for effect in &plan.effects {
            let ends = matches!(
                effect,
                Effect::Terminate { .. } | Effect::Forget { .. } | Effect::Reap { .. } | Effect::Clean { .. }
            );
            prop_assert!(!ends || effect.instance().is_none_or(|id| !in_use.contains(id)), "{effect}");
        }
        prop_assert!(forgotten(&plan).is_disjoint(&in_use));
        let drained = drained(&plan, |why| *why != DrainReason::Unaccounted);
        prop_assert!(drained.is_disjoint(&in_use), "{drained:?}");
    }

    #[test]
    fn what_is_not_ours_is_never_touched(line in a_world()) {
        let (before, plan, _) = planned(&line);
        let Ok(listing) = &before.observed.listing else { return Ok(()) };
        let tagged = |id: &InstanceId| listing.instances.iter().find(|l| l.id == *id).and_then(|l| l.tags.as_ref());
        let mut strangers = false;
        for listed in listing.instances.iter().filter(|l| !before.state.instances.contains_key(&l.id)) {
            let tags = listed.tags.as_ref();
            let owned = tags.is_some_and(|t| t.owner == before.observed.owner);
            strangers |= owned && tags.is_some_and(|t| t.number > 100);
        }
        for effect in &plan.effects {
            if let Effect::Reap { instance } = effect {
                prop_assert!(tagged(instance).is_some_and(|t| t.owner == before.observed.owner && t.number < 100));
                prop_assert!(!strangers && listing.complete);
            }
            if let Effect::Terminate { instance } | Effect::Forget { instance } = effect {
                prop_assert!(before.state.instance(instance).is_some_and(|i| !i.is_static()), "{effect}");
            }
        }
    }

    #[test]
    fn a_list_that_proves_nothing_deletes_nothing_and_replaces_nothing(line in a_world()) {
        let mut blind = world(&line);
        let mut seeing = blind.clone();
        let made = blind.state.instances.values().filter(|i| !i.is_refused());
        let as_recorded = |i: &Instance| if i.phase.is_stopped() { Status::Suspended } else { Status::Running };
        let running = made.map(|i| Listed { id: i.id.clone(), tags: None, status: as_recorded(i), created: None, detail: None, by_job: false, refused: None, static_host: None, notice: None });
        let mut listing = Listing::empty(NOW, Some(Location::new("here")));
        listing.instances = running.collect();
        seeing.observed.listing = Ok(listing);
        blind.observed.listing = Err(crate::notation::failure(crate::failure::ErrorClass::Transient));
        let refused = |id: &InstanceId| blind.state.instance(id).is_some_and(Instance::is_refused);
        let plan = blind.plan();
        prop_assert!(forgotten(&plan).iter().all(refused), "only what was never made");
        prop_assert_eq!(drained(&plan, |why| *why == DrainReason::Vanished), BTreeSet::new());
        let reaps = plan.effects.iter().any(|e| matches!(e, Effect::Reap { .. } | Effect::Adopt { .. }));
        prop_assert!(!reaps);
        let refusals = blind.state.instances.values().any(|i| i.is_refused());
        prop_assert!(refusals || launched(&plan) <= launched(&seeing.plan()));
    }

    #[test]
    fn the_limit_is_never_exceeded_by_a_request_of_ours(line in a_world()) {
        let (before, plan, after) = planned(&line);
        let owned = |world: &World| {
            let listing = world.observed.listing.as_ref().map(|l| l.instances.as_slice()).unwrap_or_default();
            let unknown = listing.iter().filter(|l| {
                l.tags.as_ref().is_some_and(|t| t.owner == world.observed.owner)
                    && !world.state.instances.contains_key(&l.id)
            });
            // A refused launch created nothing; its record is where the next try begins.
            world.state.instances.values().filter(|i| !i.is_refused()).count() + unknown.count()
        };
        let refused = before.state.instances.values().filter(|i| i.is_refused()).count();
        let limit = before.policy.max_instances as usize;
        prop_assert!(owned(&after) <= limit.max(owned(&before) + refused));
        prop_assert!(launched(&plan) == 0 || owned(&after) <= limit);
        let booting = after.state.instances.values().filter(|i| {
            matches!(i.phase, Phase::Launching | Phase::Checking) && !i.is_refused()
        });
        prop_assert!(launched(&plan) == 0 || booting.count() <= before.policy.max_launching as usize);
        let recent = after.state.launches.recent.len();
        prop_assert!(launched(&plan) == 0 || recent <= before.policy.launches_per_minute as usize);
    }

    #[test]
    fn each_launch_serves_a_waiting_job_or_a_wanted_slot(line in a_world()) {
        let (before, plan, after) = planned(&line);
        // The tier is refilled with launches, too.
        let wanted = plan.report.idle_target + before.policy.idle_stopped * before.policy.fresh_slots();
        let count = launched(&plan);
        let target = wanted as usize;
        if count == 0 {
            return Ok(());
        }
        prop_assert!(count <= after.state.waiting.len() + target);
        if before.policy.reuse == Reuse::Any {
            // Usable + launching × capacity < waiting + target, before the last of them.
            let slots = |i: &Instance| i.capacity.min(i.uses_left.unwrap_or(u32::MAX)) as usize;
            let booting: usize = after
                .state
                .instances
                .values()
                .filter(|i| matches!(i.phase, Phase::Launching | Phase::Checking))
                .filter(|i| !i.is_refused() && !is_claimed(&after, i))
                .map(|i| slots(i))
                .sum();
            let fresh = before.policy.fresh_slots() as usize;
            prop_assert!(booting - fresh < after.state.waiting.len() + target);
        }
    }

    #[test]
    fn retiring_leaves_the_target_and_nothing_is_launched_for_it_then(line in a_world()) {
        let (before, plan, after) = planned(&line);
        let surplus = drained(&plan, |why| *why == DrainReason::Surplus);
        let open = |i: &Instance| {
            i.domain.as_ref().is_none_or(|d| before.policy.reuse == Reuse::Any && d.as_str() == "any")
        };
        let spare: u32 = after
            .state
            .instances
            .values()
            .filter(|i| open(i) && i.ready.is_some_and(|r| r.boot == before.now.boot))
            .map(|i| i.usable())
            .sum();
        let made_room = !drained(&plan, |why| *why == DrainReason::MadeRoom).is_empty();
        // A refused launch, or one that the limit leaves no room to repeat: none of it was spare.
        let made = |i: &Instance| open(i) && i.phase != Phase::Launching && !i.phase.is_of_tier();
        if !made_room && surplus.iter().any(|id| before.state.instance(id).is_some_and(made)) {
            prop_assert!(spare >= plan.report.idle_target);
            prop_assert!(launched(&plan) <= after.state.waiting.len() + before.policy.idle_stopped as usize);
        }
        for id in &surplus {
            let known = before.state.instance(id).expect("it is recorded");
            if known.phase == Phase::Launching {
                // Never created, so it cannot be idle.
                prop_assert!(known.is_refused() || before.state.alive() > before.policy.max_instances);
                continue;
            }
            if known.phase.is_of_tier() {
                let tier = before.state.instances.values().filter(|i| i.phase.is_of_tier()).count();
                let most = before.policy.idle_stopped as usize;
                prop_assert!(tier > most || before.observed.capabilities.suspends == Suspends::No);
                continue;
            }
            prop_assert!(before.now.since(known.idle_since()) >= before.policy.idle.idle_time);
            prop_assert!(known.uses > 0 || before.now.since(known.idle_since()) >= Duration::from_mins(1));
        }
    }

    #[test]
    fn only_idle_instances_above_the_target_are_suspended_and_a_job_is_resumed_for(line in a_world()) {
        let (before, plan, after) = planned(&line);
        let suspended =
            changed(&plan, |c| if let Change::SuspendIntended { instance } = c { Some(instance) } else { None });
        let resumed =
            changed(&plan, |c| if let Change::ResumeIntended { instance } = c { Some(instance) } else { None });
        let fresh = |id: &&InstanceId| before.state.instance(id).is_some_and(Instance::is_idle);
        if suspended.iter().any(|id| fresh(&id)) {
            let spare: u32 = after.state.instances.values().map(|i| i.usable()).sum();
            prop_assert!(spare >= plan.report.idle_target);
            let tier = after.state.instances.values().filter(|i| i.phase.is_of_tier()).count();
            prop_assert!(tier <= before.policy.idle_stopped as usize);
        }
        for id in suspended.iter().chain(&resumed) {
            prop_assert!(!is_claimed(&before, before.state.instance(id).expect("it is recorded")), "{id}");
            prop_assert!(after.state.instance(id).is_some_and(|i| i.holders.is_empty()), "{id}");
        }
        let waited = before.state.waiting.len().max(plan.report.idle_target as usize);
        prop_assert!(resumed.len() <= waited, "{resumed:?}");
        if before.state.drained.is_some() {
            prop_assert!(suspended.is_empty() && resumed.is_empty());
        }
    }

    #[test]
    fn a_drain_leaves_no_stopped_instance(line in a_world()) {
        let (_, _, after) = planned(&line);
        for instance in after.state.instances.values().filter(|_| after.state.drained.is_some()) {
            prop_assert!(!instance.phase.is_of_tier() || is_claimed(&after, instance), "{}", instance.id);
        }
    }

    #[test]
    fn every_waiting_job_has_one_reason_in_the_order_of_the_queue(line in a_world()) {
        let (_, plan, after) = planned(&line);
        let reported: Vec<&AttemptName> = plan.report.waiting.iter().map(|(name, _)| name).collect();
        let waiting: Vec<&AttemptName> = after.state.waiting.values().map(|r| &r.attempt).collect();
        prop_assert_eq!(reported, waiting);
        for (_, on) in &plan.report.waiting {
            let lazy = *on == WaitingOn::NextPass;
            prop_assert!(!lazy || after.observed.launching.is_none(), "the keeper has just looked");
            prop_assert!(!on.to_string().is_empty());
        }
    }

    #[test]
    fn each_instance_has_one_row(line in a_world()) {
        let (before, plan, _) = planned(&line);
        let mut ids: BTreeSet<&InstanceId> = before.state.instances.keys().collect();
        if let Ok(listing) = &before.observed.listing {
            ids.extend(listing.instances.iter().map(|l| &l.id));
        }
        let rows: Vec<&InstanceId> = plan.report.rows.iter().map(|(id, _)| id).collect();
        prop_assert_eq!(rows.len(), ids.len());
        prop_assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), ids);
    }

    #[test]
    fn the_keeper_never_spins(line in a_world()) {
        let (before, plan, _) = planned(&line);
        if let Some(next) = plan.report.next {
            prop_assert!(!before.now.reached(next), "wakes {:?} ago", before.now.since(next));
        }
        let unique: BTreeSet<&Effect> = plan.effects.iter().collect();
        prop_assert_eq!(unique.len(), plan.effects.len(), "an effect twice");
    }

    #[test]
    fn a_moved_directory_changes_and_touches_nothing(line in a_world()) {
        let mut moved = world(&line);
        moved.observed.moved = Some("moved".into());
        moved.policy.max_instances += 1;
        let plan = moved.plan();
        prop_assert_eq!(render(&plan), "");
        prop_assert_eq!(plan.report.waiting.len(), moved.state.waiting.len());
        let moved = |on: &WaitingOn| matches!(on, WaitingOn::Moved { .. });
        prop_assert!(plan.report.waiting.iter().all(|(_, on)| moved(on)));
    }

    #[test]
    fn a_wall_clock_that_jumps_a_day_changes_no_decision(line in a_world(), forth in any::<bool>()) {
        if line.contains("old") {
            return Ok(()); // across boots there is only the wall clock
        }
        let here = world(&line);
        let day = if forth { 86_400_000 } else { -86_400_000 };
        let mut there = here.clone();
        there.now = Stamp { wall_ms: NOW.wall_ms + day, ..NOW };
        prop_assert_eq!(render(&here.plan()), render(&there.plan()));
    }

    #[test]
    fn after_a_reboot_nothing_recorded_before_is_handed_out(line in a_world()) {
        let mut rebooted = world(&line);
        rebooted.observed.busy.clear();
        rebooted.now = Stamp { wall_ms: NOW.wall_ms + 60_000, boot: BootId(8), uptime_ms: 1_000, ..NOW };
        let plan = rebooted.plan();
        let gets = |e: &crate::event::Event| matches!(e.change, Change::Granted { .. });
        prop_assert!(!plan.events.iter().any(gets), "{}", render(&plan));
        rebooted.carry(&plan.events);
        for instance in rebooted.state.instances.values() {
            let serves = instance.is_idle() && !is_claimed(&rebooted, instance);
            let coming = matches!(instance.phase, Phase::Launching | Phase::Checking | Phase::Suspended { .. })
                && instance.since.boot != BootId(8)
                && !instance.is_refused()
                && !is_claimed(&rebooted, instance);
            prop_assert!(!serves && !coming, "{} is {}", instance.id, instance.phase.word());
        }
    }
}

// Laws of instances that jobs have ordered, for any world.

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
