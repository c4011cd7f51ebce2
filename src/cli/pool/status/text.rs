//! The status of a pool, for a terminal: sentences, tables, and a bar of its slots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use greenroom_core::ids::{PoolName, TrustDomain};
use greenroom_core::instance::Phase;
use greenroom_core::report::Note;

use super::instance::{InstanceView, JobView};
use super::view::{LaunchBackoff, NoteView, PolicyView, PoolView, StatusInput};
use super::{is_suspended, links};
use crate::cli::read_model::KeeperStatus;
use crate::cli::ui::{Rows, plural, shortened, wrapped};
use crate::cli::when::{When, whole};

/// The widest name of a project.
const NAME_COLUMNS: usize = 24;
/// The highest number of an instance's jobs that are named.
const JOBS_NAMED: usize = 3;

/// The highest number of notes, and of unavailable offerings, on a screen.
const NOTES_SHOWN: usize = 4;
/// Lines of a table that are shown on the smallest screen.
const LEAST_LINES: usize = 4;

/// The whole text of a pool's status. `lines`: about how many there is room for; `None`, everything is shown.
pub(super) fn text(seen: &PoolView<'_>, when: &When, width: usize, lines: Option<usize>) -> String {
    let mut text = head(seen, when, width, lines.map(|_| NOTES_SHOWN));
    // The empty line before a table, its header, and the line that counts what is left out.
    let tables = [seen.instances.is_empty(), seen.waiting.is_empty()].iter().filter(|empty| !**empty).count();
    let left = lines.map(|lines| lines.saturating_sub(text.lines().count() + 3 * tables));
    let jobs = left.map(|left| (left / 3).max(LEAST_LINES).min(2 * seen.waiting.len()));
    let room = left.zip(jobs).map(|(left, jobs)| left.saturating_sub(jobs).max(LEAST_LINES));
    if !seen.instances.is_empty() {
        text.push('\n');
        text.push_str(&instances(seen, width, room));
    }
    if seen.links.is_some() && !seen.instances.is_empty() {
        let links =
            seen.instances.iter().map(|each| (each.instance, each.links.as_deref().unwrap_or_default()));
        text.push('\n');
        text.push_str(&links::table(links, when, width));
    }
    if !seen.waiting.is_empty() {
        text.push('\n');
        text.push_str(&waiting(seen, when, width, jobs));
    }
    text
}

/// A line about the rest of a list.
fn more(pool: &PoolName, left_out: &str, width: usize) -> String {
    wrapped(&format!("… {left_out}: `greenroom pool status {pool} --wide` shows all"), width, "  ", "    ")
}

/// All lines about the pool as a whole: `  word: sentence`.
fn head(seen: &PoolView<'_>, when: &When, width: usize, notes: Option<usize>) -> String {
    let mut text = String::new();
    let most = seen.policy.as_ref().map_or(0, |policy| policy.max_instances);
    // Writing to a string cannot fail.
    writeln!(
        text,
        "pool {}: {} of {most} instances, {} of {} job slots in use, {} waiting",
        seen.pool,
        seen.instance_count,
        seen.slots_in_use,
        seen.slots,
        plural(seen.waiting.len(), "job"),
    )
    .ok();
    let mut line = |word: &str, sentence: &str| {
        text.push_str(&wrapped(&format!("{word}: {sentence}"), width, "  ", "    "));
    };
    if let Some(since) = seen.drained_since {
        let sentence = format!(
            "by the operator since {} ({} ago), no grants and no launches; resume with \
             `greenroom pool resume {}`",
            when.clock(since),
            when.age(since),
            seen.pool,
        );
        line("DRAINED", &sentence);
    }
    if let Some(backoff) = &seen.launch_backoff {
        let (word, sentence) = delayed(seen, backoff, when);
        line(word, &sentence);
    }
    match &seen.policy {
        Some(policy) => line("policy", &in_force(policy, when)),
        None => line("policy", "none, no keeper has read the configuration yet"),
    }
    if let Some(mode) = seen.containers {
        let jobs = if mode == "always" { "all jobs run in them" } else { "jobs with `image:` run in them" };
        let engine = seen.container_engine.unwrap_or_default();
        line("containers", &format!("{jobs}, by {engine}"));
    }
    if let Some(store) = seen.image_store {
        line("image store", &store.text);
    }
    line("idle", &format!("{} of {} wanted slots", seen.idle, seen.idle_target));
    if !seen.instances.is_empty() {
        line("phases", &phases(&seen.instances));
    }
    if let Some(hosts) = &seen.hosts {
        line("hosts", &hosts.text);
    }
    line("keeper", &keeper(seen, when));
    if let Some(links) = &seen.links {
        line("links", links);
    }
    let shown = notes.unwrap_or(usize::MAX);
    let unavailable = || seen.offerings.iter().filter_map(|each| each.unavailable.as_ref());
    for unavailable in unavailable().take(shown) {
        line("offering", &unavailable.until_tried(when));
    }
    let offerings = unavailable().count().saturating_sub(shown);
    if let Some(on) = seen.launch_blocked_by.as_ref().filter(|on| !is_suspended(on.kind)) {
        line("launches", &on.text);
    }
    for note in seen.notes.iter().take(shown) {
        line("note", &noted(note, when));
    }
    let left_out = [("note", seen.notes.len().saturating_sub(shown)), ("unavailable offering", offerings)];
    let left_out: Vec<String> = left_out
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| plural(*count, &format!("more {what}")))
        .collect();
    if !left_out.is_empty() {
        text.push_str(&more(seen.pool, &left_out.join(", "), width));
    }
    text
}

fn delayed(seen: &PoolView<'_>, backoff: &LaunchBackoff, when: &When) -> (&'static str, String) {
    let LaunchBackoff { until, paused, failure, failures } = backoff;
    let until = when.until(*until);
    if *paused {
        let sentence = format!(
            "{until} after {failures} failed launches in a row (last: {failure}); resume now with \
             `greenroom pool resume {}`",
            seen.pool,
        );
        return ("PAUSED", sentence);
    }
    ("launches", format!("none {until}, the last one failed ({failure})"))
}

fn in_force(policy: &PolicyView<'_>, when: &When) -> String {
    let mut text = match (policy.entry, policy.timezone) {
        (Some(entry), Some(timezone)) => {
            let periods: Vec<String> = policy.periods.iter().map(|p| format!("`{p}`")).collect();
            format!("entry {entry} ({} {timezone})", periods.join(", "))
        }
        _ => "the default".to_owned(),
    };
    if let Some(until) = policy.until {
        write!(text, " until {}", when.minute(until)).ok();
    }
    let idle_time = whole(policy.idle_time_s);
    write!(text, ": `idle_count = {}`, `idle_time = {idle_time}`", policy.idle_count).ok();
    if policy.scale_factor > 0.0 {
        write!(text, ", `scale_factor = {}`", policy.scale_factor).ok();
    }
    text
}

/// The number of instances in each phase, in the order of the table.
fn phases(instances: &[InstanceView<'_>]) -> String {
    let groups = instances.chunk_by(|one, next| one.phase == next.phase);
    let counts: Vec<String> = groups.map(|group| format!("{} {}", group.len(), group[0].phase)).collect();
    counts.join(", ")
}

fn keeper(seen: &PoolView<'_>, when: &When) -> String {
    let keeper = &seen.keeper;
    let last_pass = match keeper.last_pass {
        Some(at) => format!("last pass {} ago", when.age(at)),
        None => "no pass yet".to_owned(),
    };
    match keeper.runs {
        KeeperStatus::Runs => match keeper.next_pass {
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

/// A note, and when the next try is due.
fn noted(note: &NoteView<'_>, when: &When) -> String {
    match note.kind {
        Note::HostSuspected { until, .. } => format!("{}, until {}", note.text, when.left(*until)),
        Note::CallsFailing { until, .. } | Note::ImageNotPulled { until, .. } => {
            format!("{}, next try {}", note.text, when.left(*until))
        }
        _ => note.text.clone(),
    }
}

fn instances(seen: &PoolView<'_>, width: usize, room: Option<usize>) -> String {
    let mut rows = Rows::new(&["INSTANCE", "PHASE", "FOR", "JOBS", "SERVED", "USES LEFT", "BOUND TO"]);
    let shown = room.and_then(|room| notable(&seen.instances, room));
    let is_shown = |at: &usize| shown.as_ref().is_none_or(|shown| shown.contains(at));
    for (_, each) in seen.instances.iter().enumerate().filter(|(at, _)| is_shown(at)) {
        let cells = vec![
            each.instance.to_string(),
            each.phase.to_owned(),
            whole(each.for_s).to_string(),
            jobs(&each.jobs),
            each.served.to_string(),
            each.uses_left.map_or("any".to_owned(), |left| left.to_string()),
            each.bound_to.map_or("-".to_owned(), bound_to),
        ];
        rows.row(cells, each.sentences());
    }
    let mut text = rows.render(width);
    if let Some(shown) = &shown {
        let others = seen.instances.iter().enumerate().filter(|(at, _)| !shown.contains(at));
        text.push_str(&more(seen.pool, &aggregated(others.map(|(_, each)| each)), width));
    }
    text
}

/// The instances that fit, those first that an operator may have to look after; `None`: all fit.
fn notable(instances: &[InstanceView<'_>], room: usize) -> Option<BTreeSet<usize>> {
    let lines: Vec<usize> = instances.iter().map(|each| 1 + each.sentences().len()).collect();
    if lines.iter().sum::<usize>() <= room {
        return None;
    }
    let mut order: Vec<usize> = (0..instances.len()).collect();
    order.sort_by_key(|at| instances[*at].calm());
    let mut left = room.saturating_sub(1);
    let mut shown = BTreeSet::new();
    for at in order {
        let Some(rest) = left.checked_sub(lines[at]) else { break };
        left = rest;
        shown.insert(at);
    }
    Some(shown)
}

/// `488 more instances, 300 ready with jobs, 188 ready and idle`.
fn aggregated<'a>(others: impl Iterator<Item = &'a InstanceView<'a>>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for each in others {
        let word = match (each.phase, each.jobs.is_empty()) {
            ("ready", true) => "ready and idle",
            ("ready", false) => "ready with jobs",
            (phase, _) => phase,
        };
        *counts.entry(word).or_default() += 1;
    }
    let each: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    format!("{} ({})", plural(counts.values().sum(), "more instance"), each.join(", "))
}

fn jobs(jobs: &[JobView<'_>]) -> String {
    let mut ids: Vec<String> = jobs.iter().take(JOBS_NAMED).map(|each| each.job.to_string()).collect();
    match jobs.len() {
        0 => return "-".to_owned(),
        all if all > JOBS_NAMED => ids.push(format!("+{}", all - JOBS_NAMED)),
        _ => {}
    }
    ids.join(" ")
}

/// The project or namespace without its server.
fn bound_to(domain: &TrustDomain) -> String {
    shortened(domain.name(), NAME_COLUMNS)
}

fn waiting(seen: &PoolView<'_>, when: &When, width: usize, room: Option<usize>) -> String {
    let mut rows = Rows::new(&["WAITING", "JOB", "PROJECT", "FOR", "TIMES OUT"]);
    // Each has a line with its reason below.
    let shown = room.filter(|room| *room < 2 * seen.waiting.len()).map_or(usize::MAX, |room| room / 2);
    for each in seen.waiting.iter().take(shown) {
        let cells = vec![
            each.position.to_string(),
            each.job.to_string(),
            shortened(each.project, NAME_COLUMNS),
            whole(each.for_s).to_string(),
            when.left(each.deadline),
        ];
        rows.row(cells, vec![each.waiting_for.text.clone()]);
    }
    let mut text = rows.render(width);
    let left_out = seen.waiting.len().saturating_sub(shown);
    if left_out > 0 {
        text.push_str(&more(seen.pool, &plural(left_out, "more waiting job"), width));
    }
    text
}

/// The widest bar.
const WIDEST: usize = 60;

/// The bar, `  slots: [##==~~....]`, and a line that counts each sign. Empty if the pool has no policy yet.
pub(super) fn bar(input: &StatusInput<'_>, width: usize) -> String {
    let Some(policy) = input.state.policy.as_deref() else { return String::new() };
    let all = policy.max_instances.saturating_mul(policy.capacity_per_instance);
    let instances = || input.state.instances.values();
    let in_use = input.state.in_use();
    let idle: u32 = instances().map(|instance| instance.usable()).sum();
    let coming = |phase: &Phase| {
        matches!(phase, Phase::Launching | Phase::Checking | Phase::Cleaning) || phase.is_resuming()
    };
    let coming: u32 = instances().filter(|each| coming(&each.phase)).map(|each| each.free_slots()).sum();
    let stopped: u32 = instances().filter(|each| each.phase.is_of_tier()).map(|each| each.free_slots()).sum();
    let present: u32 = instances().map(|each| each.capacity).sum();
    // Slots of instances that take no jobs: draining, out of service, unreachable, used up.
    let open = in_use.saturating_add(idle).saturating_add(coming).saturating_add(stopped);
    let closed = present.saturating_sub(open);
    let free = all.saturating_sub(present);
    let parts = [
        ('#', in_use, "in use"),
        ('=', idle, "idle"),
        ('~', coming, "on their way"),
        ('z', stopped, "stopped"),
        ('x', closed, "out of use"),
        ('.', free, "not launched"),
    ];
    let total = parts.iter().map(|(_, count, _)| u64::from(*count)).sum::<u64>().max(1);
    let columns = WIDEST.min(width.saturating_sub(12)).min(usize::try_from(total).unwrap_or(WIDEST));
    let mut drawn = String::new();
    let mut slots = 0_u64;
    let mut reached = 0_usize;
    for (sign, count, _) in parts {
        slots += u64::from(count);
        let until = usize::try_from(slots * columns as u64 / total).unwrap_or(columns);
        // Whatever there is has at least one sign.
        let until = if count > 0 { until.max(reached + 1) } else { until };
        drawn.extend(std::iter::repeat_n(sign, until.saturating_sub(reached)));
        reached = reached.max(until);
    }
    let told: Vec<String> = parts
        .iter()
        .filter(|(_, count, _)| *count > 0)
        .map(|(sign, count, word)| format!("{sign} {count} {word}"))
        .collect();
    format!("  slots: [{drawn}]\n  {}\n", told.join(", "))
}
