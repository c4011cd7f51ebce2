//! The acts of a cluster against running pods, and the sentence about each.

#![cfg(test)]

use std::time::Duration;

use greenroom_core::inventory::{Listed, Status};
use greenroom_harness::provider::{Fixture as _, gone, listed, request, running, until};
use serde_json::json;

use crate::fixture::Pool;

/// Launches a pod, lets the cluster end it, and returns what the next list says of it.
async fn ended(pool: &Pool, how: &str) -> Listed {
    let provider = pool.build();
    let request = request(pool, 1);
    provider.launch(&request).await.unwrap();
    running(pool, &*provider, &request.instance).await;
    pool.cluster.disrupt(request.instance.as_str(), how);
    let seen = until("its end", Duration::from_secs(10), async || {
        let listed = listed(&*provider, &pool.pool()).await;
        listed.into_iter().find(|one| one.status == Status::Stopping && one.detail.is_some())
    })
    .await;
    // Its job may need the reason late.
    let later = listed(&*provider, &pool.pool()).await;
    assert_eq!(
        later.into_iter().map(|one| (one.detail, one.by_job)).collect::<Vec<_>>(),
        [(seen.detail.clone(), seen.by_job)]
    );
    gone(pool, &*provider, &request.instance).await;
    assert_eq!(listed(&*provider, &pool.pool()).await, []);
    seen
}

#[tokio::test]
async fn each_end_is_one_sentence_even_if_the_pod_is_gone_at_once() {
    for (how, expected) in [
        ("EvictionByEvictionAPI", "was reclaimed at "),
        ("PreemptionByScheduler", "was preempted at "),
        ("DeletionByTaintManager", "was reclaimed at "),
        ("disk", "exceeded its disk limit: Pod ephemeral local storage usage exceeds"),
        ("oom", "ran out of its 4Gi of memory at "),
        ("node disk", "was evicted: its node ran out of ephemeral-storage"),
        ("node memory", "was evicted: its node ran out of memory"),
        ("by hand", "was deleted in the cluster, not by Greenroom"),
        ("break", "ended at "),
    ] {
        let Some(pool) = Pool::open("memory = '4Gi'") else { return };
        let seen = ended(&pool, how).await;
        assert_eq!(seen.by_job, ["disk", "oom"].contains(&how), "{how}");
        let told = seen.detail.unwrap();
        assert!(told.starts_with(expected), "{how}: {told}");
        if how == "EvictionByEvictionAPI" {
            assert!(told.ends_with(": its node was drained"), "{told}");
        }
    }
}

#[tokio::test]
async fn the_reason_of_a_pod_that_no_list_ever_showed_ending_comes_from_its_changes() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    pool.cluster.disrupt(request.instance.as_str(), "EvictionByEvictionAPI");
    until("its end", Duration::from_secs(10), async || pool.cluster.pods().is_empty().then_some(())).await;
    pool.cluster.forget_requests();
    let seen = listed(&*provider, &pool.pool()).await;
    assert!(seen[0].detail.as_deref().unwrap().ends_with("its node was drained"), "{seen:?}");
    assert!(pool.cluster.requests().contains(&"watch pods".to_owned()));
    // Without that right, only less is known.
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_lifetime_ends_a_pod_without_a_keeper() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let mut request = request(&pool, 1);
    request.lifetime = Some(Duration::from_secs(2));
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    let told = until("its end", Duration::from_secs(20), async || {
        let seen = listed(&*provider, &pool.pool()).await;
        seen.into_iter().find(|one| one.status == Status::Stopping)?.detail
    })
    .await;
    assert_eq!(told, "reached its lifetime");
    assert!(pool.cluster.living().is_empty());
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_pod_that_a_list_lacks_at_first_is_no_lost_one() {
    let Some(pool) = Pool::open("") else { return };
    pool.cluster.set(&json!({ "visible_ms": 1500 }));
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    gone(&pool, &*provider, &request.instance).await;
}
