//! The present state, in sentences.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::JobKey;
use greenroom_core::instance::Instance;
use greenroom_core::plan::table::ROWS;
use greenroom_core::report::{Note, WaitingOn};

use super::Chapter;
use crate::cli::pool::status::{
    InstanceView, LaunchBackoff, StatusInput, hosts, is_suspended, job_on_what, offerings, on_what,
};
use crate::cli::ui::plural;
use crate::cli::when::When;

/// The state of a job.
pub(super) fn job(chapter: &Chapter<'_>, job: &JobKey, when: &When) -> Vec<String> {
    let state = chapter.state;
    let mut now = Vec::new();
    for (at, reservation) in state.waiting.values().enumerate().filter(|(_, r)| r.job.key == *job) {
        let on = chapter.report.and_then(|report| report.waiting_on(&reservation.attempt));
        now.push(format!(
            "waiting for {} at place {}, times out {}: {}",
            when.age(reservation.requested_at),
            at + 1,
            when.left(reservation.deadline()),
            job_on_what(reservation, on.unwrap_or(&WaitingOn::NextPass), state, when),
        ));
    }
    for instance in state.instances.values() {
        for holder in instance.holders.values().filter(|h| h.job == *job) {
            now.push(match holder.closing {
                None => format!("running on {} for {}", instance.id, when.age(holder.granted)),
                Some(since) => {
                    format!(
                        "closing for {}: its last call still holds a slot of {}",
                        when.age(since),
                        instance.id
                    )
                }
            });
        }
    }
    if now.is_empty() {
        let kept = state.policy.as_ref().map_or(Duration::ZERO, |p| p.timing.place_retention);
        let place = state.places.get(job).filter(|place| when.now().since(place.ended_at) < kept);
        let place = place.map(|place| {
            let left = when.age(place.ended_at);
            let until = when.until(place.ended_at.plus(kept));
            format!("left the queue {left} ago; its place is kept for a retry {until}")
        });
        now.push(place.unwrap_or_else(|| "neither waiting nor running".to_owned()));
    }
    now
}

/// The keys that shorten the wait of a job.
pub(super) fn job_advice(chapter: &Chapter<'_>, job: &JobKey) -> Vec<String> {
    let state = chapter.state;
    let waiting = state.waiting.values().filter(|r| r.job.key == *job);
    let advice = waiting.flat_map(|r| {
        let on = chapter.report.and_then(|report| report.waiting_on(&r.attempt));
        let on = on.unwrap_or(&WaitingOn::NextPass);
        let boots = matches!(on, WaitingOn::Boot { .. });
        // `idle_count` keeps no instance ready for it.
        let of_wait = || super::advice::of_wait(on, chapter.pool, state.policy.as_deref());
        let of_step = if boots && r.job.order.is_some() { None } else { of_wait() };
        of_step.into_iter().chain(r.job.order.as_deref().map(super::advice::of_order))
    });
    advice.collect()
}

/// The state of an offering; `None`: the pool has none of that name.
pub(super) fn offering(chapter: &Chapter<'_>, name: &str, when: &When) -> Option<Vec<String>> {
    let state = chapter.state;
    let all = offerings(state, when.now());
    let at = all.iter().position(|each| each.name() == name)?;
    let of = |instance: &&Arc<Instance>| instance.offering().is_some_and(|known| known.as_str() == name);
    let instances: Vec<_> = state.instances.values().filter(of).collect();
    let jobs: usize = instances.iter().map(|instance| instance.holders.len()).sum();
    let mut now = vec![
        match &all[at].unavailable {
            Some(unavailable) => unavailable.until_tried(when),
            None => "available".to_owned(),
        },
        format!("number {} of {} in the order of preference", at + 1, all.len()),
    ];
    now.push(format!("{} with {}", plural(instances.len(), "instance"), plural(jobs, "job")));
    Some(now)
}

/// The keys that make an offering available sooner.
pub(super) fn offering_advice(chapter: &Chapter<'_>, name: &str, when: &When) -> Vec<String> {
    let all = offerings(chapter.state, when.now());
    let unavailable = all.iter().find(|each| each.name() == name).and_then(|each| each.unavailable.as_ref());
    let key = match unavailable.map(|unavailable| &unavailable.failure().class) {
        None => return Vec::new(),
        Some(ErrorClass::Quota) => "`quota_backoff` sets",
        Some(_) => "`stockout_backoff` and `stockout_backoff_max` set",
    };
    let pool = chapter.pool;
    vec![format!("{key} the pause after a refusal; `greenroom pool resume {pool}` ends it now")]
}

/// The state of a recorded instance.
pub(super) fn instance(chapter: &Chapter<'_>, known: &Instance, when: &When) -> Vec<String> {
    let Chapter { pool, state, report, keeper, .. } = *chapter;
    let view = InstanceView::of(
        known,
        &StatusInput { pool, state, report, keeper, links: None, containers: None },
        when,
    );
    let jobs: Vec<String> = known.holders.values().map(|h| h.job.to_string()).collect();
    let with = match jobs.len() {
        0 => String::new(),
        1 => format!(" with job {}", jobs.join("")),
        _ => format!(" with jobs {}", jobs.join(", ")),
    };
    let left = known.uses_left.map_or("any number of uses".to_owned(), |left| plural(left as usize, "use"));
    let mut now = vec![format!(
        "{}{with} for {}; {} served, {left} left",
        known.phase.word(),
        when.age(known.since),
        plural(usize::try_from(known.uses).unwrap_or(usize::MAX), "job"),
    )];
    now.extend(view.sentences());
    let Some(report) = chapter.report else { return now };
    if let Some((_, number)) = report.rows.iter().find(|(id, _)| *id == known.id)
        && let Some((_, recorded, _, _, verdict)) = ROWS.iter().find(|row| row.0 == *number)
    {
        now.push(format!("the keeper's verdict {} ago: {recorded}: {verdict}", when.age(report.at)));
    }
    let about = |note: &&Note| matches!(note, Note::CallsFailing { instance, .. } | Note::Suspect { instance, .. } if *instance == known.id);
    now.extend(report.notes.iter().filter(about).map(ToString::to_string));
    now.extend(console(chapter, known.id.as_str()));
    now
}

/// The last console lines of an instance that did not come up.
pub(super) fn console(chapter: &Chapter<'_>, instance: &str) -> Vec<String> {
    let failed = |note: &Note| match note {
        Note::BootFailed(boot) if boot.instance.as_str() == instance => Some(boot.console.clone()),
        _ => None,
    };
    let lines = chapter.report.and_then(|r| r.notes.iter().find_map(failed)).unwrap_or_default();
    lines.into_iter().map(|line| format!("console: {line}")).collect()
}

/// The state of a pool, and what blocks it.
pub(super) fn pool(chapter: &Chapter<'_>, when: &When) -> Vec<String> {
    let state = chapter.state;
    let mut now = vec![format!(
        "{}, {} in use, {} waiting",
        plural(state.instances.len(), "instance"),
        plural(usize::try_from(state.in_use()).unwrap_or(usize::MAX), "job slot"),
        plural(state.waiting.len(), "job"),
    )];
    now.extend(hosts(state).map(|hosts| format!("hosts: {}", hosts.text)));
    let resume = format!("`greenroom pool resume {}`", chapter.pool);
    let mut obstacles: Vec<String> = Vec::new();
    if let Some(since) = state.drained {
        obstacles.push(format!("drained by the operator {} ago; resume with {resume}", when.age(since)));
    }
    obstacles.extend(LaunchBackoff::of(state, when.now()).map(|backoff| delayed(&backoff, &resume, when)));
    let unavailable = offerings(state, when.now()).into_iter().filter_map(|each| each.unavailable);
    obstacles.extend(unavailable.map(|unavailable| unavailable.until_tried(when)));
    if chapter.keeper.is_absent() && !state.waiting.is_empty() {
        obstacles.push("no keeper is running; start one with `greenroom reap`".to_owned());
    }
    if let Some(report) = chapter.report {
        let launches = report.launches.as_ref().filter(|on| !is_suspended(on));
        obstacles.extend(launches.map(|on| on_what(on, state, when)));
        obstacles.extend(report.notes.iter().map(ToString::to_string));
    }
    if obstacles.is_empty() {
        obstacles.push("nothing blocks jobs or launches".to_owned());
    }
    now.extend(obstacles);
    now.extend(chapter.notices.iter().cloned());
    now
}

fn delayed(backoff: &LaunchBackoff, resume: &str, when: &When) -> String {
    let LaunchBackoff { until, paused, failure, failures } = backoff;
    let until = when.until(*until);
    if *paused {
        return format!(
            "launches are paused {until} after {failures} failures in a row (last: {failure}); resume now with {resume}"
        );
    }
    format!("no launch {until}, the last one failed ({failure})")
}
