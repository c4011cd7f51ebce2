//! The metrics of one pool, from its recorded state and the report of its last pass.

use std::collections::BTreeMap;

use super::catalogue as m;
use super::catalogue::{self, Metric};
use super::exposition::Exposition;
use crate::plan::backoff::{self, LaunchGate};
use crate::plan::table;
use crate::pool::PoolState;
use crate::report::Report;
use crate::start::Start;
use crate::time::Stamp;

/// The known facts of a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolFacts<'a> {
    pub pool: &'a str,
    /// The kind of its provider, if the configuration has the pool.
    pub provider: Option<&'a str>,
    /// `None`: it cannot be read.
    pub state: Option<&'a PoolState>,
    pub report: Option<&'a Report>,
    /// Open links.
    pub links: u64,
    /// True if the reserve of disk space is there; `None`: the pool never needed one.
    pub reserve: Option<bool>,
    /// Orphaned resources that `pool leaks` found last, and when.
    pub leaks: Option<(Stamp, u64)>,
    pub now: Stamp,
}

/// Adds the metrics of a pool.
pub fn add(out: &mut Exposition, facts: &PoolFacts<'_>) {
    let pool = facts.pool;
    if let Some(provider) = facts.provider {
        out.set(&m::POOL, &[pool, provider], 1.0);
    }
    out.flag(&m::POOL_READABLE, &[pool], facts.state.is_some());
    if let Some(state) = facts.state {
        capacity(out, pool, state);
        jobs(out, pool, state, facts.now);
        launches(out, pool, state, facts.now);
    }
    if let Some(report) = facts.report {
        of_report(out, facts, report);
    }
    if let Some((at, orphans)) = facts.leaks {
        out.count(&m::ORPHANS, &[pool, "leaks"], orphans);
        moment(out, &m::ORPHANS_CHECKED, &[pool, "leaks"], at);
    }
    out.count(&m::LINKS, &[pool], facts.links);
    if let Some(there) = facts.reserve {
        out.flag(&m::DISK_RESERVE, &[pool], there);
    }
}

fn capacity(out: &mut Exposition, pool: &str, state: &PoolState) {
    let mut slots: BTreeMap<&str, u64> = BTreeMap::new();
    let mut phases: BTreeMap<&str, u64> = BTreeMap::new();
    for instance in state.instances.values() {
        *phases.entry(catalogue::phase(&instance.phase)).or_default() += 1;
        *slots.entry("in-use").or_default() += u64::try_from(instance.holders.len()).unwrap_or(u64::MAX);
        *slots.entry(catalogue::free(instance)).or_default() += u64::from(instance.free_slots());
    }
    each(out, &m::SLOTS, pool, &catalogue::SLOT_STATES, &slots);
    each(out, &m::INSTANCES, pool, &catalogue::PHASES, &phases);
    if let Some(policy) = &state.policy {
        let instances = u64::from(policy.max_instances);
        let each = u64::from(policy.capacity_per_instance);
        out.count(&m::INSTANCES_LIMIT, &[pool], instances);
        out.count(&m::SLOTS_LIMIT, &[pool], instances * each);
    }
    out.flag(&m::POOL_DRAINED, &[pool], state.drained.is_some());
    out.count(&m::HOSTS_OUT_OF_SERVICE, &[pool], state.counters.out_of_service);
}

fn jobs(out: &mut Exposition, pool: &str, state: &PoolState, now: Stamp) {
    let counters = &state.counters;
    out.count(&m::JOBS_WAITING, &[pool], u64::try_from(state.waiting.len()).unwrap_or(u64::MAX));
    let longest = state.waiting.values().map(|request| now.since(request.requested_at)).max();
    out.set(&m::LONGEST_WAIT, &[pool], longest.unwrap_or_default().as_secs_f64());
    for start in Start::ALL {
        let started = counters.started.get(&start).copied().unwrap_or(0);
        out.count(&m::JOBS_STARTED, &[pool, start.word()], started);
    }
    out.histogram(&m::JOB_WAIT, &[pool], &counters.waits);
    out.count(&m::JOBS_WITHDRAWN, &[pool], counters.withdrawn);
    out.count(&m::GRANTS_REJECTED, &[pool], counters.rejected);
}

fn launches(out: &mut Exposition, pool: &str, state: &PoolState, now: Stamp) {
    let counters = &state.counters;
    for (offering, boots) in &counters.boots {
        let results = [("ready", boots.ready.count()), ("failed", boots.failed), ("refused", boots.refused)];
        for (result, count) in results {
            out.count(&m::BOOTS, &[pool, offering, result], count);
        }
        out.histogram(&m::BOOT_TIME, &[pool, offering], &boots.ready);
    }
    let named = |map: &BTreeMap<String, u64>, word: &str| map.get(word).copied().unwrap_or(0);
    for class in catalogue::CLASSES {
        out.count(&m::LAUNCH_FAILURES, &[pool, class], named(&counters.launch_failures, class));
    }
    for reason in catalogue::DRAIN_REASONS {
        out.count(&m::DRAINED, &[pool, reason], named(&counters.drained, reason));
    }
    out.count(&m::FAILURES_IN_A_ROW, &[pool], u64::from(state.launches.failures));
    let Some(policy) = &state.policy else { return };
    let gate = backoff::judge(&state.launches, &policy.timing, now);
    // During a trial, the breaker is still open: one launch decides.
    let open = matches!(gate, LaunchGate::Paused { .. } | LaunchGate::Trial { .. });
    out.flag(&m::BREAKER_OPEN, &[pool], open);
    let delayed = matches!(gate, LaunchGate::Paused { .. } | LaunchGate::Backoff { .. });
    out.flag(&m::LAUNCHES_DELAYED, &[pool], delayed);
    let all = u64::try_from(state.availability.offerings().len()).unwrap_or(u64::MAX);
    let unavailable = state.availability.unavailable(&policy.timing, now).count();
    let unavailable = u64::try_from(unavailable).unwrap_or(u64::MAX);
    out.count(&m::OFFERINGS, &[pool, "available"], all.saturating_sub(unavailable));
    out.count(&m::OFFERINGS, &[pool, "unavailable"], unavailable);
}

fn of_report(out: &mut Exposition, facts: &PoolFacts<'_>, report: &Report) {
    let pool = facts.pool;
    out.count(&m::IDLE_SLOTS_TARGET, &[pool], u64::from(report.idle_target));
    moment(out, &m::LAST_PASS, &[pool], report.at);
    if let Some(next) = report.next {
        moment(out, &m::NEXT_PASS, &[pool], next);
    }
    if let Some(listed) = report.listed {
        moment(out, &m::LAST_LIST, &[pool], listed);
    }
    let mut blocked: BTreeMap<&str, u64> = BTreeMap::new();
    // A job that got its slot since the pass waits no longer.
    let waits = |attempt| facts.state.is_none_or(|state| state.waiting_for(attempt).is_some());
    for (_, on) in report.waiting.iter().filter(|(attempt, _)| waits(attempt)) {
        *blocked.entry(catalogue::blocked(on)).or_default() += 1;
    }
    each(out, &m::JOBS_BLOCKED, pool, &catalogue::BLOCKED, &blocked);
    let mut notes: BTreeMap<&str, u64> = BTreeMap::new();
    for note in &report.notes {
        *notes.entry(catalogue::note(note)).or_default() += 1;
    }
    each(out, &m::NOTES, pool, &catalogue::NOTE_LABELS, &notes);
    let orphans = report.rows.iter().filter(|(_, row)| table::is_orphan(*row)).count();
    out.count(&m::ORPHANS, &[pool, "pass"], u64::try_from(orphans).unwrap_or(u64::MAX));
    moment(out, &m::ORPHANS_CHECKED, &[pool, "pass"], report.listed.unwrap_or(report.at));
    if let (Some(calls), Some(provider)) = (&report.api_calls, facts.provider) {
        let results = [
            ("ok", calls.ok),
            ("failed", calls.failed),
            ("throttled", calls.throttled),
            ("postponed", calls.postponed),
        ];
        for (result, count) in results {
            out.count(&m::API_CALLS, &[pool, provider, result], count);
        }
    }
}

/// Adds one series for each value of the label, also where it is zero.
fn each(out: &mut Exposition, metric: &Metric, pool: &str, words: &[&str], counts: &BTreeMap<&str, u64>) {
    for word in words {
        out.count(metric, &[pool, word], counts.get(word).copied().unwrap_or(0));
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are exact in a float")]
fn moment(out: &mut Exposition, metric: &Metric, labels: &[&str], at: Stamp) {
    out.set(metric, labels, at.wall_ms as f64 / 1e3);
}

#[cfg(test)]
mod tests {
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
}
