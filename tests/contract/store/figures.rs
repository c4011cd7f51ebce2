//! What a commit costs. Printed always, judged only where the machine is quiet (`GREENROOM_FIGURES=1`, release).
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
        };
        events.push(intend(&name, number));
        events.push(Change::Reached { instance: instance.clone(), endpoint }.at(at(2)));
        events.push(Change::BecameReady { instance }.at(at(3)));
    }
    events
}

/// The median of `rounds` commits, each by a store that has read nothing yet, as a driver call is.
fn fresh_commit(count: usize, rounds: usize) -> Duration {
    let home = tempfile::tempdir().unwrap();
    let keeper = open(home.path(), eager());
    block_on(async {
        commit(&keeper, instances(count)).await.unwrap();
        keeper.compact().await.unwrap();
        let mut took = Vec::new();
        for i in 0..rounds {
            let store = open(home.path(), eager());
            let name = format!("a{i}");
            let begun = Instant::now();
            commit(&store, vec![request(&name, i as u64)]).await.unwrap();
            took.push(begun.elapsed());
        }
        let state = keeper.load().await.unwrap();
        assert_eq!((state.instances.len(), state.waiting.len()), (count, rounds));
        assert!(state.instances.values().all(|i| i.domain != Some(TrustDomain::new("x"))));
        took.sort_unstable();
        took[took.len() / 2]
    })
}

#[test]
fn a_commit_costs_little_however_large_the_pool() {
    let rounds = if cfg!(debug_assertions) { 9 } else { 51 };
    let costs: Vec<_> = [10, 1_000, 10_000].map(|count| (count, fresh_commit(count, rounds))).into();
    for (count, cost) in &costs {
        println!("commit by a fresh process' store, {count} instances: {cost:?}");
    }
    if std::env::var_os("GREENROOM_FIGURES").is_some() && !cfg!(debug_assertions) {
        // A whole acquire takes about 5 ms of process start and checks besides; see the figures of `prepare`.
        assert!(costs[1].1 <= Duration::from_millis(5), "{:?} with 1,000 instances", costs[1].1);
    }
}
