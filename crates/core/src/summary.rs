//! The table at the end of a job's log, for pools with `summary = true`.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::{Pretty, millis};

/// One row: a part of the job, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryRow {
    /// `waited`, `booted`, `pulled`, `containers`, or a stage of GitLab Runner.
    pub part: String,
    #[serde(with = "millis")]
    pub took: Duration,
    /// More about it, such as how the stage ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl SummaryRow {
    pub fn new(part: impl Into<String>, took: Duration, detail: impl Into<String>) -> Self {
        Self { part: part.into(), took, detail: detail.into() }
    }
}

/// The rows under each other, without a header. A boot is a part of the wait, and a pull one of `containers`: both are
/// indented.
pub fn table(rows: &[SummaryRow]) -> String {
    let name = |row: &SummaryRow| match row.part.as_str() {
        "booted" | "pulled" => format!("  {}", row.part),
        part => part.to_owned(),
    };
    let cells: Vec<(String, String)> =
        rows.iter().map(|row| (name(row), Pretty(row.took).to_string())).collect();
    let parts = cells.iter().map(|(part, _)| part.chars().count()).max().unwrap_or(0);
    let times = cells.iter().map(|(_, took)| took.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for ((part, took), row) in cells.iter().zip(rows) {
        // Writing to a string cannot fail.
        write!(text, "  {part:parts$}  {took:>times$}  {}", row.detail).ok();
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_time_beside_it() {
        let ms = Duration::from_millis;
        let rows = [
            SummaryRow::new("waited", ms(24_700), "booted on demand"),
            SummaryRow::new("booted", ms(23_900), "linux-7f3a-2"),
            SummaryRow::new("get_sources", ms(1_200), ""),
            SummaryRow::new("build_script", ms(125_000), "exit status 7"),
        ];
        let expected = "  \
  waited        24.7 s  booted on demand
    booted      23.9 s  linux-7f3a-2
  get_sources    1.2 s
  build_script   2m 5s  exit status 7
";
        assert_eq!(table(&rows), expected.trim_start_matches('\n'));
        assert_eq!(table(&[]), "");
    }
}
