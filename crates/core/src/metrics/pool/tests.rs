//! A pool's metrics, from worlds in one line.

use super::*;
use crate::metrics::Format;
use crate::notation::{World, world};
use crate::report::ApiCalls;

fn text_of(world: &World, report: Option<&Report>) -> String {
    let mut out = Exposition::default();
    let facts = PoolFacts {
        pool: "vm",
        provider: Some("qemu"),
        state: Some(&world.state),
        report,
        links: 2,
        reserve: Some(true),
        leaks: Some((world.now, 3)),
        now: world.now,
    };
    add(&mut out, &facts);
    out.render(Format::Text)
}

#[track_caller]
fn has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn slots_are_counted_by_what_they_do() {
    let world = world("max 9, cap 3 | idle 5m; held 3m by 7; booting 5s; draining 5s by 9; waits 8");
    has(
        &text_of(&world, None),
        &[
            "greenroom_slots{pool=\"vm\",state=\"in-use\"} 2",
            "greenroom_slots{pool=\"vm\",state=\"idle\"} 5",
            "greenroom_slots{pool=\"vm\",state=\"launching\"} 3",
            "greenroom_slots{pool=\"vm\",state=\"draining\"} 2",
            "greenroom_slots{pool=\"vm\",state=\"cleaning\"} 0",
            "greenroom_instances{pool=\"vm\",phase=\"ready\"} 2",
            "greenroom_slots_limit{pool=\"vm\"} 27",
            "greenroom_instances_limit{pool=\"vm\"} 9",
            "greenroom_jobs_waiting{pool=\"vm\"} 1",
            "greenroom_pool_info{pool=\"vm\",provider=\"qemu\"} 1",
            "greenroom_pool_readable{pool=\"vm\"} 1",
            "greenroom_links{pool=\"vm\"} 2",
            "greenroom_disk_reserve{pool=\"vm\"} 1",
            "greenroom_breaker_open{pool=\"vm\"} 0",
            "greenroom_orphaned_resources{pool=\"vm\",source=\"leaks\"} 3",
        ],
    );
}

#[test]
fn the_report_of_a_pass_is_shown() {
    let world = world("max 1 | held 5m by 7; orphan 2h running; waits 8");
    let mut report = world.plan().report;
    report.listed = Some(world.now);
    report.api_calls = Some(ApiCalls { ok: 5, failed: 0, throttled: 2, postponed: 1 });
    has(
        &text_of(&world, Some(&report)),
        &[
            "greenroom_jobs_blocked{pool=\"vm\",reason=\"limit\"} 1",
            "greenroom_jobs_blocked{pool=\"vm\",reason=\"boot\"} 0",
            "greenroom_orphaned_resources{pool=\"vm\",source=\"pass\"} 1",
            "greenroom_last_list_timestamp_seconds{pool=\"vm\"} 1781524800",
            "greenroom_provider_api_calls_total{pool=\"vm\",provider=\"qemu\",result=\"throttled\"} 2",
            "greenroom_notes{pool=\"vm\",note=\"over-limit\"} 1",
        ],
    );
}

#[test]
fn no_job_and_no_instance_is_named() {
    let world = world("max 9 | idle 5m; held 3m by 7; booting 5s; waits 8; orphan 2h running");
    let text = text_of(&world, Some(&world.plan().report));
    for name in ["p-g-", "a7", "a8", "group/", "u1"] {
        assert!(!text.contains(name), "{name} is in\n{text}");
    }
}

#[test]
fn a_state_that_cannot_be_read_leaves_the_rest() {
    let mut out = Exposition::default();
    let facts = PoolFacts {
        pool: "vm",
        provider: None,
        state: None,
        report: None,
        links: 0,
        reserve: None,
        leaks: None,
        now: crate::notation::NOW,
    };
    add(&mut out, &facts);
    let text = out.render(Format::OpenMetrics);
    has(&text, &["greenroom_pool_readable{pool=\"vm\"} 0", "greenroom_links{pool=\"vm\"} 0", "# EOF"]);
    assert!(!text.contains("greenroom_slots"));
}
