//! Problems in a pool's state and last report.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_core::attempt::{AttemptSeen, End, over};
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::instance::{Instance, Phase};
use greenroom_core::policy::{Policy, Timing};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report};
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;

use super::code;
use crate::cli::pool::status::LaunchBackoff;
use crate::cli::ui::plural;
use crate::cli::when::When;

/// One pool.
#[derive(Debug)]
pub struct PoolFacts<'a> {
    pub pool: &'a PoolName,
    /// The configured policy; `None`: the configuration does not name the pool, or cannot be read.
    pub configured: Option<&'a Policy>,
    /// True if the configuration could be read.
    pub config_read: bool,
    pub state: &'a PoolState,
    pub report: Option<&'a Report>,
    pub attempts: &'a BTreeMap<AttemptName, AttemptSeen>,
}

pub(super) fn check(facts: &PoolFacts<'_>, when: &When) -> Vec<Finding> {
    let mut found = Vec::new();
    match facts.configured {
        Some(policy) => {
            found.extend(idle_over_limit(facts.pool, policy));
            found.extend(not_applied(facts, policy));
        }
        None if facts.config_read => found.extend(unconfigured(facts)),
        None => {}
    }
    found.extend(facts.state.drained.map(|since| drained(facts.pool, since, when)));
    found.extend(
        LaunchBackoff::of(facts.state, when.now()).map(|backoff| delayed(facts.pool, &backoff, when)),
    );
    found.extend(out_of_service(facts));
    found.extend(suspect(facts));
    found.extend(
        facts.report.into_iter().flat_map(|r| &r.notes).filter_map(|note| noted(facts.pool, note, when)),
    );
    found.extend(orphaned_attempts(facts, when));
    found
}

/// Over all entries: each can become active.
fn idle_over_limit(pool: &PoolName, policy: &Policy) -> Option<Finding> {
    let slots = u64::from(policy.max_instances) * u64::from(policy.capacity_per_instance);
    let entries = policy.schedules.iter().map(|entry| &entry.idle);
    let most = entries.chain(std::iter::once(&policy.idle)).map(|idle| idle.idle_count).max()?;
    (u64::from(most) > slots).then(|| {
        let what =
            format!("pool `{pool}` requests {most} idle slots (`idle_count`), but can have at most {slots}");
        code::POOL_IDLE_OVER_LIMIT.found(what, "raise `max_instances`, or lower `idle_count`")
    })
}

fn not_applied(facts: &PoolFacts<'_>, policy: &Policy) -> Option<Finding> {
    let recorded = facts.state.policy.as_deref()?;
    (recorded != policy).then(|| {
        let what = format!("the active policy of pool `{}` differs from the configuration", facts.pool);
        let remedy = "if the configuration has just changed, wait for the keeper's next reconcile pass";
        code::CONFIG_NOT_APPLIED.found(what, remedy)
    })
}

fn unconfigured(facts: &PoolFacts<'_>) -> Option<Finding> {
    let pool = facts.pool;
    let state = facts.state;
    if state.instances.is_empty() && state.waiting.is_empty() {
        return None;
    }
    let instances = plural(state.instances.len(), "instance");
    let jobs = plural(state.waiting.len(), "waiting job");
    let what = format!(
        "pool `{pool}` has {instances} and {jobs}, but no table `[pool.{pool}]`: no keeper reconciles it"
    );
    let remedy =
        format!("restore `[pool.{pool}]`, run `greenroom pool drain {pool} --wait`, then remove the table");
    Some(code::POOL_UNCONFIGURED.found(what, remedy))
}

fn drained(pool: &PoolName, since: Stamp, when: &When) -> Finding {
    let what = format!("pool `{pool}` was drained by the operator {} ago", when.age(since));
    let remedy = format!("run `greenroom pool resume {pool}` when it should accept jobs again");
    code::POOL_DRAINED.found(what, remedy)
}

fn delayed(pool: &PoolName, backoff: &LaunchBackoff, when: &When) -> Finding {
    let LaunchBackoff { until, paused, failure, failures } = backoff;
    if *paused {
        let until = when.until(*until);
        let what = format!(
            "pool `{pool}` is paused {until} after {failures} failed launches in a row (last: {failure})"
        );
        let remedy = format!("correct the cause, then run `greenroom pool resume {pool}`");
        return code::POOL_PAUSED.found(what, remedy);
    }
    let what = format!("the last launch of pool `{pool}` failed ({failure})");
    code::POOL_LAUNCHES_FAIL.found(what, format!("wait for the next try ({})", when.left(*until)))
}

fn out_of_service(facts: &PoolFacts<'_>) -> Vec<Finding> {
    let finding = |instance: &Arc<Instance>| {
        let Phase::OutOfService { reason: why } = &instance.phase else { return None };
        let pool = facts.pool;
        let id = &instance.id;
        let what = format!("instance {id} of pool `{pool}` is out of service: {why}");
        let remedy = format!("check the instance, then run `greenroom pool resume {pool} --instance {id}`");
        Some(code::POOL_OUT_OF_SERVICE.found(what, remedy))
    };
    facts.state.instances.values().filter_map(finding).collect()
}

fn suspect(facts: &PoolFacts<'_>) -> Vec<Finding> {
    let finding = |instance: &Arc<Instance>| {
        let row = instance.suspicion().filter(|_| instance.phase == Phase::Ready)?;
        let pool = facts.pool;
        let id = &instance.id;
        let reason = &row.reason;
        let what = format!(
            "jobs of two projects failed on instance {id} of pool `{pool}` at their start; other jobs get it last: {reason}"
        );
        let next = if instance.is_static() {
            "check the host; a job that passes there ends this"
        } else {
            "none: the keeper replaces it once a job has passed on another instance; `recheck_command` finds such \
             instances earlier"
        };
        Some(code::POOL_SUSPECT.found(what, next))
    };
    facts.state.instances.values().filter_map(finding).collect()
}

/// Notes that an operator can act on. The others have a check of their own, or resolve themselves.
fn noted(pool: &PoolName, note: &Note, when: &When) -> Option<Finding> {
    let what = format!("pool `{pool}`: {note}");
    Some(match note {
        Note::ListFailed { .. } | Note::ListIncomplete => {
            let remedy = format!(
                "check that the provider is reachable and permits listing; until then no instance is replaced. If it is gone \
                 for good: `greenroom pool resume {pool} --forget-unreachable`"
            );
            code::POOL_LIST_FAILING.found(what, remedy)
        }
        Note::OwnerConflict { .. } => {
            let remedy = "find the other keeper, perhaps on a clone of the runner host, \
                          and run `greenroom doctor --new-owner` there";
            code::POOL_OWNER_CONFLICT.found(what, remedy)
        }
        Note::Copies { .. } => {
            let remedy = "terminate the copies at the provider, or remove their tags `greenroom-…`; \
                          launch no instance like one of Greenroom's";
            code::POOL_COPIES.found(what, remedy)
        }
        Note::Elsewhere { location, .. } => {
            let remedy = format!(
                "restore the `kind`, the region, the project and the credentials of {location}; before another change, \
                 run `greenroom pool drain {pool} --wait`. If that place no longer exists: `greenroom pool resume {pool} \
                 --forget-elsewhere`"
            );
            code::POOL_ELSEWHERE.found(what, remedy)
        }
        Note::LocationUnknown { .. } => {
            let remedy = "let the runner host reach AWS STS, or set `sts_endpoint`; the call `sts:GetCallerIdentity` \
                          needs no permission";
            code::POOL_LOCATION_UNKNOWN.found(what, remedy)
        }
        Note::ListImplausible { .. } => {
            let remedy = "check the provider, the filter of its program, and its credentials: the list is complete, \
                          but it has none of the pool's instances";
            code::POOL_LIST_IMPLAUSIBLE.found(what, remedy)
        }
        Note::HostSuspected { .. } => {
            let remedy = "check the runner host: routes, firewall, connection tracking, open files; afterwards the \
                          instances get jobs again";
            code::POOL_HOST_SUSPECTED.found(what, remedy)
        }
        Note::OverLimit { .. } => code::POOL_OVER_LIMIT.noted(what),
        Note::CallsFailing { instance, .. } => {
            code::POOL_CALLS_FAILING.found(what, format!("run `greenroom explain {instance}`"))
        }
        Note::ImageNotPulled { .. } => {
            let remedy = format!(
                "correct the name in `images_warm`, or `registry_auth`, `mirrors` and `ca`; run `greenroom doctor --boot \
                 {pool}` to try the registries. Jobs are not affected: they pull the image themselves"
            );
            code::POOL_PULLS_FAILING.found(what, remedy)
        }
        Note::Unavailable { .. } => {
            let remedy = "start the host if it should be running; it gets jobs again as soon as it responds";
            code::POOL_HOST_UNAVAILABLE.found(what, remedy)
        }
        Note::AttemptUnreadable { .. } => {
            let remedy = "make the file readable if a change of its owner or mode caused this; otherwise wait: the \
                          runner ends the job, and a retry gets a new attempt";
            code::ATTEMPTS_UNREADABLE.found(what, remedy)
        }
        Note::Announced { .. } => code::POOL_ANNOUNCED.noted(what),
        Note::SuspensionsFail { until, .. } => {
            let remedy = format!(
                "correct the cause, or remove `idle_stopped`; another instance is suspended {}",
                when.left(*until)
            );
            code::POOL_SUSPENSIONS_FAIL.found(what, remedy)
        }
        Note::Unfit { .. } => {
            let remedy = "see what the jobs before left there; more space for builds helps, or `max_use_count = 1`, which gives \
                          each job an instance of its own";
            code::POOL_UNFIT.found(what, remedy)
        }
        // The provider's own findings have it.
        Note::CannotSuspend | Note::OwnKey(_) => return None,
        Note::Suspect { .. } | Note::BootFailed(_) | Note::ConfigInvalid { .. } | Note::Moved { .. } => {
            return None;
        }
    })
}

fn orphaned_attempts(facts: &PoolFacts<'_>, when: &When) -> Option<Finding> {
    let fallback = Timing::default();
    let timing = facts.state.policy.as_ref().map_or(&fallback, |policy| &policy.timing);
    let ended = |(name, seen): (&AttemptName, &AttemptSeen)| {
        let end = over(seen, timing, when.now()).filter(|end| *end != End::CleanedUp)?;
        let job = seen.job.as_ref().map_or_else(|| "a job".to_owned(), |job| format!("job {}", job.key));
        Some(format!("{job} ({end}, `{name}`)"))
    };
    let ended: Vec<String> = facts.attempts.iter().filter_map(ended).collect();
    (!ended.is_empty()).then(|| {
        let what = format!(
            "{} of pool `{}` ended without `cleanup`: {}",
            plural(ended.len(), "attempt"),
            facts.pool,
            ended.join(", ")
        );
        code::ATTEMPTS_ORPHANED.found(
            what,
            "run `greenroom reap` to release what they hold; a running keeper does that by itself",
        )
    })
}

#[cfg(test)]
pub(super) mod tests;
