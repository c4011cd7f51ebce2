//! The conditions of a pool, and of the keeper, that operators are told.

use std::time::Duration;

use super::{Condition, NoticeKind};
use crate::ids::InstanceId;
use crate::instance::Phase;
use crate::plan::backoff::{self, LaunchGate};
use crate::plan::table;
use crate::pool::PoolState;
use crate::report::Report;
use crate::time::Stamp;

/// So many crashes within `CRASHES_WITHIN` are told.
const CRASHES: usize = 3;
const CRASHES_WITHIN: Duration = Duration::from_hours(1);
/// Names in one message.
const MOST_NAMES: usize = 5;
/// The longest message, in characters: a provider's own text is part of it.
const LONGEST: usize = 1_000;

/// The instances without a record in the report of a pass.
pub fn orphans(report: &Report) -> Vec<InstanceId> {
    report.rows.iter().filter(|(_, row)| table::is_orphan(*row)).map(|(id, _)| id.clone()).collect()
}

/// The conditions that hold for a pool now. `orphans` are those of its last pass.
pub fn of_pool(pool: &str, state: &PoolState, orphans: &[InstanceId], now: Stamp) -> Vec<Condition> {
    let condition = |kind, instance, message: String, help| {
        let message = message.chars().take(LONGEST).collect();
        Condition { kind, pool: Some(pool.to_owned()), instance, message, help }
    };
    let mut found = Vec::new();
    let gate = state.policy.as_ref().map(|policy| backoff::judge(&state.launches, &policy.timing, now));
    if let Some(LaunchGate::Paused { failures, failure, .. } | LaunchGate::Trial { failures, failure, .. }) =
        gate
    {
        let message =
            format!("pool `{pool}` pauses launches after {failures} failures in a row (last: {failure})");
        let help = format!(
            "run `greenroom explain {pool}`; after you removed the cause, run `greenroom pool resume {pool}`"
        );
        found.push(condition(NoticeKind::BreakerOpen, None, message, help));
    }
    if !orphans.is_empty() {
        let names: Vec<&str> = orphans.iter().take(MOST_NAMES).map(InstanceId::as_str).collect();
        let more = if orphans.len() > MOST_NAMES { ", …" } else { "" };
        let count = orphans.len();
        let message = format!("pool `{pool}` has orphaned instances ({count}): {}{more}", names.join(", "));
        found.push(condition(
            NoticeKind::OrphanFound,
            None,
            message,
            format!("run `greenroom pool leaks {pool}`"),
        ));
    }
    for instance in state.instances.values() {
        if let Phase::OutOfService { reason } = &instance.phase {
            let id = &instance.id;
            let message = format!("host `{id}` of pool `{pool}` is out of service: {reason}");
            let help = format!("after you repaired it, run `greenroom pool resume {pool} --instance {id}`");
            found.push(condition(NoticeKind::HostOutOfService, Some(id.to_string()), message, help));
        }
    }
    found
}

/// The condition that these crashes of keepers mean, if any.
pub fn of_keeper(crashes: &[Stamp], now: Stamp) -> Option<Condition> {
    let recent = crashes.iter().filter(|at| now.age_of(**at) < CRASHES_WITHIN).count();
    (recent >= CRASHES).then(|| Condition {
        kind: NoticeKind::KeeperRestarts,
        pool: None,
        instance: None,
        message: format!("the keeper was killed, or crashed, {recent} times within an hour"),
        help: "read the journal of its service, or keeper.log in the state directory".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::{NOW, ago, failure, world};

    fn kinds(found: &[Condition]) -> Vec<&'static str> {
        found.iter().map(|condition| condition.kind.word()).collect()
    }

    #[test]
    fn a_pools_conditions_come_from_its_state_and_its_report() {
        let calm = world("idle 5m");
        assert_eq!(of_pool("vm", &calm.state, &orphans(&calm.plan().report), NOW), []);

        let mut world = world("static out-of-service 5m; orphan 2h running; idle 5m");
        let report = world.plan().report;
        let found = of_pool("vm", &world.state, &orphans(&report), NOW);
        assert_eq!(kinds(&found), ["orphan-found", "host-out-of-service"]);
        assert_eq!(found[0].message, "pool `vm` has orphaned instances (1): u2");
        assert_eq!(found[1].instance.as_deref(), Some("h1"));

        world.state.launches.failures = 99;
        let quota = crate::failure::ErrorClass::Quota;
        world.state.launches.last = Some((NOW, failure(quota)));
        let found = of_pool("vm", &world.state, &[], NOW);
        assert_eq!(kinds(&found), ["breaker-open", "host-out-of-service"]);
        assert!(
            found[0].message.starts_with("pool `vm` pauses launches after 99 failures in a row (last: quota")
        );
    }

    #[test]
    fn crashes_count_within_an_hour() {
        let minutes =
            |ages: &[u64]| ages.iter().map(|age| ago(Duration::from_mins(*age))).collect::<Vec<_>>();
        assert_eq!(of_keeper(&minutes(&[50, 30]), NOW), None);
        assert_eq!(of_keeper(&minutes(&[70, 50, 30]), NOW), None);
        assert!(of_keeper(&minutes(&[70, 50, 30, 1]), NOW).expect("three").message.contains("3 times"));
    }
}
