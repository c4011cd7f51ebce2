//! The invariants of every recorded state.
//!
//! Independent of how the state came about: the simulator and the tests check them after every event. A valid state
//! costs no allocation.

use std::fmt;

use super::ids::{AttemptName, InstanceId, JobKey};
use super::instance::{Holder, Instance, Phase};
use super::pool::{Grant, PoolState};
use crate::job::{Reservation, Ticket};

/// An invariant that a state violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// More concurrent jobs than slots.
    Crowded { instance: InstanceId, jobs: usize, capacity: u32 },
    /// A static host that is drained or suspended.
    ThrownAway { instance: InstanceId },
    /// A job of another trust domain than the instance is bound to.
    Trespass { instance: InstanceId, attempt: AttemptName },
    /// A job on an instance that another one ordered, or on one that is not what it ordered.
    NotOrdered { instance: InstanceId, attempt: AttemptName },
    /// An instance that a job ordered could serve another one.
    Shared { instance: InstanceId },
    /// Bound to no trust domain, with a job on it.
    Unbound { instance: InstanceId },
    /// Jobs in a phase that allows none.
    JobsIn { instance: InstanceId, phase: &'static str },
    /// A record under another name than its own.
    Misfiled { what: &'static str, name: String },
    /// Granted an instance that does not list it, or lists it for another job.
    GrantWithoutHolder { attempt: AttemptName, instance: InstanceId },
    /// Holds an instance without a grant.
    HolderWithoutGrant { attempt: AttemptName, instance: InstanceId },
    /// Two attempts of one job wait or hold.
    TwoAttempts { job: JobKey },
    /// An attempt waits and holds, or waits twice.
    TwoRequests { attempt: AttemptName },
    /// A ticket that was never issued, or issued twice.
    Ticket { ticket: Ticket },
    /// A launch with a number above the highest of its generation.
    Number { instance: InstanceId },
    /// An instance in service without an endpoint.
    Unreachable { instance: InstanceId },
    /// The instance is ready, but the time since when is missing.
    NeverReady { instance: InstanceId },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded { instance, jobs, capacity } => {
                write!(f, "{jobs} jobs on {instance}, which has {capacity} slots")
            }
            Self::ThrownAway { instance } => {
                write!(f, "{instance} is a static host, but is being terminated or suspended")
            }
            Self::Trespass { instance, attempt } => {
                write!(f, "{attempt} is on {instance}, which belongs to another trust domain")
            }
            Self::NotOrdered { instance, attempt } => {
                write!(f, "{attempt} is on {instance}, which is not what it ordered")
            }
            Self::Shared { instance } => {
                write!(f, "{instance} was launched for one job, but could serve another one")
            }
            Self::Unbound { instance } => write!(f, "{instance} has a job, but no trust domain"),
            Self::JobsIn { instance, phase } => write!(f, "{instance} is {phase} and has jobs"),
            Self::Misfiled { what, name } => {
                write!(f, "{what} is filed under `{name}`, which is not its own name")
            }
            Self::GrantWithoutHolder { attempt, instance } => {
                write!(f, "{attempt} was granted {instance}, which does not hold it")
            }
            Self::HolderWithoutGrant { attempt, instance } => {
                write!(f, "{attempt} holds {instance} without a grant")
            }
            Self::TwoAttempts { job } => write!(f, "two attempts of job {job} have a reservation or a grant"),
            Self::TwoRequests { attempt } => write!(f, "{attempt} has two reservations or grants"),
            Self::Ticket { ticket } => write!(f, "ticket {} was never issued, or issued twice", ticket.0),
            Self::Number { instance } => write!(f, "{instance} has a number that was never issued"),
            Self::Unreachable { instance } => write!(f, "{instance} is in service without an address"),
            Self::NeverReady { instance } => {
                write!(f, "{instance} is ready, but its time of readiness is missing")
            }
        }
    }
}

/// All invariants that the state violates; none if it is valid.
pub fn check(state: &PoolState) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut holders = 0;
    for (id, instance) in &state.instances {
        one_instance(state, id, instance, &mut broken);
        for (attempt, holder) in &instance.holders {
            if holder.closing.is_none() {
                holders += 1;
                one_holder(state, instance, attempt, holder, &mut broken);
            }
        }
    }
    // With as many grants as holders, each holder with its grant: the two are the same set.
    if holders != state.granted.len() {
        for (attempt, grant) in &state.granted {
            grant_without_holder(state, attempt, grant, &mut broken);
        }
    }
    queue(state, &mut broken);
    broken
}

fn one_instance(state: &PoolState, id: &InstanceId, instance: &Instance, broken: &mut Vec<Broken>) {
    let named = || instance.id.clone();
    if *id != instance.id {
        broken.push(Broken::Misfiled { what: "an instance", name: id.to_string() });
    }
    let jobs = instance.holders.len();
    if jobs > instance.capacity as usize {
        broken.push(Broken::Crowded { instance: named(), jobs, capacity: instance.capacity });
    }
    if jobs > 0 {
        if instance.domain.is_none() {
            broken.push(Broken::Unbound { instance: named() });
        }
        match instance.phase {
            // Became unreachable while they were on it.
            Phase::Checking if instance.is_static() => {}
            Phase::Launching | Phase::Checking | Phase::Suspended { .. } | Phase::Cleaning => {
                let phase = instance.phase.word();
                broken.push(Broken::JobsIn { instance: named(), phase });
            }
            Phase::Ready | Phase::OutOfService { .. } | Phase::Draining { .. } => {}
        }
    }
    if let Some(ordered) = &instance.ordered {
        let once = instance.capacity == 1 && instance.uses_left.is_some_and(|left| left <= 1);
        let bound = instance.domain.as_ref() == Some(&ordered.domain);
        if !once || !bound || instance.is_static() || matches!(instance.phase, Phase::Suspended { .. }) {
            broken.push(Broken::Shared { instance: named() });
        }
    }
    if let Some(launch) = &instance.launch
        && state.generations.get(&launch.generation).is_none_or(|highest| launch.number > *highest)
    {
        broken.push(Broken::Number { instance: named() });
    }
    match instance.phase {
        Phase::Draining { .. } | Phase::Suspended { .. } if instance.is_static() => {
            broken.push(Broken::ThrownAway { instance: named() });
        }
        Phase::Ready if instance.ready.is_none() => broken.push(Broken::NeverReady { instance: named() }),
        Phase::Checking | Phase::Ready | Phase::Cleaning if instance.endpoint.is_none() => {
            broken.push(Broken::Unreachable { instance: named() });
        }
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::Suspended { .. }
        | Phase::Cleaning
        | Phase::OutOfService { .. }
        | Phase::Draining { .. } => {}
    }
}

fn one_holder(
    state: &PoolState,
    instance: &Instance,
    attempt: &AttemptName,
    holder: &Holder,
    broken: &mut Vec<Broken>,
) {
    let named = || instance.id.clone();
    let Some(grant) = state.granted.get(attempt) else {
        broken.push(Broken::HolderWithoutGrant { attempt: attempt.clone(), instance: named() });
        return;
    };
    if grant.instance != instance.id || grant.reservation.job.key != holder.job {
        broken
            .push(Broken::GrantWithoutHolder { attempt: attempt.clone(), instance: grant.instance.clone() });
    }
    if grant.reservation.attempt != *attempt {
        broken.push(Broken::Misfiled { what: "a grant", name: attempt.to_string() });
    }
    if instance.domain.as_ref().is_some_and(|bound_to| *bound_to != grant.reservation.domain) {
        broken.push(Broken::Trespass { instance: named(), attempt: attempt.clone() });
    }
    let as_ordered = match (&instance.ordered, &grant.reservation.job.order) {
        (Some(ordered), Some(order)) => ordered.attempt == *attempt && ordered.order == *order,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if !as_ordered {
        broken.push(Broken::NotOrdered { instance: named(), attempt: attempt.clone() });
    }
}

fn grant_without_holder(state: &PoolState, attempt: &AttemptName, grant: &Grant, broken: &mut Vec<Broken>) {
    let holder = state.instance(&grant.instance).and_then(|i| i.holders.get(attempt));
    if holder.is_none_or(|h| h.closing.is_some()) {
        let instance = grant.instance.clone();
        broken.push(Broken::GrantWithoutHolder { attempt: attempt.clone(), instance });
    }
}

/// Tickets: each is issued once, and each request is filed under its own. Attempts: at most one per job is open.
fn queue(state: &PoolState, broken: &mut Vec<Broken>) {
    for (ticket, reservation) in &state.waiting {
        if *ticket != reservation.ticket {
            broken.push(Broken::Misfiled { what: "a request", name: ticket.0.to_string() });
        }
    }
    let mut tickets = Sieve::default();
    let mut jobs = Sieve::default();
    for reservation in requests(state) {
        if jobs.again(reservation.job.key.id) {
            doubled(state, reservation, broken);
        }
        ticket(state, reservation.ticket, &mut tickets, broken);
    }
    for place in state.places.values() {
        ticket(state, place.ticket, &mut tickets, broken);
    }
}

fn requests(state: &PoolState) -> impl Iterator<Item = &Reservation> {
    let granted = state.granted.values().map(|g| g.reservation.as_ref());
    state.waiting.values().map(AsRef::as_ref).chain(granted)
}

fn doubled(state: &PoolState, reservation: &Reservation, broken: &mut Vec<Broken>) {
    let job = &reservation.job.key;
    let attempt = &reservation.attempt;
    if requests(state).filter(|r| r.job.key == *job && r.attempt != *attempt).count() > 0 {
        broken.push(Broken::TwoAttempts { job: job.clone() });
    }
    if requests(state).filter(|r| r.attempt == *attempt).count() > 1 {
        broken.push(Broken::TwoRequests { attempt: attempt.clone() });
    }
}

fn ticket(state: &PoolState, ticket: Ticket, seen: &mut Sieve, broken: &mut Vec<Broken>) {
    let twice = || {
        let places = state.places.values().map(|p| p.ticket);
        requests(state).map(|r| r.ticket).chain(places).filter(|t| *t == ticket).count() > 1
    };
    let again = seen.again(ticket.0);
    if ticket >= state.next_ticket || (again && twice()) {
        broken.push(Broken::Ticket { ticket });
    }
}

/// A filter of numbers that may have occurred: a negative answer is certain, a positive one is not. On the stack.
struct Sieve([u64; Sieve::WORDS]);

impl Default for Sieve {
    fn default() -> Self {
        Self([0; Self::WORDS])
    }
}

impl Sieve {
    const WORDS: usize = 64;

    /// True if this number may have occurred.
    fn again(&mut self, number: u64) -> bool {
        let place = usize::try_from(number % (Self::WORDS as u64 * 64)).unwrap_or(0);
        let word = &mut self.0[place / 64];
        let bit = 1_u64 << (place % 64);
        let before = *word & bit != 0;
        *word |= bit;
        before
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::{Generation, TrustDomain};
    use crate::instance::{DrainReason, LaunchRecord};
    use crate::notation::{attempt, instance, world};

    const SOUND: &str = "cap 3 | idle 5m; held 3m by 7,8; held 3m closing 9; booting 5s; checking 5s; refused 5s; \
                         static cleaning 5s; static out-of-service 5m by 10; draining 5s by 11; draining 5s; waits 12; waits 13 of b";

    /// Violations of the sound state after this change.
    fn broken_by(change: impl FnOnce(&mut PoolState)) -> String {
        let mut state = world(SOUND).state;
        change(&mut state);
        let violations: Vec<String> = check(&state).iter().map(Broken::to_string).collect();
        violations.join("; ").replace("p-g-", "i")
    }

    fn edit(state: &mut PoolState, short: &str) -> impl FnOnce(&mut dyn FnMut(&mut Instance)) {
        let id = instance(short);
        move |change| change(Arc::make_mut(state.instances.get_mut(&id).unwrap()))
    }

    fn edited(short: &str, mut change: impl FnMut(&mut Instance)) -> String {
        broken_by(|state| edit(state, short)(&mut change))
    }

    #[test]
    fn a_state_that_came_about_by_events_is_sound() {
        assert_eq!(broken_by(|_| {}), "");
        assert_eq!(check(&PoolState::default()), []);
    }

    #[test]
    fn each_broken_law_of_an_instance_is_named() {
        assert_eq!(edited("i2", |i| i.capacity = 1), "2 jobs on i2, which has 1 slots");
        assert_eq!(edited("i2", |i| i.domain = None), "i2 has a job, but no trust domain");
        assert_eq!(edited("i3", |i| i.domain = None), "i3 has a job, but no trust domain");
        for (phase, phase_name) in
            [(Phase::Checking, "checking"), (Phase::Cleaning, "cleaning"), (Phase::Launching, "launching")]
        {
            assert_eq!(edited("i2", |i| i.phase = phase.clone()), format!("i2 is {phase_name} and has jobs"));
        }
        assert_eq!(edited("i2", |i| i.phase = Phase::OutOfService { reason: String::new() }), "");
        assert_eq!(edited("i1", |i| i.endpoint = None), "i1 is in service without an address");
        assert_eq!(edited("i5", |i| i.endpoint = None), "i5 is in service without an address");
        assert_eq!(edited("h1", |i| i.endpoint = None), "h1 is in service without an address");
        assert_eq!(edited("i4", |i| i.endpoint = None), "");
        assert_eq!(edited("i1", |i| i.ready = None), "i1 is ready, but its time of readiness is missing");
        assert_eq!(
            edited("h1", |i| i.phase = Phase::Draining { reason: DrainReason::Surplus }),
            "h1 is a static host, but is being terminated or suspended"
        );
        let launch = |change: fn(&mut LaunchRecord)| edited("i1", |i| change(i.launch.as_mut().unwrap()));
        assert_eq!(launch(|l| l.number = 99), "i1 has a number that was never issued");
        assert_eq!(launch(|l| l.generation = Generation::new("x")), "i1 has a number that was never issued");
        let renamed = edited("i1", |i| i.id = instance("i99"));
        assert_eq!(renamed, "an instance is filed under `i1`, which is not its own name");
    }

    #[test]
    fn each_broken_law_of_grants_and_holders_is_named() {
        let trespass = edited("i2", |i| i.domain = Some(TrustDomain::new("x")));
        assert_eq!(
            trespass,
            "a7 is on i2, which belongs to another trust domain; a8 is on i2, which belongs to another trust domain"
        );
        let lost = broken_by(|s| drop(s.granted.remove(&attempt(7))));
        assert_eq!(lost, "a7 holds i2 without a grant");
        let dropped = edited("i2", |i| drop(i.holders.remove(&attempt(7))));
        assert_eq!(dropped, "a7 was granted i2, which does not hold it");
        let lingers = edited("i2", |i| i.holders.get_mut(&attempt(7)).unwrap().closing = Some(i.since));
        assert_eq!(lingers, "a7 was granted i2, which does not hold it");
        let elsewhere = broken_by(|s| s.granted.get_mut(&attempt(7)).unwrap().instance = instance("i1"));
        assert_eq!(elsewhere, "a7 was granted i1, which does not hold it");
        let another = edited("i2", |i| i.holders.get_mut(&attempt(7)).unwrap().job.id = 99);
        assert_eq!(another, "a7 was granted i2, which does not hold it");
    }

    #[test]
    fn each_broken_law_of_orders_is_named() {
        let text = "orders | held 3m by 7 for 7; held 3m by 8; idle 5m for 9; waits 9 orders ruby";
        assert_eq!(check(&world(text).state), []);
        let edited = |short: &str, change: fn(&mut Instance)| {
            let mut state = world(text).state;
            edit(&mut state, short)(&mut |i: &mut Instance| change(i));
            let violations: Vec<String> = check(&state).iter().map(Broken::to_string).collect();
            violations.join("; ").replace("p-g-", "i")
        };
        let ordered = |change: fn(&mut crate::order::Ordered)| {
            let mut state = world(text).state;
            edit(&mut state, "i1")(&mut |i: &mut Instance| {
                change(Arc::make_mut(i.ordered.as_mut().unwrap()));
            });
            let violations: Vec<String> = check(&state).iter().map(Broken::to_string).collect();
            violations.join("; ").replace("p-g-", "i")
        };
        let trespass = "a7 is on i1, which is not what it ordered";
        assert_eq!(edited("i1", |i| i.ordered = None), trespass);
        assert_eq!(ordered(|own| own.attempt = attempt(8)), trespass);
        let go = crate::order::Order { image: "go".into(), services: Vec::new(), more_services: 0 };
        let mut other = world(text).state;
        edit(&mut other, "i1")(&mut |i: &mut Instance| {
            Arc::make_mut(i.ordered.as_mut().unwrap()).order = Arc::new(go.clone());
        });
        assert_eq!(check(&other).len(), 1, "another image");
        let mut swapped = world(text).state;
        let own = swapped.instance(&instance("i1")).unwrap().ordered.clone();
        edit(&mut swapped, "i2")(&mut |i: &mut Instance| i.ordered.clone_from(&own));
        let violations: Vec<String> = check(&swapped).iter().map(Broken::to_string).collect();
        assert!(
            violations.contains(&"a8 is on p-g-2, which is not what it ordered".to_owned()),
            "{violations:?}"
        );
        let shared = "i3 was launched for one job, but could serve another one";
        assert_eq!(edited("i3", |i| i.capacity = 2), shared);
        assert_eq!(edited("i3", |i| i.uses_left = None), shared);
        assert_eq!(edited("i3", |i| i.domain = None), shared);
    }

    #[test]
    fn each_broken_law_of_the_queue_is_named() {
        let next = |next| move |s: &mut PoolState| s.next_ticket = Ticket(next);
        let last = world(SOUND).state.next_ticket.0;
        assert_eq!(broken_by(next(last + 1)), "");
        assert_eq!(
            broken_by(next(last - 1)),
            format!("ticket {} was never issued, or issued twice", last - 1)
        );
        let moved = broken_by(|s| {
            let (ticket, waiting) = s.waiting.pop_last().unwrap();
            s.waiting.insert(Ticket(ticket.0 - 100.min(ticket.0)), waiting);
        });
        assert_eq!(moved, "a request is filed under `0`, which is not its own name");
        let reservation = |s: &mut PoolState, change: &dyn Fn(&mut Reservation)| {
            let mut entry = s.waiting.last_entry().unwrap();
            change(Arc::make_mut(entry.get_mut()));
        };
        let job = broken_by(|s| reservation(s, &|r| r.job.key.id = 7));
        assert_eq!(job, "two attempts of job 7 have a reservation or a grant");
        let server = broken_by(|s| reservation(s, &|r| r.job.key = JobKey::new("elsewhere", 7)));
        assert_eq!(server, "", "the same number of another GitLab is another job");
        let both = broken_by(|s| {
            reservation(s, &|r| {
                r.attempt = attempt(7);
                r.job.key.id = 7;
            });
        });
        assert_eq!(both, "a7 has two reservations or grants");
        let place = broken_by(|s| {
            let ticket = s.granted[&attempt(7)].reservation.ticket;
            let left = s.granted[&attempt(7)].reservation.requested_at;
            let patience = std::time::Duration::ZERO;
            s.places.insert(
                JobKey::new("gl", 99),
                crate::job::QueuePlace { ticket, ended_at: left, remaining_timeout: patience },
            );
        });
        assert!(place.contains("was never issued, or issued twice"), "{place}");
        let far_apart = broken_by(|s| {
            // A place whose ticket the filter cannot distinguish from one that waits.
            let ticket = Ticket(s.granted[&attempt(7)].reservation.ticket.0 + 4096);
            let left = s.granted[&attempt(7)].reservation.requested_at;
            let patience = std::time::Duration::ZERO;
            s.next_ticket = Ticket(ticket.0 + 1);
            s.places.insert(
                JobKey::new("gl", 99),
                crate::job::QueuePlace { ticket, ended_at: left, remaining_timeout: patience },
            );
        });
        assert_eq!(far_apart, "");
    }

    #[test]
    fn the_sieve_never_forgets_a_number() {
        let mut sieve = Sieve::default();
        for number in [0, 1, 63, 64, 4095, 5000, u64::MAX - 100] {
            assert!(!sieve.again(number), "{number}");
            assert!(sieve.again(number), "{number}");
        }
        assert!(sieve.again(4096), "it may err on the safe side");
    }
}
