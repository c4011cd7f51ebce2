//! Notices of what a cloud is about to do to instances: the calls that they cost, and lists without them.

#![cfg(test)]

use greenroom_core::inventory::Status;
use greenroom_harness::provider::{Fixture as _, good, leave_nothing, listed, request, running};
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::fixture::CloudFixture;

const EVENTS: &str = "DescribeInstanceStatus";
const RECLAIMS: &str = "DescribeSpotInstanceRequests";

/// The numbers of calls for events and for reclaims that the emulator received.
fn calls(fixture: &CloudFixture) -> [usize; 2] {
    let requests = fixture.lab.requests();
    [EVENTS, RECLAIMS].map(|name| requests.iter().filter(|request| request.operation == name).count())
}

/// Two running instances.
async fn with_instances(cloud: Cloud, buy: Buy) -> CloudFixture {
    let fixture = CloudFixture::buying(cloud, buy);
    let provider = good(&fixture);
    assert_eq!(listed(&*provider, &fixture.pool()).await, []);
    assert_eq!(calls(&fixture), [0, 0], "without instances, there is nothing to announce");
    for number in [1, 2] {
        let request = request(&fixture, number);
        provider.launch(&request).await.unwrap();
        running(&fixture, &*provider, &request.instance).await;
    }
    fixture
}

#[tokio::test]
async fn notices_of_ec2_cost_two_calls_for_many_instances_and_lists() {
    for (buy, expected) in [(Buy::Spot, [1, 1]), (Buy::OnDemand, [1, 0])] {
        let fixture = with_instances(Cloud::Ec2, buy).await;
        let (before, provider) = (calls(&fixture), good(&fixture));
        for machine in fixture.lab.truth().live() {
            fixture.lab.notice(&machine.id, Some("instance-retirement"));
            if machine.spot {
                fixture.lab.notice(&machine.id, None);
            }
        }
        for _ in 0..3 {
            let found = listed(&*provider, &fixture.pool()).await;
            assert!(found.len() == 2 && found.iter().all(|one| one.status == Status::Running), "{found:?}");
        }
        let after = calls(&fixture);
        assert_eq!([after[0] - before[0], after[1] - before[1]], expected, "{buy:?}");
        leave_nothing(&fixture).await;
    }
}

#[tokio::test]
async fn a_list_of_ec2_does_not_need_its_notices() {
    let fixture = with_instances(Cloud::Ec2, Buy::Spot).await;
    for fault in [
        json!({ "mode": "denied" }),
        json!({ "mode": "throttled" }),
        json!({ "mode": "rejected", "code": "InternalError" }),
        json!({ "mode": "lost" }),
        json!({ "mode": "hang", "seconds": 60 }),
    ] {
        for operation in [EVENTS, RECLAIMS] {
            let mut fault = fault.clone();
            fault["operation"] = operation.into();
            fixture.lab.fault(&fault);
        }
        let (before, provider) = (calls(&fixture), good(&fixture));
        for _ in 0..2 {
            assert_eq!(listed(&*provider, &fixture.pool()).await.len(), 2, "{fault}");
        }
        let after = calls(&fixture);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1], "a pause follows: {fault}");
        assert!(fixture.lab.faults_left().iter().all(|left| *left == Some(0)), "{fault}");
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn maintenance_by_compute_engine_is_in_its_list() {
    let fixture = with_instances(Cloud::Gce, Buy::Spot).await;
    for machine in fixture.lab.truth().live() {
        fixture.lab.notice(&machine.id, None);
    }
    let provider = good(&fixture);
    let found = listed(&*provider, &fixture.pool()).await;
    assert!(found.len() == 2 && found.iter().all(|one| one.status == Status::Running), "{found:?}");
    leave_nothing(&fixture).await;
}
