//! Each kind of ownership, from a line of text.

use super::*;
use crate::ids::{Generation, OwnerId, PoolName};
use crate::notation::{NOW, World, ago, generation, span, world};
use crate::plan::Observed;

/// `volume 3 1h`: created for launch 3 an hour ago. With `ageless`, `nameless` (the provider reports no instance),
/// `them` (another owner), `untagged`, `elsewhen` (an unknown generation).
fn resource(text: &str) -> Resource {
    let words: Vec<&str> = text.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let kind = match words[0] {
        "instance" => ResourceKind::Instance,
        "volume" => ResourceKind::Volume,
        _ => ResourceKind::Other("address"),
    };
    let number = words[1].parse().unwrap();
    let generation = if has("elsewhen") { Generation::new("x") } else { generation() };
    let owner = OwnerId::new(if has("them") { "them" } else { "us" });
    let tags = Tags { pool: PoolName::new("p"), owner, generation, number };
    let instance = InstanceId::launched(&tags.pool, &tags.generation, number);
    Resource {
        kind,
        name: format!("{}-{number}", words[0]),
        instance: (!has("nameless")).then_some(instance),
        tags: (!has("untagged")).then_some(tags),
        created: (!has("ageless")).then(|| ago(span(words[2]))),
        detail: None,
    }
}

/// Nine launches so far, `reap_grace` is five minutes.
fn judged(mut seen: World, before: &World, resource: &Resource) -> Ownership {
    seen.state.generations.insert(generation(), 9);
    let Observed { owner, generations, attempts, denied, .. } = &seen.observed;
    let launches = KnownLaunches { recorded: &seen.state, owner, generations, attempts };
    let denied = denied.keys().cloned().collect();
    let known = Knowledge { launches, before: &before.state, denied: &denied, grace: span("5m"), now: NOW };
    judge(resource, &known)
}

/// After `;;` instances that were recorded before the provider was called.
fn ownership(recorded: &str, text: &str) -> Ownership {
    let (recorded, before) = recorded.split_once(";;").unwrap_or((recorded, ""));
    judged(world(recorded), &world(before), &resource(text))
}

#[test]
fn whatever_the_provider_has_stands_in_one_way_to_the_record() {
    use Ownership::{Foreign, Orphaned, Recorded, Stranger, Untagged, Young};
    let rows = [
        ("", "instance 3 1h", Orphaned(OrphanReason::Unrecorded)),
        ("", "instance 3 5m", Orphaned(OrphanReason::Unrecorded)),
        ("", "instance 3 299s", Young),
        ("", "instance 3 1h ageless", Orphaned(OrphanReason::Unrecorded)),
        ("", "instance 3 1h nameless", Orphaned(OrphanReason::Unrecorded)),
        ("", "instance 9 1h", Orphaned(OrphanReason::Unrecorded)),
        ("", "instance 10 1h", Stranger),
        ("", "instance 3 1h elsewhen", Stranger),
        ("", "instance 3 1s elsewhen", Stranger),
        ("", "instance 3 1h them", Foreign),
        ("", "instance 10 1h them", Foreign),
        ("", "instance 3 1h untagged", Untagged),
        ("", "instance 3 1h untagged nameless", Untagged),
        ("idle 1h", "instance 1 1h", Recorded),
        ("requested 10s", "instance 1 1h", Recorded),
        ("draining 1h denied", "instance 1 1h", Recorded),
        // It was terminated and forgotten during the provider's call.
        (";; draining 1h", "instance 1 1h", Recorded),
        ("", "volume 3 1h", Orphaned(OrphanReason::InstanceUnrecorded)),
        ("", "volume 3 1h nameless", Orphaned(OrphanReason::InstanceUnrecorded)),
        ("", "address 3 1h", Orphaned(OrphanReason::InstanceUnrecorded)),
        ("", "volume 3 10s", Young),
        ("", "volume 3 1h them", Foreign),
        ("", "volume 3 1h untagged", Untagged),
        ("", "volume 10 1h", Stranger),
        ("idle 1h", "volume 1 1h", Recorded),
        ("idle 1h", "volume 1 1h untagged", Recorded),
        // One list without an instance proves nothing; `endpoint` has to deny it.
        ("idle 1h missing 1m", "volume 1 1h", Recorded),
        ("idle 1h denied", "volume 1 1h", Orphaned(OrphanReason::InstanceGone)),
        ("idle 1h denied", "volume 1 1m", Young),
        ("idle 1h denied", "volume 1 1h them", Foreign),
        ("out-of-service 1h denied", "volume 1 1h", Orphaned(OrphanReason::InstanceGone)),
        ("held 1h by 7 denied", "volume 1 1h", Recorded),
        ("requested 1m denied", "volume 1 1h", Recorded),
        ("draining 1h denied", "volume 1 1h", Recorded),
        (";; draining 1h", "volume 1 1h", Recorded),
    ];
    for (recorded, text, expected) in rows {
        assert_eq!(ownership(recorded, text), expected, "given `{recorded}` and `{text}`");
    }
}

#[test]
fn what_an_open_attempt_names_is_in_use() {
    let instance = Resource { instance: Some(InstanceId::new("u1")), ..resource("instance 3 1h") };
    let volume = Resource { kind: ResourceKind::Volume, ..instance.clone() };
    for resource in [instance, volume] {
        let ownership = |text| judged(world(text), &world(""), &resource);
        assert_eq!(ownership("orphan 1h named 7"), Ownership::Held);
        assert_eq!(ownership("orphan 1h user 7"), Ownership::Held);
        assert!(matches!(ownership("orphan 1h"), Ownership::Orphaned(_)));
    }
}

#[test]
fn only_what_is_ours_and_not_in_use_is_ever_left_over() {
    let recorded = [
        "",
        "idle 1h",
        "held 1h by 7",
        "requested 1m",
        "draining 1h",
        "idle 1h denied",
        "held 1h by 7 denied",
    ];
    for text in
        ["instance 1 9h them", "volume 1 9h them", "volume 1 9h elsewhen", "instance 99 9h", "volume 99 9h"]
    {
        for recorded in recorded {
            assert!(
                !matches!(ownership(recorded, text), Ownership::Orphaned(_)),
                "given `{recorded}` and `{text}`"
            );
        }
    }
}

#[test]
fn an_instance_is_doubtful_when_something_of_it_is_there_and_it_is_not() {
    let seen = world("idle 1h; idle 1h; requested 1m; draining 1h; idle 1h");
    let found: Vec<Resource> =
        ["instance 1 1h", "volume 1 1h", "volume 2 1h nameless", "volume 3 1m", "volume 4 1h", "volume 8 1h"]
            .map(resource)
            .into();
    let doubtful = possibly_gone(&found, &seen.state);
    assert_eq!(doubtful, BTreeSet::from([InstanceId::new("p-g-2")]));
}

#[test]
fn a_resource_of_no_launch_has_another_owner_only_if_its_tags_say_so() {
    let us = OwnerId::new("us");
    for (text, expected) in [
        ("instance 3 1h", Ownership::Copied),
        ("instance 3 1h them", Ownership::Foreign),
        ("instance 3 1h untagged nameless", Ownership::Untagged),
    ] {
        assert_eq!(judge_copy(&resource(text), &us), expected, "{text}");
    }
}
