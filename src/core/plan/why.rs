//! Last step: what each waiting job waits for.

use super::attempts::UngrantedAttempts;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::scale::{self, ScaleReport};
use super::upcoming::UpcomingCapacity;
use super::{ScaleInput, counts};
use crate::core::ids::AttemptName;
use crate::core::instance::Phase;
use crate::core::pool::PoolState;
use crate::core::report::{Report, WaitingOn};
use crate::core::reservation::Reservation;
use crate::core::time::Stamp;

pub(super) fn step(draft: &PlanBuilder<'_>, aim: &ScaleInput<'_>, wish: &ScaleReport, report: &mut Report) {
    let state = draft.state();
    if state.waiting.is_empty() {
        return;
    }
    let mut outlook = UpcomingCapacity::new(state, aim.policy, aim.strays);
    let mut rest = Rest { draft, aim, wish, full: None, ahead: 0 };
    report.waiting.reserve(state.waiting.len());
    for job in state.waiting.values() {
        let drained = wish.blocked.as_ref().filter(|on| matches!(on, WaitingOn::Drained { .. }));
        let coming = if drained.is_none() { outlook.serve(job) } else { None };
        let on = match coming.map(|i| (i.phase == Phase::Cleaning, i.id.clone())) {
            Some((true, instance)) => WaitingOn::Cleaning { instance },
            Some((false, instance)) => WaitingOn::Boot { instance },
            None => rest.reason(job),
        };
        report.waiting.push((job.attempt.clone(), on));
    }
}

/// What the attempt waits for according to the record alone, for a call that cannot wait for the keeper's report.
pub fn by_record(state: &PoolState, attempt: &AttemptName, now: Stamp) -> Option<WaitingOn> {
    let policy = state.policy.as_deref()?;
    let (observed, strays) = (Observed::nothing(state, now), UngrantedAttempts::default());
    let mut draft = PlanBuilder::new(state, now);
    let mut report = Report::new(now, state.revision);
    let aim = ScaleInput::of(&draft, &observed, policy, &strays, 0);
    let wish = scale::step(&mut draft, &aim, &mut report);
    step(&draft, &aim, &wish, &mut report);
    let (_, on) = report.waiting.into_iter().find(|(name, _)| name == attempt)?;
    // A launch that the next pass would make is none yet.
    let to_come = matches!(&on, WaitingOn::Boot { instance } if state.instance(instance).is_none());
    (!to_come && on != WaitingOn::NextPass).then_some(on)
}

/// The jobs that nothing on its way will serve.
struct Rest<'a> {
    draft: &'a PlanBuilder<'a>,
    aim: &'a ScaleInput<'a>,
    wish: &'a ScaleReport,
    /// What a full pool says to the first of them; looked up once.
    full: Option<WaitingOn>,
    ahead: u32,
}

impl Rest<'_> {
    fn reason(&mut self, job: &Reservation) -> WaitingOn {
        let before = self.ahead;
        self.ahead += 1;
        let policy = self.aim.policy;
        let drained = matches!(self.wish.blocked, Some(WaitingOn::Drained { .. }));
        if let Some(limit) = policy.max_lifetime.filter(|_| !drained && !policy.has_time_for(&job.job)) {
            return WaitingOn::TooLong { timeout: job.job.timeout, max_lifetime: limit.0 };
        }
        if let Some(blocked) = &self.wish.blocked {
            return blocked.clone();
        }
        let full = self.full.get_or_insert_with(|| full(self.draft, self.aim, self.wish));
        if let WaitingOn::Limit { in_use, max_instances, .. } = *full {
            return WaitingOn::Limit { in_use, max_instances, ahead: before };
        }
        full.clone()
    }
}

fn full(draft: &PlanBuilder<'_>, aim: &ScaleInput<'_>, wish: &ScaleReport) -> WaitingOn {
    if !wish.limit_reached {
        return WaitingOn::NextPass;
    }
    let instances = draft.state().instances.values();
    if let Some(leaving) = instances.clone().find(|i| counts::is_leaving(i, aim)) {
        return WaitingOn::Room { instance: leaving.id.clone() };
    }
    let in_use = u32::try_from(instances.filter(|i| !i.is_idle()).count()).unwrap_or(u32::MAX);
    WaitingOn::Limit { in_use, max_instances: aim.policy.max_instances, ahead: 0 }
}

/// Everybody waits for the same thing.
pub(super) fn all_waiting(draft: &PlanBuilder<'_>, report: &mut Report, problem: &str) {
    for reservation in draft.state().waiting.values() {
        let on = WaitingOn::Moved { problem: problem.to_owned() };
        report.waiting.push((reservation.attempt.clone(), on));
    }
}
