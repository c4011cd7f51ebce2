//! The cost of a commit: in processor time, which other work on the machine hardly changes, and in comparison.

use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{InstanceId, TrustDomain};
use greenroom_ports::store::Store;
use rustix::time::{ClockId, clock_gettime};

use super::support::{at, block_on, commit, eager, intend, open, request};

/// The processor time of this thread.
fn used() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// A pool of ready instances, each with an endpoint.
fn instances(count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    for number in (1..).take(count) {
        let name = format!("linux-3f9a-{number}");
        let instance = InstanceId::new(&name);
        let endpoint = greenroom_core::endpoint::Endpoint {
            address: format!("10.0.{}.{}", number / 250, number % 250),
            port: 22,
            user: "ubuntu".to_owned(),
            host_key: format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:043}"),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        events.push(intend(&name, number));
        events.push(Change::Reached { instance: instance.clone(), endpoint }.at(at(2)));
        events.push(Change::BecameReady { instance }.at(at(3)));
    }
    events
}

/// The median of `rounds` commits: by stores that have read nothing yet, like driver calls, and by a store that
/// persists, like the keeper's.
fn commits(count: usize, rounds: usize) -> (Duration, Duration) {
    let home = tempfile::tempdir().unwrap();
    let keeper = open(home.path(), eager());
    block_on(async {
        commit(&keeper, instances(count)).await.unwrap();
        keeper.compact().await.unwrap();
        let (mut fresh, mut kept) = (Vec::new(), Vec::new());
        for i in 0..rounds {
            let store = open(home.path(), eager());
            for (store, took) in [(&store, &mut fresh), (&keeper, &mut kept)] {
                let name = format!("a{i}-{}", u8::from(std::ptr::eq(store, &raw const keeper)));
                let before = used();
                commit(store, vec![request(&name, i as u64)]).await.unwrap();
                took.push(used().saturating_sub(before));
            }
        }
        let state = keeper.load().await.unwrap();
        assert_eq!((state.instances.len(), state.waiting.len()), (count, 2 * rounds));
        assert!(state.instances.values().all(|i| i.domain != Some(TrustDomain::new("x"))));
        fresh.sort_unstable();
        kept.sort_unstable();
        (fresh[rounds / 2], kept[rounds / 2])
    })
}

/// One pool is ten times as large as the other.
const SIZES: [usize; 2] = [500, 5_000];

#[test]
fn a_commit_costs_no_more_than_its_pool_is_large_and_the_keepers_much_less() {
    let rounds = if cfg!(debug_assertions) { 9 } else { 51 };
    let costs = SIZES.map(|count| commits(count, rounds));
    for (count, (fresh, kept)) in SIZES.iter().zip(&costs) {
        println!("commit with {count} instances: a fresh store {fresh:?}, the keeper's {kept:?}");
    }
    let [(small, _), (large, kept)] = costs;
    assert!(large < small * 30, "reading grows faster than the pool: {small:?}, then {large:?}");
    assert!(kept * 5 < large, "the keeper's store reads again what it has: {kept:?} of {large:?}");
}
