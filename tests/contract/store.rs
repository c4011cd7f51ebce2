//! The contract of `port::store`.
//!
//! `suite` runs for the reference in memory and for the files; modules of their own cover what only files can do.

#![expect(clippy::unwrap_used, clippy::panic, reason = "in tests a failure is a panic")]

mod concurrency;
mod damage;
mod errors;
mod figures;
mod helper;
mod jobs;
mod kill;
mod laws;
mod places;
mod support;

use std::cell::Cell;

use greenroom_core::pool::PoolState;
use greenroom_manager::file_store::{Options, open_dir};
use greenroom_ports::store::{OperatorStore, Store as _};
use greenroom_testkit::memory_store::MemoryStore;
use support::{at, block_on, commit, eager, pool, request, requests};

/// Runs every clause of the contract against stores made by `fresh`; each call makes an empty one, and a second handle
/// to the same state.
fn suite(fresh: &dyn Fn() -> (Box<dyn OperatorStore>, Box<dyn OperatorStore>)) {
    block_on(async {
        an_empty_store_holds_the_empty_state(fresh()).await;
        what_was_committed_is_loaded_by_everybody(fresh()).await;
        decide_sees_what_others_committed(fresh()).await;
        no_events_write_nothing(fresh()).await;
        events_of_a_transaction_are_applied_in_order(fresh()).await;
        an_event_that_does_not_fit_changes_nothing_but_the_revision(fresh()).await;
        syncing_and_compacting_change_no_state(fresh()).await;
        the_history_has_every_event_once_with_its_transaction(fresh()).await;
        jobs::jobs_are_told_from_their_events(fresh()).await;
        an_event_that_does_not_fit_is_counted_by_verify(fresh()).await;
        what_is_sound_is_not_repaired(fresh()).await;
    });
}

type Pair = (Box<dyn OperatorStore>, Box<dyn OperatorStore>);

async fn an_empty_store_holds_the_empty_state((one, other): Pair) {
    let empty = one.load().await.unwrap();
    assert_eq!(empty, PoolState { survives_reboot: empty.survives_reboot, ..PoolState::default() });
    one.sync().await.unwrap();
    one.compact().await.unwrap();
    assert_eq!(other.load().await.unwrap(), empty);
}

async fn what_was_committed_is_loaded_by_everybody((one, other): Pair) {
    let committed = commit(&*one, vec![request("a", 1)]).await.unwrap();
    assert_eq!(committed.events, vec![request("a", 1)]);
    assert_eq!(requests(&committed.state), ["a"]);
    assert_eq!(one.load().await.unwrap(), committed.state);
    assert_eq!(other.load().await.unwrap(), committed.state);
}

async fn decide_sees_what_others_committed((one, other): Pair) {
    for round in 0..5 {
        let store = if round % 2 == 0 { &one } else { &other };
        let seen = Cell::new(u64::MAX);
        let decide = &mut |state: &PoolState| {
            seen.set(state.revision);
            vec![request(&format!("r{round}"), round)]
        };
        store.transact(decide).await.unwrap();
        assert_eq!(seen.get(), round);
    }
    assert_eq!(requests(&one.load().await.unwrap()), ["r0", "r1", "r2", "r3", "r4"]);
}

async fn no_events_write_nothing((one, other): Pair) {
    let before = commit(&*one, vec![request("a", 1)]).await.unwrap().state;
    let nothing = commit(&*one, Vec::new()).await.unwrap();
    assert!(nothing.events.is_empty());
    assert_eq!(nothing.state, before);
    assert_eq!(other.load().await.unwrap(), before);
}

async fn events_of_a_transaction_are_applied_in_order((one, other): Pair) {
    let events: Vec<_> = (0..20).map(|i| request(&format!("r{i:02}"), i)).collect();
    commit(&*one, events).await.unwrap();
    let state = other.load().await.unwrap();
    assert_eq!(state.revision, 20);
    let order: Vec<String> = state.waiting.values().map(|r| r.attempt.to_string()).collect();
    assert_eq!(order, (0..20).map(|i| format!("r{i:02}")).collect::<Vec<_>>());
}

async fn an_event_that_does_not_fit_changes_nothing_but_the_revision((one, other): Pair) {
    let once = commit(&*one, vec![request("a", 1)]).await.unwrap().state;
    let twice = commit(&*one, vec![request("a", 1)]).await.unwrap().state;
    assert_eq!(twice, PoolState { revision: once.revision + 1, ..once });
    assert_eq!(other.load().await.unwrap(), twice);
}

async fn syncing_and_compacting_change_no_state((one, other): Pair) {
    for i in 0..50 {
        commit(&*one, vec![request(&format!("r{i}"), i)]).await.unwrap();
    }
    let before = one.load().await.unwrap();
    for _ in 0..2 {
        one.sync().await.unwrap();
        one.compact().await.unwrap();
        assert_eq!(one.load().await.unwrap(), before);
        assert_eq!(other.load().await.unwrap(), before);
    }
    let after = commit(&*other, vec![request("later", 99)]).await.unwrap().state;
    assert_eq!(after.revision, before.revision + 1);
    assert_eq!(one.load().await.unwrap(), after);
}

async fn the_history_has_every_event_once_with_its_transaction((one, other): Pair) {
    assert_eq!(one.history().await.unwrap().count(), 0);
    commit(&*one, vec![request("a", 1), request("b", 2)]).await.unwrap();
    one.compact().await.unwrap();
    let opened_before = one.history().await.unwrap();
    commit(&*other, vec![request("c", 3)]).await.unwrap();
    let all: Vec<_> = one.history().await.unwrap().map(Result::unwrap).map(|r| (r.n, r.event)).collect();
    assert_eq!(all, [(1, request("a", 1)), (1, request("b", 2)), (2, request("c", 3))]);
    let seen = opened_before.map(Result::unwrap).map(|r| r.n).collect::<Vec<_>>();
    assert!([&[1, 1][..], &[1, 1, 2]].contains(&&*seen), "{seen:?}");
}

async fn an_event_that_does_not_fit_is_counted_by_verify((one, other): Pair) {
    assert_eq!(one.verify().await.unwrap().inapplicable_events, 0);
    for _ in 0..3 {
        commit(&*one, vec![request("a", 1)]).await.unwrap();
    }
    let found = other.verify().await.unwrap();
    assert_eq!((found.last, found.inapplicable_events), (3, 2));
    assert!(found.damage.is_none() && found.history_damage.is_empty() && found.side_files.is_empty());
}

async fn what_is_sound_is_not_repaired((one, other): Pair) {
    assert!(one.repair().await.unwrap().is_none());
    let state = commit(&*one, vec![request("a", 1)]).await.unwrap().state;
    assert!(other.repair().await.unwrap().is_none());
    assert_eq!(one.load().await.unwrap(), state);
}

#[test]
fn the_reference_in_memory_keeps_the_contract() {
    suite(&|| {
        let store = MemoryStore::new();
        (Box::new(store.clone()), Box::new(store))
    });
}

#[test]
fn a_durable_store_in_memory_keeps_the_contract_and_loses_nothing() {
    suite(&|| {
        let store = MemoryStore::durable();
        (Box::new(store.clone()), Box::new(store))
    });
    block_on(async {
        let store = MemoryStore::durable();
        let state = commit(&store, vec![request("a", 1)]).await.unwrap().state;
        assert!(state.survives_reboot);
        assert_eq!((store.unsynced(), store.lose_last(100)), (0, 0));
        assert_eq!(store.load().await.unwrap(), state);
    });
}

#[test]
fn the_store_in_files_keeps_the_contract() {
    let home = tempfile::tempdir().unwrap();
    let made = Cell::new(0);
    // The eager one compacts for a single record, so that all of the suite runs across compactions too.
    for options in [Options::default(), eager()] {
        suite(&|| {
            made.set(made.get() + 1);
            let state = open_dir(&home.path().join(made.get().to_string())).unwrap();
            let open = || Box::new(state.pool(&pool(), options.clone()).unwrap());
            (open(), open())
        });
    }
}

#[test]
fn a_power_cut_in_memory_takes_the_last_transactions_and_none_that_was_synced() {
    block_on(async {
        let store = MemoryStore::new();
        commit(&store, vec![request("a", 1), request("b", 2)]).await.unwrap();
        store.sync().await.unwrap();
        let safe = store.load().await.unwrap();
        commit(&store, vec![request("c", 3)]).await.unwrap();
        let one_more = store.load().await.unwrap();
        commit(&store, vec![request("d", 4), request("e", 5)]).await.unwrap();
        assert_eq!(store.unsynced(), 2);

        assert_eq!(store.lose_last(1), 1);
        assert_eq!(store.load().await.unwrap(), one_more);
        assert_eq!(store.lose_last(100), 1);
        assert_eq!(store.load().await.unwrap(), safe);
        assert_eq!(store.lose_last(100), 0);
        assert_eq!(store.events(), vec![request("a", 1), request("b", 2)]);

        commit(&store, vec![request("a", 1)]).await.unwrap();
        assert_eq!(store.inapplicable_events(), 1);
        assert!(store.load().await.unwrap().drained.is_none());
        assert_eq!(at(1).wall_ms, 1_700_000_000_001);
    });
}
