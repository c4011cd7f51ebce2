//! Launches without an answer, of a program that makes a machine with each call.

#![cfg(test)]

use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::failure::ErrorClass;
use greenroom_harness::provider::{Fixture as _, class, leave_nothing, listed, request, until};
use greenroom_ports::provider::Provider;

use crate::fixture::Pool;

/// The time for which the program's list may lack a machine, and does.
const HIDDEN: Duration = Duration::from_secs(2);

fn careless() -> Pool {
    Pool::with("machines.py", ", careless = \"yes\", appears_within_s = \"2\", hidden_s = \"1.5\"")
}

/// Repeats a launch as the keeper does, until it has an answer. How long that took.
async fn repeat(provider: &dyn Provider, pool: &Pool) -> Duration {
    let (request, begun) = (request(pool, 1), Instant::now());
    until("an answer", Duration::from_mins(1), async || match provider.launch(&request).await {
        Ok(()) => Some(()),
        Err(error) => {
            assert_eq!(*error.class(), ErrorClass::Unknown, "{error}");
            None
        }
    })
    .await;
    begun.elapsed()
}

/// Terminates the machine once the list shows it.
async fn end(pool: &Pool) {
    let provider = pool.build();
    let shown = async || (!listed(&*provider, &pool.pool()).await.is_empty()).then_some(());
    until("the machine in the list", Duration::from_secs(30), shown).await;
    leave_nothing(pool).await;
}

#[tokio::test]
async fn a_machine_that_a_lost_answer_made_is_found_and_none_is_made_beside_it() {
    let pool = careless();
    let provider = pool.build();
    pool.platform.fault("lose", "");
    assert_eq!(class(provider.launch(&request(&pool, 1)).await), ErrorClass::Unknown);
    repeat(&*provider, &pool).await;
    assert_eq!((pool.remains().len(), pool.living().len()), (1, 1));
    end(&pool).await;
}

#[tokio::test]
async fn a_launch_that_made_nothing_is_repeated_when_a_machine_would_have_appeared() {
    let pool = careless();
    let provider = pool.build();
    pool.platform.fault("forget", "");
    assert_eq!(class(provider.launch(&request(&pool, 1)).await), ErrorClass::Unknown);
    // Another keeper goes on.
    drop(provider);
    let provider = pool.build();
    assert!(repeat(&*provider, &pool).await > HIDDEN / 2);
    assert_eq!(pool.remains().len(), 1);
    end(&pool).await;
}

#[tokio::test]
async fn a_launch_that_is_dropped_at_any_moment_makes_one_machine() {
    for after_ms in [1, 30, 60, 90, 150] {
        let pool = careless();
        let provider = pool.build();
        let launch = request(&pool, 1);
        let limit = Duration::from_millis(after_ms);
        let _dropped = tokio::time::timeout(limit, provider.launch(&launch)).await;
        drop(provider);
        let provider: Rc<dyn Provider> = pool.build();
        repeat(&*provider, &pool).await;
        assert_eq!(pool.remains().len(), 1, "dropped after {after_ms} ms");
        end(&pool).await;
    }
}

#[tokio::test]
async fn concurrent_calls_for_one_launch_make_one_machine() {
    let pool = careless();
    let (one, other) = (pool.build(), pool.build());
    let launch = request(&pool, 1);
    let (a, b, c) = tokio::join!(one.launch(&launch), other.launch(&launch), one.launch(&launch));
    [a, b, c].into_iter().for_each(Result::unwrap);
    assert_eq!(pool.remains().len(), 1);
    end(&pool).await;
}
