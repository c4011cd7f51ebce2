//! An explanation, for a terminal.

use super::Explained;
use crate::cli::rows::wrapped;
use crate::cli::when::{When, whole};

/// Plain sentences, each with its time and how long ago that was. Ends with a newline.
pub(super) fn part(each: &Explained, when: &When, width: usize) -> String {
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
