//! Announced ends of instances, through the whole plan.

use crate::notation::{NOW, does, notes, span, table, world};

#[test]
fn an_instance_without_a_job_is_replaced_before_it_ends() {
    table(
        does,
        &[
            ("idle 5m ends now", "i1 drains: announced; terminate i1"),
            ("target 1 | idle 5m ends 1h", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
            ("target 1 | idle 5m ends 2h", ""),
            // It becomes ready first, or dies.
            ("booting 5s ends now", "probe i1"),
            // A waiting job gets another instance.
            ("idle 5m ends now; waits 8", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
            ("idle 5m ends now; idle 5m; waits 8", "i1 drains: announced; a8 gets i2; terminate i1"),
            ("static idle 5m ends now", ""),
            ("draining 5m ends now", "terminate i1"),
            ("idle 5m ends now named 8", ""),
        ],
    );
}

#[test]
fn what_only_an_instance_can_know_counts_like_what_is_listed() {
    table(
        does,
        &[
            ("idle 5m announced", "i1 drains: announced; terminate i1"),
            ("idle 5m announced ends now", "i1 drains: announced; terminate i1"),
            ("idle 5m announced ends 2h", "i1 drains: announced; terminate i1"),
            // The list is late, or fails.
            ("unlisted | idle 5m announced", "i1 drains: announced; terminate i1"),
            ("booting 5s announced", "probe i1"),
            ("static idle 5m announced", ""),
            ("held 5m by 7 announced", ""),
            ("idle 5m announced named 8", ""),
            ("idle 5m announced; waits 8", "i1 drains: announced; i2 intended; terminate i1; launch i2"),
        ],
    );
    table(
        notes,
        &[
            ("held 5m by 7 announced", "announced i1"),
            ("held 5m by 7 announced ends 2h", "announced i1"),
            // One after the other, in different words.
            ("held 5m by 7 announced ends now", "announced i1; announced i1"),
        ],
    );
}

#[test]
fn a_notice_from_two_sources_is_told_once() {
    let mut world = world("held 5m by 7 announced ends now");
    for notice in world.observed.announced.values_mut() {
        notice.text = "will end".to_owned();
    }
    let told = world.plan().report.notes;
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_job_keeps_its_instance_and_is_told() {
    table(does, &[("held 5m by 7 ends now", "")]);
    table(
        notes,
        &[
            ("held 5m by 7 ends now", "announced i1"),
            ("held 5m by 7 ends 1h", "announced i1"),
            ("held 5m by 7 ends 2h", ""),
            ("idle 5m ends now", ""),
        ],
    );
}

#[test]
fn a_pool_whose_provider_announces_ends_is_looked_at_while_it_has_instances() {
    let next = |line: &str| world(line).plan().report.next.map(|next| NOW.until(next));
    assert!(next("idle 5m") > Some(span("2s")));
    assert_eq!(next("notices 2s | idle 5m"), Some(span("2s")));
    assert_eq!(next("notices 2s | refused 5s"), next("refused 5s"));
    assert_eq!(next("notices 2s | "), None);
}
