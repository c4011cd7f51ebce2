//! Launches: names that are taken, offerings without a place, pages of lists, and other makers of pods.

#![cfg(test)]

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OfferingName, OwnerId};
use greenroom_core::inventory::Status;
use greenroom_harness::provider::{Fixture as _, class, gone, listed, request, running};
use greenroom_ports::provider::LaunchRequest;
use serde_json::json;

use crate::fixture::{Pool, metadata};

fn launched(pool: &Pool, number: u32) -> InstanceId {
    request(pool, number).instance
}

#[tokio::test]
async fn a_name_that_another_owner_has_is_refused_and_untouched() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let mut foreign = request(&pool, 1);
    foreign.tags.owner = OwnerId::new("00000000000000b2");
    provider.launch(&foreign).await.unwrap();
    let before = metadata(&pool.cluster, foreign.instance.as_str());
    // Another state directory, which knows nothing of it.
    let Some(other) = Pool::open("") else { return };
    let ours = (crate::fixture::registration().build)(&other.context(), &pool.values()).unwrap();
    let refused = ours.launch(&request(&pool, 1)).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Invalid);
    assert!(refused.to_string().contains("its owner is `00000000000000b2`"), "{refused}");
    assert_eq!(metadata(&pool.cluster, foreign.instance.as_str())["uid"], before["uid"]);
    gone(&pool, &*provider, &foreign.instance).await;
}

#[tokio::test]
async fn a_pod_that_was_made_again_under_the_name_is_a_copy() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    pool.cluster.change(request.instance.as_str(), &json!({ "uid": "made-again" }));
    let listing = provider.list(&pool.pool()).await.unwrap();
    assert_eq!(listing.copies.len(), 1, "{listing:?}");
    assert!(listing.instances.iter().all(|one| one.status == Status::Stopping), "{listing:?}");
    // Greenroom's own is gone, and a termination does not hit the other one.
    provider.terminate(&request.instance).await.ok();
    assert!(pool.cluster.pods().contains_key(request.instance.as_str()));
    assert!(!pool.cluster.requests().contains(&"delete pods".to_owned()));
}

#[tokio::test]
async fn an_offering_without_a_place_is_refused_by_name_and_leaves_no_pod() {
    let offerings = "[[offering]]\nname = 'spot'\nnode_selector = { pool = 'spot' }\ntolerations = 'spot:NoSchedule'\n\
                     [[offering]]\nname = 'steady'\n";
    let Some(pool) = Pool::open(offerings) else { return };
    let spot = json!({ "name": "spot-1", "labels": { "pool": "spot" }, "taints": [{ "key": "spot", "effect": "NoSchedule" }], "pods": 1 });
    let steady = json!({ "name": "node-1", "labels": {}, "taints": [], "pods": 10 });
    pool.cluster.set(&json!({ "nodes": [spot, steady] }));
    let provider = pool.build();
    let of = |number, offering: &str| LaunchRequest {
        offering: Some(OfferingName::new(offering)),
        ..request(&pool, number)
    };
    provider.launch(&of(1, "spot")).await.unwrap();
    let refused = provider.launch(&of(2, "spot")).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::NoCapacity { scope: "spot".to_owned() });
    assert!(refused.to_string().contains("Insufficient cpu"), "{refused}");
    assert_eq!(pool.cluster.pods().len(), 1);
    // The same instance with the next offering, immediately.
    let next = LaunchRequest { token: "linux-c0ffee-2/2".to_owned(), ..of(2, "steady") };
    provider.launch(&next).await.unwrap();
    let pods = pool.cluster.pods();
    let nodes: Vec<_> = pods.values().map(|pod| pod["spec"]["nodeName"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["spot-1", "node-1"]);
    let seen = listed(&*provider, &pool.pool()).await;
    assert!(seen[0].detail.as_deref().unwrap().starts_with("spot, node spot-1"), "{seen:?}");
    for number in [1, 2] {
        gone(&pool, &*provider, &launched(&pool, number)).await;
    }
}

#[tokio::test]
async fn an_autoscaler_that_adds_a_node_is_waited_for_and_one_that_cannot_is_not() {
    let Some(pool) = Pool::open("") else { return };
    pool.cluster.set(&json!({ "unschedulable": -1, "autoscaler": "TriggeredScaleUp" }));
    let provider = pool.build();
    let waiting = request(&pool, 1);
    let launch = provider.launch(&waiting);
    let patient = tokio::time::timeout(std::time::Duration::from_secs(2), launch).await;
    assert!(patient.is_err(), "a node is on its way: {patient:?}");
    gone(&pool, &*provider, &waiting.instance).await;
    pool.cluster.set(&json!({ "autoscaler": "NotTriggerScaleUp" }));
    let refused = class(provider.launch(&request(&pool, 2)).await);
    assert!(matches!(refused, ErrorClass::NoCapacity { .. }), "{refused}");
}

#[tokio::test]
async fn an_image_that_cannot_serve_jobs_is_named() {
    for (key, image, expected) in [
        ("image", "invalid/image", "has an invalid image name"),
        ("image", "never/there", "has an image that is not on its node and may not be pulled"),
        (
            "image",
            "bare/image",
            "cannot serve jobs: greenroom: the image has no sshd: install OpenSSH's server",
        ),
        (
            "server_image",
            "absent/server:1",
            "cannot get the SSH server of `server_image`: the image absent/server:1 does not exist: failed to resolve",
        ),
        (
            "server_image",
            "empty/server:1",
            "the image empty/server:1 has no program /greenroom-server for this node: exec: \"/greenroom-server\": stat",
        ),
    ] {
        let Some(pool) = Pool::open("") else { return };
        let mut values = pool.values();
        values.insert(key.to_owned(), image.into());
        let provider = (crate::fixture::registration().build)(&pool.context(), &values).unwrap();
        let request = request(&pool, 1);
        let told = match provider.launch(&request).await {
            Err(error) => {
                assert_eq!(error.class(), &ErrorClass::Invalid);
                error.to_string()
            }
            // It was placed before its node said so.
            Ok(()) => {
                greenroom_harness::provider::until(
                    "its end",
                    std::time::Duration::from_secs(10),
                    async || {
                        let listed = listed(&*provider, &pool.pool()).await;
                        listed.into_iter().find(|one| one.status == Status::Stopping)?.detail
                    },
                )
                .await
            }
        };
        assert!(told.contains(expected), "{told}");
        gone(&pool, &*provider, &request.instance).await;
    }
}

#[tokio::test]
async fn an_image_that_may_still_come_is_waited_for() {
    let Some(pool) = Pool::open("") else { return };
    let mut values = pool.values();
    values.insert("image".to_owned(), "absent/image".into());
    let provider = (crate::fixture::registration().build)(&pool.context(), &values).unwrap();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    greenroom_harness::provider::until(
        "the kubelet's message",
        std::time::Duration::from_secs(10),
        async || {
            let seen = listed(&*provider, &pool.pool()).await;
            assert_eq!(seen[0].status, Status::Starting);
            seen[0]
                .detail
                .as_deref()?
                .contains("ImagePullBackOff: Back-off pulling image: not found")
                .then_some(())
        },
    )
    .await;
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_list_has_all_pages_and_says_if_it_lacks_some() {
    let Some(pool) = Pool::open("") else { return };
    pool.cluster.set(&json!({ "page": 2, "boot_ms": 60_000 }));
    let provider = pool.build();
    for number in 1..=5 {
        provider.launch(&request(&pool, number)).await.unwrap();
    }
    assert_eq!(listed(&*provider, &pool.pool()).await.len(), 5);
    // The first page arrives, the second one has expired.
    pool.cluster
        .fault(&json!({ "request": "GET pods", "how": 410, "reason": "Expired", "skip": 1, "count": 1 }));
    let listing = provider.list(&pool.pool()).await.unwrap();
    assert_eq!((listing.complete, listing.instances.len()), (false, 2));
    for number in 1..=5 {
        gone(&pool, &*provider, &launched(&pool, number)).await;
    }
}

#[tokio::test]
async fn a_finalizer_of_others_keeps_a_pod_listed_as_stopping() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    pool.cluster.change(request.instance.as_str(), &json!({ "finalizers": ["example.com/keep"] }));
    provider.terminate(&request.instance).await.unwrap();
    greenroom_harness::provider::until("its end", std::time::Duration::from_secs(10), async || {
        pool.cluster.living().is_empty().then_some(())
    })
    .await;
    let seen = listed(&*provider, &pool.pool()).await;
    assert_eq!((seen.len(), seen[0].status), (1, Status::Stopping), "it is not absent");
    pool.cluster.change(request.instance.as_str(), &json!({ "finalizers": [] }));
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_config_map_owns_pods() {
    let Some(pool) = Pool::open("owner_config_map = 'greenroom-owner'") else { return };
    let provider = pool.build();
    let request = request(&pool, 1);
    provider.launch(&request).await.unwrap();
    let owners = metadata(&pool.cluster, request.instance.as_str())["ownerReferences"].take();
    assert_eq!((&owners[0]["kind"], &owners[0]["name"]), (&json!("ConfigMap"), &json!("greenroom-owner")));
    gone(&pool, &*provider, &request.instance).await;
    pool.cluster.set(&json!({ "config_maps": {} }));
    let refused = provider.launch(&greenroom_harness::provider::request(&pool, 2)).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Invalid);
    assert!(refused.to_string().contains("the ConfigMap `greenroom-owner` cannot own pods"), "{refused}");
}

#[tokio::test]
async fn a_throttled_cluster_is_left_alone_as_long_as_it_asks() {
    let Some(pool) = Pool::open("") else { return };
    let provider = pool.build();
    assert_eq!(listed(&*provider, &pool.pool()).await, []);
    pool.cluster.fault(&json!({ "request": "GET pods", "how": 429, "after": 3, "count": 1 }));
    let until = match provider.list(&pool.pool()).await.unwrap_err().class() {
        ErrorClass::Throttled { until: Some(until) } => *until,
        class => panic!("{class}"),
    };
    let now = pool.clock().now();
    assert!((2_000..=3_000).contains(&now.until(until).as_millis()), "{until:?}");
    pool.cluster.forget_requests();
    assert!(provider.list(&pool.pool()).await.is_err());
    assert_eq!(pool.cluster.requests(), Vec::<String>::new(), "no call is made");
}
