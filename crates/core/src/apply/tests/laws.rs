//! Laws that hold after any events, in any order, at any time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::event::Event;
use crate::ids::{JobKey, Location, OfferingName};
use crate::invariants::check;
use crate::time::{BootId, Stamp};

/// Small sets of names, so that events concern the same ones.
fn an_instance() -> impl Strategy<Value = InstanceId> {
    prop::sample::select(vec!["i1", "i2", "i3", "h1", "h2"]).prop_map(instance)
}

fn a_job() -> impl Strategy<Value = u64> {
    1..6_u64
}

/// Attempts 1 and 11 are of job 1, and so on.
fn an_attempt() -> impl Strategy<Value = AttemptName> {
    (a_job(), any::<bool>()).prop_map(|(job, again)| attempt(job + if again { 10 } else { 0 }))
}

fn a_request() -> impl Strategy<Value = Change> {
    (a_job(), any::<bool>()).prop_map(|(job, again)| {
        let facts = facts(job, if job < 4 { "a" } else { "b" }, MINUTE * 60);
        let domain = Policy::default().domain_of(&facts);
        let attempt = attempt(job + if again { 10 } else { 0 });
        Change::Requested { attempt, job: facts, domain, acquire_timeout: MINUTE * 30 }
    })
}

fn a_offering() -> impl Strategy<Value = OfferingName> {
    prop::sample::select(vec!["c1", "c2", "c3"]).prop_map(OfferingName::new)
}

fn a_location() -> impl Strategy<Value = Location> {
    prop::sample::select(vec!["here", "there"]).prop_map(Location::new)
}

fn an_answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        3 => Just(Answer::Accepted { at: NOW }),
        1 => Just(Answer::Unknown { at: NOW }),
        1 => Just(Answer::Refused { at: NOW, failure: failure(ErrorClass::Quota) }),
    ]
}

fn a_launch() -> impl Strategy<Value = Change> {
    let choices = (prop::option::of(a_offering()), prop::option::of(a_location()));
    (1..4_u32, 1..3_u32, 1..4_u32, prop::option::of(0..4_u32), choices).prop_map(
        |(number, tries, capacity, uses_left, (offering, location))| Change::LaunchIntended {
            instance: instance(&format!("i{number}")),
            generation: generation(),
            number,
            attempt: tries,
            capacity,
            uses_left,
            offering,
            location,
            lifetime: None,
            ordered: None,
        },
    )
}

fn a_leaving() -> impl Strategy<Value = Release> {
    (any::<bool>(), any::<bool>()).prop_map(|(used, closing)| Release { how: End::CleanedUp, used, closing })
}

fn of_instances() -> impl Strategy<Value = Change> {
    let why =
        prop::sample::select(vec![DrainReason::UsedUp, DrainReason::NeverReady, DrainReason::ByOperator]);
    prop_oneof![
        4 => a_launch(),
        2 => (an_instance(), 1..3_u32, an_answer())
            .prop_map(|(instance, attempt, answer)| Change::LaunchAnswered { instance, attempt, answer }),
        4 => an_instance().prop_map(|instance| Change::Reached { instance, endpoint: endpoint() }),
        8 => an_instance().prop_map(|instance| Change::BecameReady { instance }),
        3 => an_instance().prop_map(|instance| Change::SuspendIntended { instance }),
        3 => an_instance().prop_map(|instance| Change::Suspended { instance }),
        3 => an_instance().prop_map(|instance| Change::ResumeIntended { instance }),
        2 => (prop::sample::select(vec!["h1", "h2"]), 1..3_u32, prop::option::of(0..3_u32)).prop_map(
            |(host, capacity, uses_left)| {
                let instance = instance(host);
                let endpoint = endpoint();
                Change::Adopted { instance, endpoint, capacity, uses_left }
            }
        ),
        2 => an_instance().prop_map(|instance| Change::CleaningBegun { instance }),
        2 => an_instance().prop_map(|instance| Change::Cleaned { instance, images: Vec::new() }),
        1 => an_instance().prop_map(|instance| Change::OutOfService { instance, reason: "x".into() }),
        1 => an_instance().prop_map(|instance| Change::ReturnedToService { instance }),
        1 => an_instance().prop_map(|instance| Change::Unbound { instance }),
        1 => (an_instance(), why).prop_map(|(instance, reason)| Change::DrainingBegun { instance, reason }),
        1 => an_instance().prop_map(|instance| Change::MissingFromList { instance, begun: NOW }),
        1 => (an_instance(), a_location()).prop_map(|(instance, location)| Change::Located { instance, location }),
        1 => an_instance().prop_map(|instance| Change::ListedAgain { instance }),
        1 => an_instance().prop_map(|instance| Change::Forgotten { instance }),
    ]
}

fn of_jobs() -> impl Strategy<Value = Change> {
    let how = End::GivenBack;
    prop_oneof![
        6 => a_request(),
        8 => (an_attempt(), an_instance()).prop_map(|(attempt, instance)| Change::Granted { attempt, instance }),
        2 => an_attempt().prop_map(move |attempt| Change::Withdrawn { attempt, how }),
        1 => an_attempt().prop_map(|attempt| Change::Rejected { attempt, message: "x".into() }),
        3 => (an_attempt(), a_leaving()).prop_map(|(attempt, release)| Change::Released { attempt, release }),
        2 => an_attempt().prop_map(|attempt| Change::SlotFreed { attempt }),
    ]
}

fn of_the_pool() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0..3_u32, any::<bool>()).prop_map(|(uses, clean_unbinds)| {
            let max_use_count = (uses > 0).then_some(uses);
            let policy = Arc::new(Policy { max_use_count, clean_unbinds, ..Policy::default() });
            Change::PolicySet { policy }
        }),
        Just(Change::GenerationBegun { generation: generation() }),
        prop::collection::vec(a_offering(), 0..3)
            .prop_map(|offerings| Change::OfferingsChanged { offerings }),
        Just(Change::PoolDrained),
        Just(Change::PoolResumed),
    ]
}

/// Any clock: it runs, jumps back, and the runner host reboots.
fn a_moment() -> impl Strategy<Value = Stamp> {
    (-100_000_i64..100_000, 7..9_u64, 0..1_000_000_u64).prop_map(|(wall, boot, uptime_ms)| Stamp {
        wall_ms: NOW.wall_ms + wall * 1000,
        boot: BootId(boot),
        uptime_ms,
        ..NOW
    })
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let change = prop_oneof![12 => of_instances(), 12 => of_jobs(), 1 => of_the_pool()];
    prop::collection::vec((change, a_moment()).prop_map(|(change, at)| change.at(at)), 1..120)
}

/// Number of uses that each launched instance began with; the state no longer has the number.
fn uses_at_first(first: &mut BTreeMap<InstanceId, Option<u32>>, change: &Change) {
    if let Change::LaunchIntended { instance, uses_left, .. } = change {
        first.insert(instance.clone(), *uses_left);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_events_breaks_a_law_and_a_misfit_leaves_no_trace(events in events()) {
        let mut state = PoolState::default();
        let mut first = BTreeMap::new();
        for event in &events {
            let before = state.clone();
            let answer = state.apply(event);
            prop_assert_eq!(state.revision, before.revision + 1);
            if answer.is_err() {
                let same = PoolState { revision: state.revision, ..before };
                prop_assert_eq!(&state, &same, "{:?}", event);
            } else {
                uses_at_first(&mut first, &event.change);
            }
            prop_assert_eq!(check(&state), vec![], "after {:?}", event);
            for offering in ["c1", "c2", "c3"].map(OfferingName::new) {
                let named = state.availability.offerings().contains(&offering);
                prop_assert!(named || state.availability.refusal(&offering).is_none(), "what nobody names is forgotten");
            }
            for instance in state.instances.values().filter(|i| !i.is_static()) {
                let on_it = instance.holders.values().filter(|h| h.closing.is_none()).count();
                if let Some(uses) = first[&instance.id] {
                    let spent = instance.uses + u32::try_from(on_it).unwrap();
                    prop_assert_eq!(instance.uses_left.map(|left| left + spent), Some(uses), "{:?}", event);
                }
                prop_assert!(instance.usable() <= instance.capacity);
            }
        }
    }

    #[test]
    fn a_ticket_is_given_once_and_its_order_is_that_of_the_requests(events in events()) {
        let mut state = PoolState::default();
        let mut last = 0;
        let mut kept: BTreeMap<JobKey, Ticket> = BTreeMap::new();
        for event in &events {
            let places = state.places.clone();
            if state.apply(event).is_err() {
                continue;
            }
            if let Change::Requested { attempt, job, .. } = &event.change {
                let ticket = state.waiting_for(attempt).expect("it waits").ticket;
                match places.get(&job.key) {
                    Some(place) if place.ticket == ticket => prop_assert_eq!(kept.get(&job.key), Some(&ticket)),
                    _ => {
                        prop_assert!(ticket.0 > last, "a new ticket comes after all others");
                        last = ticket.0;
                    }
                }
                kept.insert(job.key.clone(), ticket);
            }
        }
    }

    #[test]
    fn a_state_survives_the_snapshot(events in events()) {
        let mut state = PoolState::default();
        for event in &events {
            let text = serde_json::to_string(event).expect("an event is JSON");
            let read: Event = serde_json::from_str(&text).expect("and reads back");
            prop_assert_eq!(&read, event);
            state.apply(&read).ok();
        }
        let text = serde_json::to_string(&state).expect("a state is JSON");
        let read: PoolState = serde_json::from_str(&text).expect("and reads back");
        prop_assert_eq!(read, state);
    }
}
