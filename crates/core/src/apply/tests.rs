//! Every event's effect, each inapplicable event, and the laws.

mod laws;

use std::time::Duration;

use super::*;
use crate::attempt::End;
use crate::notation::{NOW, World, ago, attempt, endpoint, facts, failure, generation, instance, world};
use crate::policy::Policy;
use crate::unbegun::CheckKind;

const MINUTE: Duration = Duration::from_mins(1);

/// Applies one change to a world now; returns the message of an inapplicable event, or nothing.
fn after(world: &mut World, change: Change) -> String {
    let before = world.state.clone();
    let answer = world.state.apply(&change.at(NOW));
    assert_eq!(world.state.revision, before.revision + 1);
    if answer.is_err() {
        world.state.revision = before.revision;
        assert_eq!(world.state, before, "a misfit leaves no trace");
    }
    answer.err().map_or_else(String::new, |misfit| misfit.0.to_owned())
}

/// The message of one inapplicable change to the world of a line.
fn misfit(text: &str, change: Change) -> String {
    after(&mut world(text), change)
}

fn known<'a>(world: &'a World, short: &str) -> &'a Instance {
    world.state.instance(&instance(short)).expect("it is recorded")
}

fn requested(job: u64, name: u64) -> Change {
    let job = facts(job, "a", MINUTE * 60);
    let domain = world("").policy.domain_of(&job);
    Change::Requested { attempt: attempt(name), job, domain, acquire_timeout: MINUTE * 30 }
}

fn granted(job: u64, short: &str) -> Change {
    Change::Granted { attempt: attempt(job), instance: instance(short) }
}

fn released(job: u64, used: bool, closing: bool) -> Change {
    Change::Released { attempt: attempt(job), release: Release { how: End::CleanedUp, used, closing } }
}

fn intended(short: &str, number: u32, tries: u32) -> Change {
    Change::LaunchIntended {
        instance: instance(short),
        generation: generation(),
        number,
        attempt: tries,
        capacity: 3,
        uses_left: Some(9),
        offering: None,
        location: None,
        lifetime: None,
        ordered: None,
    }
}

fn answered(short: &str, tries: u32, answer: Answer) -> Change {
    Change::LaunchAnswered { instance: instance(short), attempt: tries, answer }
}

fn draining(short: &str, why: DrainReason) -> Change {
    Change::DrainingBegun { instance: instance(short), reason: why }
}

#[test]
fn a_launch_is_recorded_with_its_number_and_its_moment() {
    let mut world = world("");
    assert_eq!(after(&mut world, intended("i7", 7, 1)), "");
    let launched = known(&world, "i7");
    assert_eq!((launched.phase.word(), launched.capacity, launched.uses_left), ("launching", 3, Some(9)));
    assert_eq!(launched.launch.as_ref().unwrap().answer, Answer::Pending);
    assert_eq!(world.state.generations[&generation()], 7);
    assert_eq!(world.state.launches.recent, [NOW]);
    assert_eq!(after(&mut world, intended("i3", 3, 1)), "");
    assert_eq!(world.state.generations[&generation()], 7, "the highest number stays");
}

#[test]
fn launches_older_than_a_minute_do_not_count_for_the_rate() {
    let mut world = world("");
    world.state.launches.recent = vec![ago(MINUTE), ago(MINUTE / 2)];
    after(&mut world, intended("i1", 1, 1));
    assert_eq!(world.state.launches.recent, [ago(MINUTE / 2), NOW]);
}

#[test]
fn only_a_refused_launch_is_tried_anew_and_begins_from_the_beginning() {
    let anew = "only a refused launch is repeated, as the next attempt";
    for text in ["requested 5s", "booting 5s", "idle 5m", "draining 5s"] {
        assert_eq!(misfit(text, intended("i1", 1, 2)), anew, "{text}");
    }
    assert_eq!(misfit("refused 5m", intended("i1", 1, 1)), anew);
    let mut world = world("refused 5m");
    assert_eq!(after(&mut world, intended("i1", 1, 2)), "");
    let again = known(&world, "i1");
    assert_eq!((again.created, again.since, again.capacity, again.uses_left), (NOW, NOW, 3, Some(9)));
    assert_eq!(again.launch.as_ref().map(|l| (l.attempt, l.requested_at)), Some((2, NOW)));
}

#[test]
fn an_answer_belongs_to_its_attempt_and_a_refusal_counts() {
    let accepted = || Answer::Accepted { at: NOW };
    assert_eq!(
        misfit("requested 5s", answered("i1", 2, accepted())),
        "the answer is to another attempt to launch"
    );
    assert_eq!(misfit("", answered("i1", 1, accepted())), "no such instance");
    assert_eq!(misfit("static idle 5m", answered("h1", 1, accepted())), "a static host is not launched");
    let mut world = world("requested 5s");
    assert_eq!(after(&mut world, answered("i1", 1, Answer::Unknown { at: NOW })), "");
    assert_eq!(world.state.launches.failures, 0);
    let refusal = Answer::Refused { at: NOW, failure: failure(ErrorClass::Quota) };
    after(&mut world, answered("i1", 1, refusal));
    assert!(known(&world, "i1").is_refused());
    assert_eq!(world.state.launches.failures, 1);
    assert_eq!(world.state.launches.last, Some((NOW, failure(ErrorClass::Quota))));
}

#[test]
fn launches_that_are_refused_together_are_one_failure() {
    let throttled = || failure(ErrorClass::Throttled { until: None });
    // Requested five seconds ago; the last failure: the row before it, and its age.
    for (row, age, then) in [(0, 1, 1), (0, 9, 1), (2, 1, 2), (2, 4, 2), (2, 5, 2), (2, 6, 3), (4, 60, 5)] {
        let mut world = world("requested 5s");
        world.state.launches.failures = row;
        world.state.launches.last = Some((ago(Duration::from_secs(age)), failure(ErrorClass::Quota)));
        after(&mut world, answered("i1", 1, Answer::Refused { at: NOW, failure: throttled() }));
        let health = &world.state.launches;
        assert_eq!(health.failures, then, "{row} in a row, {age} s ago");
        assert_eq!(health.last, Some((NOW, throttled())), "the pause begins anew");
    }
}

#[test]
fn reaching_an_instance_answers_an_unanswered_launch() {
    for (text, at) in
        [("requested 5s", NOW), ("unknown 5s", NOW), ("booting 5s", ago(Duration::from_secs(4)))]
    {
        let mut world = world(text);
        assert_eq!(after(&mut world, Change::Reached { instance: instance("i1"), endpoint: endpoint() }), "");
        let reached = known(&world, "i1");
        assert_eq!(reached.phase, Phase::Checking);
        assert_eq!(reached.since, NOW);
        assert_eq!(reached.endpoint, Some(endpoint()));
        assert_eq!(reached.launch.as_ref().unwrap().answer, Answer::Accepted { at }, "{text}");
    }
    let again = |short| Change::Reached { instance: instance(short), endpoint: endpoint() };
    for text in ["idle 5m", "checking 5s", "refused 5s", "draining 5s"] {
        assert_eq!(misfit(text, again("i1")), WRONG_PHASE.0, "{text}");
    }
    assert_eq!(misfit("static out-of-service 5m", again("h1")), WRONG_PHASE.0);
}

#[test]
fn what_becomes_ready_ends_a_row_of_failures_and_says_how_long_a_boot_takes() {
    let mut world = world("failures 3 5s | checking 26s");
    assert_eq!(after(&mut world, Change::BecameReady { instance: instance("i1") }), "");
    assert_eq!(known(&world, "i1").ready, Some(NOW));
    assert_eq!(world.state.launches.failures, 0);
    // Requested half a minute before it was reached.
    assert_eq!(world.state.launches.boot_ms, [56_000]);
    assert_eq!(misfit("idle 5m", Change::BecameReady { instance: instance("i1") }), WRONG_PHASE.0);
    assert_eq!(misfit("static cleaning 5m", Change::BecameReady { instance: instance("h1") }), WRONG_PHASE.0);
    assert_eq!(misfit("", Change::BecameReady { instance: instance("i1") }), NO_INSTANCE.0);
}

#[test]
fn the_last_nine_boots_are_remembered_and_their_median_is_usual() {
    let mut world = world("checking 26s; static checking 1s");
    assert_eq!(world.state.launches.usual_boot(), None);
    world.state.launches.boot_ms = vec![1, 9, 8, 7, 6, 5, 4, 3, 2];
    after(&mut world, Change::BecameReady { instance: instance("i1") });
    assert_eq!(world.state.launches.boot_ms, [9, 8, 7, 6, 5, 4, 3, 2, 56_000]);
    assert_eq!(world.state.launches.usual_boot(), Some(Duration::from_millis(6)));
    after(&mut world, Change::BecameReady { instance: instance("h1") });
    assert_eq!(world.state.launches.boot_ms.len(), 9, "a host does not boot for us");
}

#[test]
fn a_host_is_adopted_once_and_checked_first() {
    let adopted =
        || Change::Adopted { instance: instance("h1"), endpoint: endpoint(), capacity: 2, uses_left: None };
    let mut world = world("");
    assert_eq!(after(&mut world, adopted()), "");
    let host = known(&world, "h1");
    assert!(host.is_static());
    assert_eq!((host.phase.word(), host.capacity, host.endpoint.is_some()), ("checking", 2, true));
    assert_eq!(after(&mut world, adopted()), "the instance is already recorded");
}

#[test]
fn a_host_that_returns_is_as_it_was_and_cleaned_before_its_next_job() {
    let adopted = |name: &str, endpoint| Change::Adopted {
        instance: instance(name),
        endpoint,
        capacity: 2,
        uses_left: None,
    };
    let elsewhere = || Endpoint { address: "elsewhere".into(), host_key: "other".into(), ..endpoint() };
    // Under its name at another address, and under another name at its endpoint.
    for (name, endpoint) in [("h1", elsewhere()), ("h2", endpoint())] {
        let mut world = world("bound | static idle 2m of b");
        assert_eq!(after(&mut world, Change::Forgotten { instance: instance("h1") }), "");
        assert!(world.state.instances.is_empty());
        assert_eq!(after(&mut world, adopted(name, endpoint)), "");
        let host = known(&world, name);
        assert_eq!(host.phase.word(), "cleaning");
        assert!(host.is_bound_by_use() && !host.admits(&TrustDomain::new("another")));
        assert!(world.state.former_hosts.is_empty());
    }
    // Another machine with another name is new.
    let mut other = world("bound | static idle 2m of b");
    assert_eq!(after(&mut other, Change::Forgotten { instance: instance("h1") }), "");
    assert_eq!(after(&mut other, adopted("h2", elsewhere())), "");
    assert_eq!((known(&other, "h2").phase.word(), &known(&other, "h2").domain), ("checking", &None));
    // One that has been ready and no longer responds has what its jobs left; a new one has nothing.
    let mut silent = world("bound | static idle 2m of b");
    let unreachable = Change::BecameUnreachable { instance: instance("h1"), reason: String::new() };
    assert_eq!(after(&mut silent, unreachable), "");
    assert_eq!(after(&mut silent, Change::Forgotten { instance: instance("h1") }), "");
    assert_eq!(after(&mut silent, adopted("h1", endpoint())), "");
    assert_eq!(known(&silent, "h1").phase.word(), "cleaning");
    let mut new = world("static checking 5s");
    assert_eq!(after(&mut new, Change::Forgotten { instance: instance("h1") }), "");
    assert!(new.state.former_hosts.is_empty());
    // A host that no cleaning has made fit to serve does not become so by a change of the file.
    let mut broken = world("static out-of-service 1h");
    assert_eq!(after(&mut broken, Change::Forgotten { instance: instance("h1") }), "");
    assert_eq!(after(&mut broken, adopted("h1", endpoint())), "");
    assert_eq!(known(&broken, "h1").phase.word(), "out of service");
}

#[test]
fn a_request_gets_the_next_ticket_and_waits_once() {
    let mut world = world("waits 7");
    assert_eq!(after(&mut world, requested(8, 8)), "");
    let tickets: Vec<_> = world.state.waiting.values().map(|r| (r.ticket.0, r.job.key.id)).collect();
    assert_eq!(tickets, [(1, 7), (2, 8)]);
    assert_eq!(world.state.next_ticket, Ticket(3));
    assert_eq!(after(&mut world, requested(8, 8)), "the attempt already has a reservation");
    let other = "another attempt of the job has a reservation or a grant";
    assert_eq!(after(&mut world, requested(8, 9)), other);
    assert_eq!(misfit("held 5m by 7", requested(7, 7)), "the attempt already has a reservation");
    assert_eq!(misfit("held 5m by 7", requested(7, 9)), other);
}

#[test]
fn a_job_keeps_its_place_and_what_is_left_of_its_patience_for_five_minutes() {
    let withdrawn = || Change::Withdrawn { attempt: attempt(7), how: End::GivenBack };
    let mut world = world("waits 7 10m; waits 8 9m");
    assert_eq!(after(&mut world, withdrawn()), "");
    assert_eq!(after(&mut world, withdrawn()), "the attempt is not waiting");
    for (later, ticket, patience) in [(0, 1, 20), (299, 1, 20), (300, 3, 30)] {
        let mut retried = world.clone();
        let at = NOW.plus(Duration::from_secs(later));
        retried.tell(at, requested(7, 9));
        let reservation = retried.state.waiting_for(&attempt(9)).unwrap();
        assert_eq!(reservation.ticket, Ticket(ticket), "after {later} s");
        assert_eq!(reservation.remaining_timeout, MINUTE * patience, "after {later} s");
        assert_eq!(reservation.requested_at, at);
        assert!(retried.state.places.is_empty(), "taken, or forgotten");
        assert_eq!(retried.state.next_ticket, Ticket(3.max(ticket + 1)));
    }
}

#[test]
fn a_place_is_never_worth_more_patience_than_the_policy_gives_now() {
    let mut world = world("waits 7 10m");
    after(&mut world, Change::Withdrawn { attempt: attempt(7), how: End::GivenBack });
    let Change::Requested { attempt, job, domain, .. } = requested(7, 9) else { unreachable!() };
    let short = Change::Requested { attempt, job, domain, acquire_timeout: MINUTE };
    world.tell(NOW, short);
    assert_eq!(world.state.waiting.values().next().unwrap().remaining_timeout, MINUTE);
    let spent = Change::Withdrawn { attempt: crate::notation::attempt(9), how: End::GivenBack };
    world.tell(NOW.plus(MINUTE * 2), spent);
    assert_eq!(world.state.places.values().next().unwrap().remaining_timeout, Duration::ZERO);
}

#[test]
fn a_grant_costs_a_slot_and_a_use_and_binds() {
    let mut world = world("cap 2, uses 5 | idle 5m; waits 8");
    assert_eq!(after(&mut world, granted(8, "i1")), "");
    let taken = known(&world, "i1");
    assert_eq!((taken.usable(), taken.uses_left, taken.uses), (1, Some(4), 0));
    assert_eq!(taken.domain, Some(world.policy.domain_of(&facts(8, "a", MINUTE))));
    assert_eq!(taken.holders[&attempt(8)].granted, NOW);
    assert!(world.state.waiting.is_empty());
    assert_eq!(world.state.granted[&attempt(8)].instance, instance("i1"));
    assert_eq!(world.state.in_use(), 1);
}

#[test]
fn nothing_is_granted_without_room_trust_or_request() {
    let room = "the instance has no free slot";
    let waits = |text: &str| misfit(&format!("{text}; waits 8"), granted(8, "i1"));
    assert_eq!(waits("held 5m by 7"), room);
    assert_eq!(waits("cap 2 | idle 5m uses 0"), room);
    for phase in ["requested 5s", "booting 5s", "checking 5s", "draining 5s"] {
        assert_eq!(waits(phase), room, "{phase}");
    }
    for phase in ["checking 5s", "cleaning 5s", "out-of-service 5s"] {
        assert_eq!(misfit(&format!("static {phase}; waits 8"), granted(8, "h1")), room, "{phase}");
    }
    assert_eq!(waits("idle 5m of b"), "the instance belongs to another trust domain");
    assert_eq!(waits("idle 5m of a"), "");
    assert_eq!(misfit("waits 8", granted(8, "i1")), NO_INSTANCE.0);
    assert_eq!(misfit("idle 5m", granted(8, "i1")), NOT_WAITING.0);
    assert_eq!(misfit("cap 2 | held 5m by 8", granted(8, "i1")), NOT_WAITING.0);
}

#[test]
fn a_used_grant_costs_its_use_an_unused_one_costs_nothing() {
    let leave = |used, closing| {
        let mut world = world("uses 4 | held 5m by 7");
        assert_eq!(known(&world, "i1").uses_left, Some(4));
        assert_eq!(after(&mut world, released(7, used, closing)), "");
        assert!(world.state.granted.is_empty());
        let left = known(&world, "i1");
        let place = world.state.places.contains_key(&crate::ids::JobKey::new("gl", 7));
        (left.uses_left, left.uses, left.released.is_some(), left.domain.is_some(), left.holders.len(), place)
    };
    assert_eq!(leave(true, false), (Some(4), 1, true, true, 0, false));
    assert_eq!(leave(false, false), (Some(5), 0, false, false, 0, true));
    assert_eq!(leave(true, true), (Some(4), 1, true, true, 1, false));
    // A call that still runs may yet use it: counts as used, to be safe.
    assert_eq!(leave(false, true), (Some(4), 1, true, true, 1, true));
    assert_eq!(misfit("idle 5m", released(7, true, false)), NO_GRANT.0);
    assert_eq!(misfit("waits 7", released(7, true, false)), NO_GRANT.0);
}

#[test]
fn an_instance_is_unbound_only_while_nobody_has_used_it() {
    let domain_after = |text: &str, change: Change| {
        let mut world = world(text);
        assert_eq!(after(&mut world, change), "", "{text}");
        world.state.instances.values().next().unwrap().domain.is_some()
    };
    assert!(domain_after("cap 2 | held 5m by 6,7", released(7, false, false)), "another job is on it");
    assert!(domain_after("held 5m by 7 of a", released(7, false, false)), "one has used it before");
    assert!(!domain_after("held 5m by 7", released(7, false, false)));
    assert!(!domain_after("cap 2 | static held 5m by 7", released(7, false, false)));
}

#[test]
fn a_cleaned_host_is_nobodys_again_also_after_a_grant_given_back_unused() {
    let cleaned = |text: &str| {
        let mut world = world(text);
        world.tell(NOW, Change::CleaningBegun { instance: instance("h1") });
        assert_eq!(after(&mut world, Change::Cleaned { instance: instance("h1"), images: Vec::new() }), "");
        assert_eq!(known(&world, "h1").ready, Some(NOW));
        world
    };
    assert!(cleaned("bound | static idle 5m of a").state.instances[&instance("h1")].domain.is_some());
    let mut world = cleaned("static idle 5m of a");
    assert_eq!(known(&world, "h1").domain, None);
    let at = NOW.plus(MINUTE);
    world.tell(at, requested(8, 8));
    world.tell(at, granted(8, "h1"));
    assert!(known(&world, "h1").domain.is_some());
    world.tell(at, released(8, false, false));
    assert_eq!(known(&world, "h1").domain, None, "nobody has used it since the clean");
    assert_eq!(known(&world, "h1").uses, 1);
}

#[test]
fn a_cleaned_host_is_not_used_up() {
    let mut world = world("uses 2 | static idle 5m of a uses 0");
    assert!(known(&world, "h1").is_used_up());
    world.tell(NOW, Change::CleaningBegun { instance: instance("h1") });
    world.tell(NOW, Change::Cleaned { instance: instance("h1"), images: Vec::new() });
    assert_eq!(known(&world, "h1").uses_left, Some(2));
    assert_eq!(
        misfit("static idle 5m", Change::Cleaned { instance: instance("h1"), images: Vec::new() }),
        WRONG_PHASE.0
    );
}

#[test]
fn a_closing_attempt_keeps_its_slot_until_it_departs() {
    let departed = || Change::SlotFreed { attempt: attempt(7) };
    let mut world = world("cap 2 | held 5s by 6 closing 7");
    assert_eq!(known(&world, "i1").free_slots(), 0);
    assert_eq!(after(&mut world, departed()), "");
    assert_eq!((known(&world, "i1").free_slots(), known(&world, "i1").usable()), (1, 0), "not checked yet");
    assert_eq!(known(&world, "i1").released, Some(NOW), "its last call has just exited");
    assert_eq!(after(&mut world, departed()), "no closing attempt has that name");
    assert_eq!(misfit("held 5m by 7", departed()), "no closing attempt has that name");
}

#[test]
fn a_rejected_job_waits_again_at_its_old_place() {
    let rejected = || Change::Rejected { attempt: attempt(7), message: "no answer".into() };
    let mut world = world("uses 4 | held 5m by 7; waits 8");
    let before = world.state.granted[&attempt(7)].reservation.clone();
    assert_eq!(after(&mut world, rejected()), "");
    assert_eq!(world.state.waiting.values().next(), Some(&before), "before job 8, with the same patience");
    assert_eq!(known(&world, "i1").uses_left, Some(5));
    assert_eq!(known(&world, "i1").domain, None);
    assert_eq!(after(&mut world, rejected()), NO_GRANT.0);
}

#[test]
fn a_host_is_not_cleaned_or_brought_back_under_a_job() {
    let begun = Change::CleaningBegun { instance: instance("h1") };
    assert_eq!(misfit("static held 5m by 7", begun.clone()), HELD.0);
    assert_eq!(misfit("static held 5s closing 7", begun.clone()), HELD.0);
    assert_eq!(misfit("static out-of-service 5s", begun), "");
    let restored = || Change::ReturnedToService { instance: instance("h1") };
    assert_eq!(misfit("static out-of-service 5m by 7", restored()), HELD.0);
    assert_eq!(misfit("static idle 5m", restored()), WRONG_PHASE.0);
    let launched = Change::ReturnedToService { instance: instance("i1") };
    assert_eq!(misfit("booting 5s", launched), WRONG_PHASE.0, "not a way round the first check");
    for (text, phase) in
        [("static out-of-service 5m", "checking"), ("static out-of-service 5m of a", "cleaning")]
    {
        let mut world = world(text);
        assert_eq!(after(&mut world, restored()), "");
        assert_eq!(known(&world, "h1").phase.word(), phase, "{text}");
    }
}

#[test]
fn an_operator_unbinds_only_an_empty_static_host_which_is_then_cleaned() {
    let unbound = || Change::Unbound { instance: instance("h1") };
    assert_eq!(misfit("static held 5m by 7", unbound()), HELD.0);
    assert_eq!(misfit("static held 5s closing 7", unbound()), HELD.0);
    assert_eq!(misfit("static idle 5m", unbound()), "the host is bound to no trust domain");
    let launched = Change::Unbound { instance: instance("i1") };
    assert_eq!(misfit("idle 5m of a", launched), "the instance is not a static host");
    for (phase, then) in
        [("idle", "cleaning"), ("cleaning", "cleaning"), ("out-of-service", "out of service")]
    {
        let mut world = world(&format!("bound | static {phase} 5m of a"));
        assert_eq!(after(&mut world, unbound()), "", "{phase}");
        let host = known(&world, "h1");
        let unbinding = (host.phase.word(), host.domain.clone(), host.released);
        assert_eq!(unbinding, (then, None, None), "{phase}");
    }
    // A grant that is given back unused does not bind it again.
    let mut world = world("bound | static cleaning 5m of a");
    world.tell(NOW, unbound());
    world.tell(NOW, Change::Cleaned { instance: instance("h1"), images: Vec::new() });
    world.tell(NOW, requested(8, 8));
    world.tell(NOW, granted(8, "h1"));
    assert!(!known(&world, "h1").is_bound_by_use());
    world.tell(NOW, released(8, false, false));
    assert_eq!(known(&world, "h1").domain, None);
}

#[test]
fn only_what_is_on_its_way_out_is_forgotten() {
    let forget = |text: &str| misfit(text, Change::Forgotten { instance: instance("i1") });
    for text in ["draining 5s", "refused 5s"] {
        assert_eq!(forget(text), "", "{text}");
    }
    for text in ["requested 5s", "unknown 5s", "booting 5s", "checking 5s", "idle 5m"] {
        assert_eq!(forget(text), WRONG_PHASE.0, "{text}");
    }
    assert_eq!(forget("draining 5s by 7"), HELD.0);
    assert_eq!(forget("draining 5s closing 7"), "");
    assert_eq!(forget(""), NO_INSTANCE.0);
    let host = |text: &str| misfit(text, Change::Forgotten { instance: instance("h1") });
    assert_eq!(host("static idle 5m"), "", "a host that is gone from the list cannot be drained");
    assert_eq!(host("static held 5m by 7"), HELD.0);
}

#[test]
fn a_drained_instance_takes_no_more_jobs_and_a_host_is_never_drained() {
    let mut world = world("cap 2 | held 5m by 7");
    assert_eq!(after(&mut world, draining("i1", DrainReason::ByOperator)), "");
    let drained = known(&world, "i1");
    assert_eq!((drained.usable(), drained.holders.len(), drained.since), (0, 1, NOW));
    assert_eq!(after(&mut world, draining("i1", DrainReason::ByOperator)), WRONG_PHASE.0);
    assert_eq!(
        misfit("static idle 5m", draining("h1", DrainReason::ByOperator)),
        "a static host cannot be terminated"
    );
    assert_eq!(misfit("", draining("i1", DrainReason::ByOperator)), NO_INSTANCE.0);
}

#[test]
fn an_instance_that_dies_while_booting_is_a_failed_launch() {
    let failures = |text: &str, why: &DrainReason| {
        let mut world = world(text);
        world.tell(NOW, draining("i1", why.clone()));
        world.state.launches.failures
    };
    let message = || "no".to_owned();
    for (why, counts) in [
        (DrainReason::NeverReady, 1),
        (DrainReason::NotReady { message: message() }, 1),
        (DrainReason::Stopped, 1),
        (DrainReason::Vanished, 1),
        (DrainReason::UsedUp, 0),
        (DrainReason::Surplus, 0),
        (DrainReason::Expired, 0),
        (DrainReason::MadeRoom, 0),
        (DrainReason::ByOperator, 0),
        (DrainReason::Broken { message: message() }, 0),
        (DrainReason::Rebooted, 0),
        (DrainReason::Unaccounted, 0),
        (DrainReason::LaunchedAfterRefusal, 0),
        (DrainReason::BeginsNoStage { message: message() }, 0),
        (DrainReason::FailedCheck { message: message() }, 0),
        (DrainReason::Unfit { message: message() }, 0),
        (DrainReason::FailsEarly { message: message() }, 0),
        (DrainReason::NotSuspended { message: message() }, 0),
        (DrainReason::NotResumed { message: message() }, 0),
    ] {
        assert_eq!(failures("booting 5s", &why), counts, "{why}");
        assert_eq!(failures("checking 5s", &why), counts, "{why}");
        assert_eq!(failures("idle 5m", &why), 0, "{why}: it had been ready");
    }
    let mut world = world("booting 5s");
    world.tell(NOW, draining("i1", DrainReason::NeverReady));
    let (at, failure) = world.state.launches.last.unwrap();
    assert_eq!((at, failure.class), (NOW, ErrorClass::Transient));
    assert!(failure.message.contains("not ready within"), "{}", failure.message);
}

#[test]
fn an_instance_is_suspended_and_resumed_step_by_step() {
    let id = || instance("i1");
    let suspend = Change::SuspendIntended { instance: id() };
    let stop = Change::Suspended { instance: id() };
    let resume = Change::ResumeIntended { instance: id() };
    let ready = Change::BecameReady { instance: id() };
    let mut one = world("idle 5m");
    assert_eq!(after(&mut one, stop.clone()), WRONG_PHASE.0);
    assert_eq!(after(&mut one, suspend.clone()), "");
    assert_eq!((known(&one, "i1").phase.word(), known(&one, "i1").endpoint.clone()), ("suspending", None));
    assert_eq!(after(&mut one, resume.clone()), WRONG_PHASE.0);
    assert_eq!(after(&mut one, stop), "");
    assert_eq!(after(&mut one, resume), "");
    assert_eq!(known(&one, "i1").resumed, Some(NOW));
    assert_eq!(after(&mut one, ready.clone()), WRONG_PHASE.0, "it has not been reached");
    let reached = Change::Reached { instance: id(), endpoint: endpoint() };
    assert_eq!(after(&mut one, reached), "");
    assert_eq!(known(&one, "i1").phase.word(), "resuming");
    let boots = one.state.launches.boot_ms.clone();
    assert_eq!(after(&mut one, ready), "");
    assert_eq!(known(&one, "i1").phase, Phase::Ready);
    assert_eq!(one.state.launches.boot_ms, boots, "a resume is no boot");
    assert_eq!(misfit("held 5m by 7", suspend), HELD.0);
    assert_eq!(misfit("static idle 5m", Change::SuspendIntended { instance: instance("h1") }), STATIC.0);
}

#[test]
fn failures_of_suspensions_count_until_one_is_ready_again() {
    let failures = |text: &str, why: DrainReason| {
        let mut world = world(text);
        world.tell(NOW, draining("i1", why));
        world.state.suspensions.failures
    };
    let message = || "no".to_owned();
    assert_eq!(failures("suspending 5s", DrainReason::NotSuspended { message: message() }), 1);
    assert_eq!(failures("resuming 5s", DrainReason::NotResumed { message: message() }), 1);
    assert_eq!(failures("resuming 5s", DrainReason::NotReady { message: message() }), 1);
    assert_eq!(failures("resuming 5s", DrainReason::Vanished), 0);
    assert_eq!(failures("stopped 5s", DrainReason::Surplus), 0);
    let mut one = world("unsuspended 3 5s | resuming 5s");
    one.tell(NOW, Change::Reached { instance: instance("i1"), endpoint: endpoint() });
    one.tell(NOW, Change::BecameReady { instance: instance("i1") });
    assert_eq!(one.state.suspensions.failures, 0);
    let mut one = world("unsuspended 3 5s | ");
    one.tell(NOW, Change::PoolResumed);
    assert_eq!(one.state.suspensions.failures, 0);
}

#[test]
fn setting_aside_keeps_the_reason_and_the_jobs() {
    let mut world = world("static held 5m by 7");
    let aside = Change::OutOfService { instance: instance("h1"), reason: "smoke".into() };
    assert_eq!(after(&mut world, aside.clone()), "");
    assert_eq!(known(&world, "h1").phase, Phase::OutOfService { reason: "smoke".into() });
    assert_eq!(known(&world, "h1").holders.len(), 1);
    assert_eq!(after(&mut world, aside), WRONG_PHASE.0);
}

#[test]
fn jobs_whose_stages_did_not_begin_are_counted_until_one_begins() {
    let mut world = world("cap 3 | idle 5m; held 5m by 7,8; static out-of-service 5m of b unbegun");
    let kind = CheckKind::Stages;
    let met = |job| Change::StageNotBegun { attempt: attempt(job), reason: "exit status 97".into(), kind };
    assert_eq!(after(&mut world, met(9)), NO_GRANT.0);
    assert_eq!(
        after(&mut world, Change::StageBegun { instance: instance("i2"), kind }),
        "stages begin there anyway"
    );
    assert_eq!(after(&mut world, met(7)), "");
    assert_eq!(after(&mut world, met(7)), "the job has been counted");
    assert_eq!(known(&world, "i2").usable(), 1);
    assert_eq!(after(&mut world, met(8)), "");
    assert_eq!(known(&world, "i2").usable(), 0, "a stage has to begin first");
    assert_eq!(after(&mut world, Change::StageBegun { instance: instance("i2"), kind }), "");
    assert_eq!(known(&world, "i2").usable(), 1);
    assert!(known(&world, "h1").unbegun.is_some());
    assert_eq!(after(&mut world, Change::ReturnedToService { instance: instance("h1") }), "");
    assert_eq!(known(&world, "h1").unbegun, None, "the operator has seen to it");
}

#[test]
fn what_goes_missing_is_remembered_until_it_is_seen() {
    let mut world = world("idle 5m");
    let begun = ago(MINUTE);
    assert_eq!(after(&mut world, Change::MissingFromList { instance: instance("i1"), begun }), "");
    assert_eq!(known(&world, "i1").missing, Some(begun));
    assert_eq!(after(&mut world, Change::ListedAgain { instance: instance("i1") }), "");
    assert_eq!(known(&world, "i1").missing, None);
    assert_eq!(misfit("", Change::ListedAgain { instance: instance("i1") }), NO_INSTANCE.0);
    assert_eq!(misfit("", Change::MissingFromList { instance: instance("i1"), begun }), NO_INSTANCE.0);
}

#[test]
fn what_was_missing_before_a_launch_call_is_not_missing_after_it() {
    for (answer, is_missing) in [
        (Answer::Accepted { at: NOW }, false),
        (Answer::Unknown { at: NOW }, false),
        (Answer::Refused { at: NOW, failure: failure(ErrorClass::Quota) }, true),
    ] {
        let mut world = world("requested 40s");
        after(&mut world, Change::MissingFromList { instance: instance("i1"), begun: ago(MINUTE) });
        assert_eq!(after(&mut world, answered("i1", 1, answer)), "");
        assert_eq!(known(&world, "i1").missing.is_some(), is_missing);
    }
}

#[test]
fn the_operators_orders_stand_until_they_are_lifted() {
    let mut world = world("failures 5 1s |");
    after(&mut world, Change::PoolDrained);
    assert_eq!(world.state.drained, Some(NOW));
    after(&mut world, Change::PoolResumed);
    assert_eq!(world.state.drained, None);
    assert_eq!(world.state.launches.failures, 0, "a pause after failures ends, too");
}

#[test]
fn policies_and_generations_are_recorded() {
    let mut world = world("");
    let policy = Arc::new(Policy { max_instances: 99, ..world.policy.clone() });
    after(&mut world, Change::PolicySet { policy: Arc::clone(&policy) });
    assert_eq!(world.state.policy, Some(policy));
    let begin =
        |generation: &str| Change::GenerationBegun { generation: crate::ids::Generation::new(generation) };
    after(&mut world, intended("i4", 4, 1));
    after(&mut world, begin("g"));
    after(&mut world, begin("h"));
    let numbers: Vec<_> = world.state.generations.iter().map(|(g, n)| (g.as_str(), *n)).collect();
    assert_eq!(numbers, [("g", 4), ("h", 0)], "a generation that began again keeps its numbers");
}
