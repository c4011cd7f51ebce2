//! Lists of another location, through the whole plan.

use crate::event::Change;
use crate::ids::Location;
use crate::notation::{does, notes, table, waits, world};
use crate::plan::unconfirmed_absences;

#[test]
fn a_list_of_another_location_proves_nothing_about_an_instance() {
    table(
        does,
        &[
            // Here, the same list ends it.
            ("idle 5m missing 31s denied silent", "i1 drains: vanished; terminate i1"),
            ("idle 5m missing 31s denied in there", ""),
            ("idle 5m missing 31s denied-since", ""), // by another account, perhaps
            ("idle 5m gone in there", ""),
            ("booting 20s gone in there", ""),
            ("held 5m by 7 gone in there", ""),
            ("draining 1m gone in there", ""),
            ("draining 5m missing 31s denied in there", ""),
            ("requested 40s in there", ""),
            ("refused 10s in there", "i1 missed; i1 drains: surplus; terminate i1"),
            (
                "refused 10s running in there",
                "i1 located in here; i1 drains: launchedafterrefusal; terminate i1",
            ),
            // What is given up there is not terminated by calls that go elsewhere.
            ("booting 600s gone in there", "i1 drains: neverready"),
            ("static idle 5m gone in there", ""),
        ],
    );
}

#[test]
fn an_instance_that_is_listed_is_where_the_list_is_from() {
    table(
        does,
        &[
            ("idle 5m in there", "i1 located in here"),
            ("idle 5m missing 31s running in there", "i1 seen; i1 located in here"),
            ("static idle 5m in there", "h1 located in here"),
            ("nowhere | idle 5m in there", ""),
        ],
    );
}

#[test]
fn a_list_of_unknown_location_shows_instances_and_denies_none() {
    table(
        does,
        &[
            ("nowhere | idle 5m missing 31s denied", ""),
            ("nowhere | draining 5m missing 31s denied", "terminate i1"),
            ("nowhere | draining 5m stopping", "terminate i1"),
            // Launches go on, and an unanswered one is not repeated.
            ("nowhere, target 1 | ", "i1 intended; launch i1"),
            ("nowhere | requested 40s", ""),
        ],
    );
    table(
        notes,
        &[("nowhere | idle 5m", ""), ("nowhere | idle 5m gone; draining 1m gone", "2 of unknown location")],
    );
}

#[test]
fn nothing_is_launched_instead_of_instances_in_another_location() {
    table(
        does,
        &[
            ("target 2 | idle 5m gone in there", ""),
            ("target 2 | idle 5m gone", "i1 missed; i2 intended; launch i2"),
            ("max 4 | held 5m by 7 gone in there; waits 8", ""),
            // A list that fails, or does not say where it is from, changes nothing about that.
            ("unlisted, target 3 | idle 5m in there; idle 5m in here", ""),
            ("nowhere, target 3 | idle 5m in there; idle 5m in here", ""),
            ("unlisted, target 3 | idle 5m in there; idle 5m in there", "i3 intended; launch i3"),
            // What is there may be used; it is only not replaced.
            ("max 4 | idle 5m gone in there; waits 8", "a8 gets i1"),
        ],
    );
    table(
        waits,
        &[(
            "max 4 | held 5m by 7 gone in there; waits 8",
            "a8: 1 instance is in there, but launches would be in here",
        )],
    );
    table(notes, &[("idle 5m gone in there; held 5m by 7 gone in there; idle 5m", "2 elsewhere")]);
}

#[test]
fn a_launch_without_a_list_is_recorded_where_the_last_one_was() {
    for (line, expected) in [
        ("target 1 | ", Some("here")),
        ("unlisted, target 1 | ", None),
        ("unlisted, target 2 | idle 5m in there", Some("there")),
        ("nowhere, target 2 | idle 5m in there", Some("there")),
    ] {
        let location = world(line).plan().events.into_iter().find_map(|event| {
            if let Change::LaunchIntended { location, .. } = event.change { Some(location) } else { None }
        });
        assert_eq!(location, Some(expected.map(Location::new)), "{line}");
    }
}

#[test]
fn no_endpoint_is_asked_for_in_the_wrong_location() {
    let asked = |line: &str| {
        let world = world(line);
        unconfirmed_absences(&world.state, world.observed.listing.as_ref().unwrap(), &world.policy).len()
    };
    assert_eq!(asked("idle 5m missing 31s"), 1);
    assert_eq!(asked("idle 5m missing 31s in there"), 0);
    assert_eq!(asked("nowhere | idle 5m missing 31s"), 0);
}
