//! The status of a pool, for a terminal.

use std::fmt::Write as _;

use super::links;
use super::model::{ActivePolicy, KeeperStatus, Overview, Suspension, until_tried};
use crate::cli::rows::{Rows, shortened, wrapped};
use crate::cli::ui::plural;
use crate::cli::when::{When, whole};
use crate::core::ids::TrustDomain;
use crate::core::instance::Instance;
use crate::core::report::{Note, WaitingOn};

/// The widest name of a project.
const NAME_COLUMNS: usize = 24;
/// How many jobs of an instance are named at most.
const JOBS_NAMED: usize = 3;

pub(super) fn text(seen: &Overview<'_>, when: &When, width: usize) -> String {
    let mut text = head(seen, when, width);
    if !seen.instances.is_empty() {
        text.push('\n');
        text.push_str(&instances(seen, when, width));
    }
    if let Some(survey) = seen.links
        && !seen.instances.is_empty()
    {
        text.push('\n');
        text.push_str(&links::table(&seen.instances, survey, when, width));
    }
    if !seen.waiting.is_empty() {
        text.push('\n');
        text.push_str(&waiting(seen, when, width));
    }
    text
}

/// All lines about the pool as a whole: `  word: sentence`.
fn head(seen: &Overview<'_>, when: &When, width: usize) -> String {
    let mut text = String::new();
    let most = seen.policy.as_ref().map_or(0, |p| p.policy.max_instances);
    // Writing to a string cannot fail.
    writeln!(
        text,
        "pool {}: {} of {most} instances, {} of {} job slots in use, {} waiting",
        seen.pool,
        seen.state.alive(),
        seen.in_use,
        seen.slots,
        plural(seen.waiting.len(), "job"),
    )
    .ok();
    let mut line = |word: &str, sentence: &str| {
        text.push_str(&wrapped(&format!("{word}: {sentence}"), width, "  ", "    "));
    };
    for halt in &seen.suspensions {
        let (word, sentence) = halted(seen, halt, when);
        line(word, &sentence);
    }
    match &seen.policy {
        Some(policy) => line("policy", &in_force(policy, when)),
        None => line("policy", "none, no keeper has read the configuration yet"),
    }
    line("idle", &format!("{} of {} wanted slots", seen.idle, seen.idle_target));
    let phases: Vec<String> = seen.phases().iter().map(|(word, count)| format!("{count} {word}")).collect();
    if !phases.is_empty() {
        line("phases", &phases.join(", "));
    }
    line("keeper", &keeper(seen, when));
    if let Some(survey) = seen.links {
        let ids = seen.instances.iter().map(|each| &each.instance.id);
        line("links", &links::summary(ids.flat_map(|id| survey.of(id))));
    }
    for passed in seen.offerings.iter().filter_map(|each| each.unavailable.as_ref()) {
        line("offering", &until_tried(passed, when));
    }
    if let Some(launches) = launches(seen, when) {
        line("launches", &launches);
    }
    for note in seen.report.into_iter().flat_map(|r| &r.notes) {
        line("note", &noted(note, when));
    }
    text
}

fn halted(seen: &Overview<'_>, halt: &Suspension, when: &When) -> (&'static str, String) {
    let pool = seen.pool;
    match halt {
        Suspension::Drained { since } => (
            "DRAINED",
            format!(
                "by the operator since {} ({} ago), no grants and no launches; resume with \
                 `greenroom pool resume {pool}`",
                when.clock(*since),
                when.age(*since),
            ),
        ),
        Suspension::Paused { until, failures, failure } => (
            "PAUSED",
            format!(
                "{} after {failures} failed launches in a row (last: {failure}); \
                 resume now with `greenroom pool resume {pool}`",
                when.until(*until)
            ),
        ),
        Suspension::Backoff { until, failure } => {
            ("launches", format!("none {}, the last one failed ({failure})", when.until(*until)))
        }
    }
}

fn in_force(force: &ActivePolicy<'_>, when: &When) -> String {
    let idle = force.idle;
    let mut text = match force.entry {
        Some((index, schedule)) => {
            let periods: Vec<String> = schedule.periods.iter().map(|p| format!("`{p}`")).collect();
            format!("entry {} ({} {})", index + 1, periods.join(", "), schedule.timezone)
        }
        None => "the default".to_owned(),
    };
    if let Some(until) = force.until {
        write!(text, " until {}", when.minute(until)).ok();
    }
    write!(text, ": `idle_count = {}`, `idle_time = {}`", idle.idle_count, whole(idle.idle_time)).ok();
    if idle.scale_factor > 0.0 {
        write!(text, ", `scale_factor = {}`", idle.scale_factor).ok();
    }
    text
}

fn keeper(seen: &Overview<'_>, when: &When) -> String {
    let last_pass = match seen.report {
        Some(report) => format!("last pass {} ago", when.age(report.at)),
        None => "no pass yet".to_owned(),
    };
    match seen.keeper {
        KeeperStatus::Runs => match seen.report.and_then(|r| r.next) {
            Some(next) if !when.now().reached(next) => {
                format!("running, {last_pass}, next pass {}", when.left(next))
            }
            _ => format!("running, {last_pass}"),
        },
        KeeperStatus::Absent => {
            format!("not running, {last_pass}; the next job or `greenroom reap` starts one")
        }
        KeeperStatus::Unknown(why) => format!("cannot be determined: {why}"),
    }
}

/// What blocks launches, unless another line contains it.
fn launches(seen: &Overview<'_>, when: &When) -> Option<String> {
    let on = seen.report?.launches.as_ref()?;
    match on {
        WaitingOn::Drained { .. } | WaitingOn::Paused { .. } | WaitingOn::Backoff { .. } => None,
        _ => Some(super::model::on_what(on, seen.state, when)),
    }
}

/// A note, and when the next try is due.
fn noted(note: &Note, when: &When) -> String {
    match note {
        Note::CallsFailing { until, .. } => format!("{note}, next try {}", when.left(*until)),
        _ => note.to_string(),
    }
}

fn instances(seen: &Overview<'_>, when: &When, width: usize) -> String {
    let mut rows = Rows::new(&["INSTANCE", "PHASE", "FOR", "JOBS", "SERVED", "USES LEFT", "BOUND TO"]);
    for each in &seen.instances {
        let instance = each.instance;
        let cells = vec![
            instance.id.to_string(),
            instance.phase.word().to_owned(),
            when.age(instance.since).to_string(),
            jobs(instance),
            instance.uses.to_string(),
            instance.uses_left.map_or("any".to_owned(), |left| left.to_string()),
            instance.domain.as_ref().map_or("-".to_owned(), bound_to),
        ];
        let mut beneath: Vec<String> = each.reason.iter().cloned().collect();
        beneath.extend(instance.offering().map(|offering| format!("launched as {offering}")));
        beneath.extend(each.detail.map(str::to_owned));
        if let Some(remedy) = &each.remedy {
            beneath.push(format!("return it to service with `{remedy}`"));
        }
        rows.row(cells, beneath);
    }
    rows.render(width)
}

fn jobs(instance: &Instance) -> String {
    let mut ids: Vec<String> =
        instance.holders.values().take(JOBS_NAMED).map(|holder| holder.job.to_string()).collect();
    match instance.holders.len() {
        0 => return "-".to_owned(),
        all if all > JOBS_NAMED => ids.push(format!("+{}", all - JOBS_NAMED)),
        _ => {}
    }
    ids.join(" ")
}

/// The project or namespace without its server.
fn bound_to(domain: &TrustDomain) -> String {
    let name = domain.as_str().rsplit(' ').next().unwrap_or_default();
    shortened(name, NAME_COLUMNS)
}

fn waiting(seen: &Overview<'_>, when: &When, width: usize) -> String {
    let mut rows = Rows::new(&["WAITING", "JOB", "PROJECT", "FOR", "TIMES OUT"]);
    for each in &seen.waiting {
        let reservation = each.reservation;
        let cells = vec![
            each.position.to_string(),
            reservation.job.key.to_string(),
            shortened(&reservation.job.project, NAME_COLUMNS),
            when.age(reservation.requested_at).to_string(),
            when.left(reservation.deadline()),
        ];
        rows.row(cells, vec![each.text.clone()]);
    }
    rows.render(width)
}
