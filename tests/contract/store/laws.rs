//! Laws: files and memory agree, and damage never counts as state.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, Location, OfferingName};
use greenroom_core::instance::{Answer, DrainReason, Release};
use greenroom_core::policy::{IdlePolicy, Lifetime, Policy};
use greenroom_core::pool::PoolState;
use greenroom_ports::store::{OperatorStore as _, Store, StoreError};
use greenroom_testkit::memory_store::MemoryStore;
use proptest::prelude::*;

use super::support::{at, block_on, commit, eager, file, history, open, request};

fn instance() -> impl Strategy<Value = InstanceId> {
    prop::sample::select(vec!["i1", "i2", "i3"]).prop_map(InstanceId::new)
}

fn attempt() -> impl Strategy<Value = AttemptName> {
    prop::sample::select(vec!["a1", "a2", "a3", "a4"]).prop_map(AttemptName::new)
}

/// Text with everything that JSON must escape.
fn words() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "plain", "new\nline", "quo\"te\\", "nul\0", "ünïcode 🚂", "{\"n\":1}"])
        .prop_map(str::to_owned)
}

fn policy(max: u32, factor: u32) -> Change {
    let idle = IdlePolicy {
        idle_count: max / 2,
        idle_time: Duration::from_mins(20),
        scale_factor: f64::from(factor) / 8.0,
        scale_factor_limit: 3,
    };
    let policy =
        Policy { max_instances: max, clean_unbinds: max.is_multiple_of(2), idle, ..Policy::default() };
    Change::PolicySet { policy: Arc::new(policy) }
}

fn launch() -> impl Strategy<Value = Change> {
    let intended = (instance(), 1..9u32).prop_map(|(instance, number)| Change::LaunchIntended {
        instance,
        generation: Generation::new("3f9a"),
        number,
        attempt: 1,
        capacity: 2,
        uses_left: (number % 2 == 0).then_some(3),
        offering: (number % 3 == 0).then(|| OfferingName::new("zone-b small spot")),
        location: (number % 2 == 0).then(|| Location::new("gce project shop")),
        lifetime: (number % 2 == 0).then_some(Lifetime(Duration::from_hours(24))),
        ordered: None,
    });
    let answered = (instance(), words(), 0..4u8).prop_map(|(instance, message, which)| {
        let (at, class) = (at(3), ErrorClass::NoCapacity { scope: message.clone() });
        let answer = match which {
            0 => Answer::Accepted { at },
            1 => Answer::Unknown { at },
            2 => Answer::Refused { at, failure: Failure { class, message } },
            _ => Answer::Refused {
                at,
                failure: Failure { class: ErrorClass::Throttled { until: Some(at) }, message },
            },
        };
        Change::LaunchAnswered { instance, attempt: 1, answer }
    });
    let reached = (instance(), words()).prop_map(|(instance, text)| {
        let endpoint = Endpoint {
            address: "::1".to_owned(),
            port: 22,
            user: text.clone(),
            host_key: text,
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        Change::Reached { instance, endpoint }
    });
    prop_oneof![intended, answered, reached, instance().prop_map(|instance| Change::BecameReady { instance })]
}

fn work() -> impl Strategy<Value = Change> {
    let requested = (0..4u64).prop_map(|i| request(&format!("a{}", i + 1), i).change);
    let granted =
        (attempt(), instance()).prop_map(|(attempt, instance)| Change::Granted { attempt, instance });
    let released = (attempt(), any::<bool>(), any::<bool>()).prop_map(|(attempt, used, closing)| {
        Change::Released { attempt, release: Release { how: End::CleanedUp, used, closing } }
    });
    prop_oneof![
        3 => requested,
        3 => granted,
        3 => released,
        1 => attempt().prop_map(|attempt| Change::Withdrawn { attempt, how: End::GivenBack }),
        1 => (attempt(), words()).prop_map(|(attempt, message)| Change::Rejected { attempt, message }),
        1 => attempt().prop_map(|attempt| Change::SlotFreed { attempt }),
    ]
}

fn end() -> impl Strategy<Value = Change> {
    prop_oneof![
        instance().prop_map(|instance| Change::CleaningBegun { instance }),
        instance().prop_map(|instance| Change::Cleaned { instance, images: Vec::new() }),
        (instance(), words()).prop_map(|(instance, reason)| Change::OutOfService { instance, reason }),
        (instance(), words()).prop_map(|(instance, message)| Change::DrainingBegun {
            instance,
            reason: DrainReason::Broken { message }
        }),
        instance().prop_map(|instance| Change::MissingFromList { instance, begun: at(1) }),
        instance().prop_map(|instance| Change::Forgotten { instance }),
        (1..20u32, 0..30u32).prop_map(|(max, factor)| policy(max, factor)),
        Just(Change::PoolDrained),
        Just(Change::PoolResumed),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let change = prop_oneof![4 => launch(), 6 => work(), 2 => end()];
    (change, 0..100_000u64).prop_map(|(change, ms)| change.at(at(ms)))
}

/// A step of a process on a store.
#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<Event>),
    Compact,
    Sync,
    /// The process exits; another one starts.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::vec(event(), 0..4).prop_map(Step::Commit),
        1 => Just(Step::Compact),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ]
}

/// Commits the steps to files, and returns the state after each transaction, the empty one first.
fn play(dir: &Path, steps: &[Step]) -> Vec<PoolState> {
    let (mut store, reference) = (open(dir, eager()), MemoryStore::new());
    let mut states = vec![PoolState::default()];
    block_on(async {
        for step in steps {
            match step {
                Step::Commit(events) => {
                    let done = commit(&store, events.clone()).await.unwrap();
                    let expected = commit(&reference, events.clone()).await.unwrap();
                    assert_eq!(done.state, expected.state);
                    if !events.is_empty() {
                        states.push(done.state);
                    }
                }
                Step::Compact => store.compact().await.unwrap(),
                Step::Sync => store.sync().await.unwrap(),
                Step::Reopen => store = open(dir, eager()),
            }
            assert_eq!(store.load().await.unwrap(), reference.load().await.unwrap());
        }
        let fresh = open(dir, eager());
        assert_eq!(fresh.load().await.unwrap(), reference.load().await.unwrap());
        assert_eq!(fresh.verify().await.unwrap().inapplicable_events, reference.inapplicable_events());
        let told: Vec<Event> = history(&fresh).map(|r| r.event).collect();
        assert_eq!(told, reference.events());
    });
    states
}

/// A kind of damage to a file.
#[derive(Debug, Clone)]
enum Hurt {
    Cut(prop::sample::Index),
    Flip(prop::sample::Index, u8),
    Zero(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
}

fn hurt() -> impl Strategy<Value = Hurt> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        3 => place().prop_map(Hurt::Cut),
        3 => (place(), 0..8u8).prop_map(|(at, bit)| Hurt::Flip(at, bit)),
        1 => (place(), 1..300usize).prop_map(|(at, length)| Hurt::Zero(at, length)),
        1 => (place(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Hurt::Insert(at, bytes)),
        1 => (place(), 1..300usize).prop_map(|(at, length)| Hurt::Remove(at, length)),
    ]
}

fn apply(hurt: &Hurt, bytes: &mut Vec<u8>) {
    let size = bytes.len();
    match hurt {
        Hurt::Cut(at) => bytes.truncate(at.index(size)),
        Hurt::Flip(at, bit) => bytes[at.index(size)] ^= 1 << bit,
        Hurt::Zero(at, length) => bytes[at.index(size)..].iter_mut().take(*length).for_each(|b| *b = 0),
        Hurt::Insert(at, more) => drop(bytes.splice(at.index(size)..at.index(size), more.iter().copied())),
        Hurt::Remove(at, length) => {
            let from = at.index(size);
            bytes.drain(from..size.min(from + length));
        }
    }
}

/// A damaged journal gives the state after some number of whole transactions, or is reported as damaged. It can always
/// be repaired into such a state.
fn judge(dir: &Path, states: &[PoolState], at_least: u64) {
    block_on(async {
        let store = open(dir, eager());
        let whole = |state: &PoolState| states.iter().any(|s| s == state && s.revision >= at_least);
        let journal = std::fs::read(file(dir, "journal.jsonl")).unwrap_or_default();
        match store.load().await {
            Ok(state) => assert!(whole(&state), "{state:#?} never was"),
            Err(StoreError::Damaged { file, .. }) => {
                assert!(file.contains("journal.jsonl") || file.contains("snapshot.json"), "{file}");
                commit(&store, vec![request("x", 1)]).await.unwrap_err();
                assert_eq!(std::fs::read(self::file(dir, "journal.jsonl")).unwrap_or_default(), journal);
                let repaired = store.repair().await.unwrap().unwrap();
                let state = store.load().await.unwrap();
                assert!(whole(&state), "{repaired:?}: {state:#?} never was");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(store.repair().await.unwrap().is_none());
        let before = store.load().await.unwrap();
        let next = commit(&store, vec![request("next", 1)]).await.unwrap().state;
        assert_eq!(next.revision, before.revision + 1);
        assert_eq!(open(dir, eager()).load().await.unwrap(), next);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn files_and_memory_hold_the_same_state_after_any_events(steps in prop::collection::vec(step(), 0..40)) {
        let home = tempfile::tempdir().unwrap();
        play(home.path(), &steps);
    }

    #[test]
    fn a_hurt_journal_gives_a_whole_prefix_or_says_that_it_is_damaged(
        steps in prop::collection::vec(step(), 1..20),
        more in prop::collection::vec(event(), 1..4),
        hurts in prop::collection::vec(hurt(), 1..3),
    ) {
        let home = tempfile::tempdir().unwrap();
        let steps = [steps, vec![Step::Commit(more)]].concat();
        let states = play(home.path(), &steps);
        let path = file(home.path(), "journal.jsonl");
        let mut bytes = std::fs::read(&path).unwrap();
        for hurt in &hurts {
            if !bytes.is_empty() {
                apply(hurt, &mut bytes);
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        judge(home.path(), &states, 0);
    }

    #[test]
    fn a_hurt_snapshot_is_never_read_and_can_be_rebuilt_without_a_loss(
        steps in prop::collection::vec(step(), 1..20),
        hurt in hurt(),
    ) {
        let home = tempfile::tempdir().unwrap();
        let steps = [vec![Step::Commit(vec![request("a1", 1)])], steps, vec![Step::Compact]].concat();
        let states = play(home.path(), &steps);
        let path = file(home.path(), "snapshot.json");
        let mut bytes = std::fs::read(&path).unwrap();
        let whole = bytes.clone();
        apply(&hurt, &mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let store = open(home.path(), eager());
        if bytes != whole {
            let error = block_on(store.load()).unwrap_err();
            prop_assert!(matches!(&error, StoreError::Damaged { file, .. } if file.ends_with("snapshot.json")), "{}", error);
        }
        // Every transaction is still in a kept segment: nothing is lost.
        judge(home.path(), &states, states.last().unwrap().revision);
    }
}

/// Every bit of a small journal is flipped, and every length tried: this test draws no samples.
#[test]
fn every_single_cut_and_bit_flip_of_a_journal_is_survived() {
    let home = tempfile::tempdir().unwrap();
    let events = |i| vec![request(&format!("a{i}"), i)];
    let steps: Vec<Step> = (0..3).map(|i| Step::Commit(events(i))).collect();
    let states = play(home.path(), &steps);
    let path = file(home.path(), "journal.jsonl");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = 0;
    for change in 0..whole.len() * 9 {
        let (byte, bit) = (change / 9, change % 9);
        let mut bytes = whole.clone();
        if bit == 8 {
            bytes.truncate(byte);
        } else {
            bytes[byte] ^= 1 << bit;
        }
        std::fs::write(&path, &bytes).unwrap();
        match block_on(open(home.path(), eager()).load()) {
            Ok(state) => assert!(states.contains(&state), "byte {byte}, bit {bit}: {state:#?}"),
            Err(StoreError::Damaged { line, .. }) => {
                let expected = whole[..byte].split(|b| *b == b'\n').count();
                assert_eq!(line, expected as u64, "byte {byte}, bit {bit}");
                damaged += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(damaged > whole.len(), "flips before the last record are seen: {damaged}");
}
