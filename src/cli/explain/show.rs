//! An explanation as text and as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use super::past::Line;
use super::{Explained, Explanation};
use crate::cli::rows::wrapped;
use crate::cli::when::{When, rfc3339};
use crate::core::ids::{AttemptName, InstanceId};

/// Plain sentences, each with its time and how long ago that was. Ends with a newline.
pub(super) fn text(explanation: &Explanation, when: &When, width: usize) -> String {
    let mut text = String::new();
    for (at, each) in explanation.parts.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        text.push_str(&part(each, when, width));
    }
    text
}

fn part(each: &Explained, when: &When, width: usize) -> String {
    let mut text = wrapped(&each.title, width, "", "  ");
    if let Some(about) = &each.about {
        text.push_str(&wrapped(about, width, "  ", "    "));
    }
    let clocks: Vec<String> = each.lines.iter().map(|line| when.clock(line.at)).collect();
    let ages: Vec<String> = each.lines.iter().map(|line| format!("{} ago", when.age(line.at))).collect();
    let clock_columns = clocks.iter().map(String::len).max().unwrap_or(0);
    let age_columns = ages.iter().map(String::len).max().unwrap_or(0);
    let further = " ".repeat(clock_columns + age_columns + 6);
    for ((line, clock), age) in each.lines.iter().zip(&clocks).zip(&ages) {
        let first = format!("  {clock:clock_columns$}  {age:>age_columns$}  ");
        text.push_str(&wrapped(&line.text, width, &first, &further));
    }
    for sentence in &each.counted {
        text.push_str(&wrapped(sentence, width, "  ", "    "));
    }
    for sentence in &each.now {
        text.push_str(&wrapped(&format!("now: {sentence}"), width, "  ", "    "));
    }
    for problem in &each.unreadable {
        text.push_str(&wrapped(&format!("unreadable: {problem}"), width, "  ", "    "));
    }
    text
}

/// One subject. Field names are stable; moments are RFC 3339 in UTC.
#[derive(Debug, Serialize)]
struct ExplainedJson<'a> {
    /// `job`, `instance` or `pool`.
    kind: &'static str,
    name: &'a str,
    pool: &'a str,
    /// Of a job: its name, stage, pipeline and ref, in a sentence.
    about: Option<&'a str>,
    /// The first event that is kept of this pool.
    history_begins: Option<String>,
    events: Vec<EventJson<'a>>,
    /// Sentences: the present state, and what blocks it.
    now: &'a [String],
    /// Lines of the history that could not be read.
    unreadable: &'a [String],
}

#[derive(Debug, Serialize)]
struct EventJson<'a> {
    at: String,
    age_s: u64,
    /// The event's name in the journal.
    event: &'a str,
    instance: Option<&'a str>,
    attempt: Option<&'a str>,
    job: Option<u64>,
    text: &'a str,
}

pub(super) fn as_json(explanation: &Explanation, when: &When) -> Value {
    let parts: Vec<ExplainedJson<'_>> = explanation.parts.iter().map(|each| part_json(each, when)).collect();
    json!({ "at": rfc3339(when.now()), "explained": parts })
}

fn part_json<'a>(each: &'a Explained, when: &When) -> ExplainedJson<'a> {
    let event = |line: &'a Line| EventJson {
        at: rfc3339(line.at),
        age_s: when.now().since(line.at).as_secs(),
        event: &line.event,
        instance: line.instance.as_ref().map(InstanceId::as_str),
        attempt: line.attempt.as_ref().map(AttemptName::as_str),
        job: line.job,
        text: &line.text,
    };
    ExplainedJson {
        kind: each.kind,
        name: &each.name,
        pool: each.pool.as_str(),
        about: each.about.as_deref(),
        history_begins: each.begins.map(rfc3339),
        events: each.lines.iter().map(event).collect(),
        now: &each.now,
        unreadable: &each.unreadable,
    }
}
