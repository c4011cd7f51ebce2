//! `explain`: what happened to a job, an instance, an offering or a pool, and why.
//!
//! The sources are the kept history, the present state and the last report.

mod advice;
mod past;
mod present;
mod sentence;

use futures_util::future::join_all;
use greenroom_core::container::account::{ContainerAccount, FailureClass};
use greenroom_core::event::Event;
use greenroom_core::ids::PoolName;
use greenroom_core::job::JobFacts;
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;
use greenroom_keys::near::nearest;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::host_error::HostError;
use greenroom_ports::store::StoreError;
use serde::Serialize;
use serde_json::{Value, json};

use super::args::GlobalOptions;
use super::context::Context;
use super::error::CliError;
use super::fields;
use super::read_model::{KeeperStatus, PoolReader, PoolRecord};
use super::reporting::Reporting;
use super::ui::{self, plural, wrapped};
use super::when::{When, rfc3339, whole};
use past::{EventLine, Past, Question};
use sentence::about;

/// The number of a job: as it is, after `#`, or at the end of its URL.
pub(in crate::cli) fn job_number(what: &str) -> Option<u64> {
    Question::of(what).job
}

/// One pool's past and present, from which [`explain`] answers.
struct Chapter<'a> {
    pool: &'a PoolName,
    state: &'a PoolState,
    report: Option<&'a Report>,
    keeper: &'a KeeperStatus,
    /// The accounts of the containers of the job in question.
    containers: &'a [ContainerAccount],
    /// Sentences about the delivery of notices about the pool.
    notices: Vec<String>,
    /// All kept events, oldest first; an error is a line that cannot be read.
    history: Box<dyn Iterator<Item = Result<Event, Unreadable>> + 'a>,
}

/// A part of a pool's record that cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Report(HostError),
}

/// The answer: at least one part.
#[derive(Debug)]
struct Explanation {
    parts: Vec<Explained>,
}

/// One subject in one pool, as text and as JSON. Field names are stable; moments are RFC 3339 in UTC; fields that end in
/// `_s` are whole seconds.
#[derive(Debug, Serialize)]
struct Explained {
    /// `job`, `instance`, `offering` or `pool`.
    kind: &'static str,
    name: String,
    pool: PoolName,
    #[serde(skip)]
    title: String,
    /// Of a job: a sentence with its name, stage, pipeline and ref.
    about: Option<String>,
    /// The first event that is kept of this pool.
    #[serde(serialize_with = "fields::moment")]
    history_begins: Option<Stamp>,
    events: Vec<EventLine>,
    /// Of a job in containers: one entry for each attempt that prepared containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainersView>,
    /// Of a pool: a sentence with the numbers of jobs and launches in its history.
    #[serde(skip)]
    counted: Option<String>,
    /// Sentences, of a job: how long its attempts waited, why, and which key shortens that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waits: Vec<String>,
    /// Sentences: the present state, and what blocks it.
    now: Vec<String>,
    /// Sentences: which key or command changes that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
    /// Lines of the history that could not be read.
    unreadable: Vec<String>,
}

/// The containers of one attempt.
#[derive(Debug, Serialize)]
struct ContainersView {
    /// The moment when preparing the containers began.
    #[serde(serialize_with = "fields::moment")]
    at: Stamp,
    image: String,
    digest: Option<String>,
    /// `job` or `system`; null: no failure but the script's own.
    failure: Option<FailureClass>,
    /// Sentences: images, services, and why the job failed.
    text: Vec<String>,
}

impl ContainersView {
    fn of(account: &ContainerAccount) -> Self {
        Self {
            at: account.at,
            image: account.image.name.clone(),
            digest: account.image.digest.clone(),
            failure: account.failure.as_ref().map(|failure| failure.class),
            text: account.sentences(),
        }
    }
}

/// The answer of [`explain`] if no subject has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no job, instance, offering or pool `{what}` found")]
struct Unknown {
    what: String,
    /// The nearest name, and an example of each kind.
    help: String,
}

/// Explains `what` from the pools given.
fn explain(what: &str, chapters: Vec<Chapter<'_>>, when: &When) -> Result<Explanation, Unknown> {
    let question = Question::of(what);
    let mut parts = Vec::new();
    let mut known = KnownNames::default();
    for mut chapter in chapters {
        let history = std::mem::replace(&mut chapter.history, Box::new(std::iter::empty()));
        let mut past = Past::read(&question, history, when.now());
        known.learn(&chapter, &past);
        let before = parts.len();
        parts.extend(jobs(&question, &chapter, &mut past, when));
        parts.extend(instance(&question, &chapter, &mut past, when));
        parts.extend(offering(&question, &chapter, &mut past, when));
        parts.extend(question.is_pool(chapter.pool).then(|| pool(&chapter, &mut past, when)));
        if let Some(first) = parts.get_mut(before) {
            first.unreadable = std::mem::take(&mut past.unreadable);
        }
    }
    if parts.is_empty() {
        return Err(Unknown { what: question.name.clone(), help: known.help(&question.name, when) });
    }
    Ok(Explanation { parts })
}

impl Explanation {
    /// The answer for a terminal of `width` columns.
    fn text(&self, when: &When, width: usize) -> String {
        let parts: Vec<String> = self.parts.iter().map(|part| rendered(part, when, width)).collect();
        parts.join("\n")
    }

    fn json(&self, when: &When) -> Value {
        json!({ "at": rfc3339(when.now()), "explained": self.parts })
    }
}

fn jobs(question: &Question, chapter: &Chapter<'_>, past: &mut Past, when: &When) -> Vec<Explained> {
    let Some(number) = question.job else { return Vec::new() };
    let mut events = std::mem::take(&mut past.jobs);
    // Recorded, although its events are no longer kept.
    let waiting = chapter.state.waiting.values().map(|r| &r.job);
    let granted = chapter.state.granted.values().map(|g| &g.reservation.job);
    let recorded: Vec<&JobFacts> = waiting.chain(granted).filter(|facts| facts.key.id == number).collect();
    for facts in &recorded {
        events.entry(facts.key.clone()).or_default();
    }
    events
        .into_iter()
        .map(|(job, events)| {
            let facts = past.facts(&job).or_else(|| recorded.iter().copied().find(|facts| facts.key == job));
            let project = facts.map_or(String::new(), |facts| format!(" of {}", facts.project));
            let title = format!("job {job}{project} on {}, pool {}", job.server, chapter.pool);
            let about = facts.and_then(about);
            let now = present::job(chapter, &job, when);
            let policy = chapter.state.policy.as_deref();
            let waits = past.waits.get(&job).into_iter().flatten();
            let waits = waits.map(|(waited, cause)| advice::of_past_wait(*waited, *cause, policy));
            let waits = waits.collect();
            let advice = present::job_advice(chapter, &job);
            let of_job = |account: &&ContainerAccount| account.job == job && account.pool == *chapter.pool;
            let containers = chapter.containers.iter().filter(of_job).map(ContainersView::of).collect();
            Explained {
                about,
                events,
                containers,
                waits,
                now,
                advice,
                ..part("job", job.to_string(), title, chapter, past)
            }
        })
        .collect()
}

fn instance(question: &Question, chapter: &Chapter<'_>, past: &mut Past, when: &When) -> Option<Explained> {
    let known = chapter.state.instances.values().find(|i| i.id.as_str() == question.name);
    let events = std::mem::take(&mut past.instance);
    let now = match known {
        Some(known) => present::instance(chapter, known, when),
        None if events.is_empty() => return None,
        None => {
            let mut now = vec!["gone".to_owned()];
            now.extend(present::console(chapter, &question.name));
            now
        }
    };
    let title = format!("instance {}, pool {}", question.name, chapter.pool);
    let drained = past.drained.as_ref().and_then(advice::of_drain);
    let advice = drained.map(str::to_owned).into_iter().collect();
    Some(Explained { events, now, advice, ..part("instance", question.name.clone(), title, chapter, past) })
}

fn offering(question: &Question, chapter: &Chapter<'_>, past: &mut Past, when: &When) -> Option<Explained> {
    let now = present::offering(chapter, &question.name, when);
    let events: Vec<EventLine> = std::mem::take(&mut past.offering).into();
    let now = match now {
        Some(now) => now,
        None if events.is_empty() => return None,
        None => vec!["no longer among the offerings of the pool".to_owned()],
    };
    let tally = past.of_offering;
    let counted = past.begins.map(|begins| {
        let launches = if tally.launches == 1 { "launch" } else { "launches" };
        format!(
            "since {}: {} {launches} ({} refused, {} ready)",
            when.clock(begins),
            tally.launches,
            tally.launches_refused,
            tally.became_ready,
        )
    });
    let advice = present::offering_advice(chapter, &question.name, when);
    let title = format!("offering {}, pool {}", question.name, chapter.pool);
    let part = part("offering", question.name.clone(), title, chapter, past);
    Some(Explained { events, counted, now, advice, ..part })
}

fn pool(chapter: &Chapter<'_>, past: &mut Past, when: &When) -> Explained {
    let events: Vec<EventLine> = std::mem::take(&mut past.notable).into();
    let title = match events.len() {
        0 => format!("pool {}, no notable events", chapter.pool),
        1 => format!("pool {}, the last notable event", chapter.pool),
        n => format!("pool {}, the last {n} notable events", chapter.pool),
    };
    let tally = past.tally;
    let counted = past.begins.map(|begins| {
        format!(
            "since {}: {} ({} served), {} ({} refused, {} ready)",
            when.clock(begins),
            plural(tally.jobs_asked, "job"),
            tally.jobs_served,
            match tally.launches {
                1 => "1 launch".to_owned(),
                n => format!("{n} launches"),
            },
            tally.launches_refused,
            tally.became_ready,
        )
    });
    let now = present::pool(chapter, when);
    let launches = chapter.report.and_then(|report| report.launches.as_ref());
    let policy = chapter.state.policy.as_deref();
    let advice = launches.and_then(|on| advice::of_wait(on, chapter.pool, policy)).into_iter().collect();
    Explained { events, counted, now, advice, ..part("pool", chapter.pool.to_string(), title, chapter, past) }
}

/// A subject without any sentence yet.
fn part(kind: &'static str, name: String, title: String, chapter: &Chapter<'_>, past: &Past) -> Explained {
    Explained {
        kind,
        name,
        pool: chapter.pool.clone(),
        title,
        about: None,
        history_begins: past.begins,
        events: Vec::new(),
        containers: Vec::new(),
        counted: None,
        waits: Vec::new(),
        now: Vec::new(),
        advice: Vec::new(),
        unreadable: Vec::new(),
    }
}

/// The known names, of which [`Unknown`] suggests the nearest one.
#[derive(Debug, Default)]
struct KnownNames {
    pools: Vec<String>,
    instances: Vec<String>,
    jobs: Vec<String>,
    offerings: Vec<String>,
    begins: Option<Stamp>,
}

impl KnownNames {
    fn learn(&mut self, chapter: &Chapter<'_>, past: &Past) {
        self.pools.push(chapter.pool.to_string());
        self.instances.extend(past.known_instances.iter().map(ToString::to_string));
        self.instances.extend(chapter.state.instances.keys().map(ToString::to_string));
        self.offerings.extend(past.known_offerings.iter().map(ToString::to_string));
        self.offerings.extend(chapter.state.availability.offerings().iter().map(ToString::to_string));
        self.jobs.extend(past.known_jobs.iter().map(ToString::to_string));
        if let Some(begins) = past.begins
            && self.begins.is_none_or(|known| known.reached(begins))
        {
            self.begins = Some(begins);
        }
    }

    /// The nearest name, and an example of each kind.
    fn help(&self, what: &str, when: &When) -> String {
        let all = self.pools.iter().chain(&self.instances).chain(&self.jobs).chain(&self.offerings);
        let near = nearest(what, all.map(String::as_str));
        let meant = near.map_or(String::new(), |name| format!("did you mean `{name}`? "));
        let example = |of: &[String]| of.last().map_or(String::new(), |name| format!(" (`{name}`)"));
        let begins = match self.begins {
            Some(begins) => format!("events are kept since {}", when.clock(begins)),
            None => "no events are kept yet".to_owned(),
        };
        let offering = match self.offerings.last() {
            Some(name) => format!(", an offering (`{name}`)"),
            None => String::new(),
        };
        format!(
            "{meant}name a job{}, an instance{}{offering} or a pool{}; {begins}",
            example(&self.jobs),
            example(&self.instances),
            example(&self.pools),
        )
    }
}

/// Explains; false if no subject has that name.
pub(in crate::cli) async fn explain_it(
    place: &GlobalOptions,
    what: &str,
    json: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let reader = PoolReader::open(&context, None).await?;
    let keeper = KeeperStatus::read(&context.host).await;
    let records = reader.read(&context.host).await;
    let when = When::local(context.host.now());
    // The history of a pool is shown even if its state cannot be read.
    let nothing = PoolState::default();
    let containers =
        Question::of(what).job.map(|job| context.host.containers_of_job(job)).unwrap_or_default();
    let reporting = Reporting::read(&context.state_path, &keeper);
    let chapters = records.iter().map(async |pool| {
        let notices = reporting.of_pool(pool.pool, when.now());
        Chapter { notices, ..chapter(pool, &nothing, &keeper, &containers).await }
    });
    let chapters = join_all(chapters).await;
    match explain(what, chapters, &when) {
        Ok(answer) if json => ui::out(&format!("{:#}\n", answer.json(&when))),
        Ok(answer) => ui::out(&answer.text(&when, ui::width())),
        Err(unknown) => {
            let help = unknown.help.clone();
            ui::err(&CliError::system(unknown).help(help).for_operator());
            return Ok(false);
        }
    }
    Ok(true)
}

async fn chapter<'a>(
    record: &'a PoolRecord<'_>,
    nothing: &'a PoolState,
    keeper: &'a KeeperStatus,
    containers: &'a [ContainerAccount],
) -> Chapter<'a> {
    let of_state = record.state.as_ref().err().cloned().map(Unreadable::Store);
    let of_report = record.report.as_ref().err().cloned().map(Unreadable::Report);
    let problems = of_state.into_iter().chain(of_report).map(Err);
    let history: Box<dyn Iterator<Item = Result<Event, Unreadable>>> = match record.store.history().await {
        Ok(history) => {
            Box::new(history.map(|read| read.map(|recorded| recorded.event).map_err(Unreadable::Store)))
        }
        Err(error) => Box::new(std::iter::once(Err(Unreadable::Store(error)))),
    };
    Chapter {
        pool: record.pool,
        state: record.state.as_ref().unwrap_or(nothing),
        report: record.readable_report(),
        keeper,
        containers,
        notices: Vec::new(),
        history: Box::new(problems.chain(history)),
    }
}

/// Plain sentences, each with its time and how long ago that was. Ends with a newline.
fn rendered(each: &Explained, when: &When, width: usize) -> String {
    let mut text = wrapped(&each.title, width, "", "  ");
    if let Some(about) = &each.about {
        text.push_str(&wrapped(about, width, "  ", "    "));
    }
    let clocks: Vec<String> = each.events.iter().map(|line| when.clock(line.at)).collect();
    let ages: Vec<String> = each.events.iter().map(|line| format!("{} ago", whole(line.age_s))).collect();
    let clock_columns = clocks.iter().map(String::len).max().unwrap_or(0);
    let age_columns = ages.iter().map(String::len).max().unwrap_or(0);
    let further = " ".repeat(clock_columns + age_columns + 6);
    for ((line, clock), age) in each.events.iter().zip(&clocks).zip(&ages) {
        let first = format!("  {clock:clock_columns$}  {age:>age_columns$}  ");
        text.push_str(&wrapped(&line.text, width, &first, &further));
    }
    for containers in &each.containers {
        for (at, sentence) in containers.text.iter().enumerate() {
            let when = if at == 0 { format!(" at {}", when.clock(containers.at)) } else { String::new() };
            text.push_str(&wrapped(&format!("containers{when}: {sentence}"), width, "  ", "    "));
        }
    }
    if let Some(sentence) = &each.counted {
        text.push_str(&wrapped(sentence, width, "  ", "    "));
    }
    for sentence in &each.waits {
        text.push_str(&wrapped(&format!("waited: {sentence}"), width, "  ", "    "));
    }
    for sentence in &each.now {
        text.push_str(&wrapped(&format!("now: {sentence}"), width, "  ", "    "));
    }
    for sentence in &each.advice {
        text.push_str(&wrapped(&format!("change: {sentence}"), width, "  ", "    "));
    }
    for problem in &each.unreadable {
        text.push_str(&wrapped(&format!("unreadable: {problem}"), width, "  ", "    "));
    }
    text
}

#[cfg(test)]
mod tests;
