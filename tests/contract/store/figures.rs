//! What a commit costs.
//!
//! Printed always, judged only where the machine is quiet (`GREENROOM_FIGURES=1`, release).

use std::time::{Duration, Instant};

use greenroom::core::event::{Change, Event};
use greenroom::core::ids::{InstanceId, TrustDomain};
use greenroom::port::store::Store;

use super::support::{at, block_on, commit, eager, intend, open, request};

/// A pool of ready instances, each with an endpoint.
fn instances(count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    for number in (1..).take(count) {
        let name = format!("linux-3f9a-{number}");
        let instance = InstanceId::new(&name);
        let endpoint = greenroom::core::endpoint::Endpoint {
            address: format!("10.0.{}.{}", number / 250, number % 250),
            port: 22,
            user: "ubuntu".to_owned(),
            host_key: format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:043}"),
            key: None,
            jump: None,
        };
        events.push(intend(&name, number));
        events.push(Change::Reached { instance: instance.clone(), endpoint }.at(at(2)));
        events.push(Change::BecameReady { instance }.at(at(3)));
    }
    events
}

/// The median of `rounds` commits: by stores that have read nothing yet, as driver calls are, and by one that stays, as
/// the keeper's does.
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
                let begun = Instant::now();
                commit(store, vec![request(&name, i as u64)]).await.unwrap();
                took.push(begun.elapsed());
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

#[test]
fn a_commit_costs_little_however_large_the_pool() {
    let rounds = if cfg!(debug_assertions) { 9 } else { 51 };
    let costs = [10, 1_000, 10_000].map(|count| (count, commits(count, rounds)));
    for (count, (fresh, kept)) in &costs {
        println!("commit with {count} instances: a fresh store {fresh:?}, the keeper's {kept:?}");
    }
    if std::env::var_os("GREENROOM_FIGURES").is_some() && !cfg!(debug_assertions) {
        // A whole acquire takes about 5 ms of process start and checks besides; see the figures of `prepare`.
        assert!(costs[1].1.0 <= Duration::from_millis(5), "{:?} with 1,000 instances", costs[1].1.0);
    }
}
