//! The file `summary` of an attempt: one line for each part of its job. It exists only if the pool has `summary = true`.
//!
//! It is only shown. Lines that cannot be read are left out.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use greenroom_core::ids::AttemptName;
use greenroom_core::summary::SummaryRow;

use super::files::{self, Durable};
use super::host::LocalHost;

const SUMMARY: &str = "summary";

impl LocalHost {
    /// Begins the summary of a job. From here on, each stage adds its row.
    pub fn begin_summary(&self, attempt: &AttemptName, rows: &[SummaryRow]) -> io::Result<()> {
        let dir = self.state.attempt(attempt).map_err(io::Error::other)?;
        let mut text = Vec::new();
        for row in rows {
            text.extend(line(row)?);
        }
        files::replace(&dir, SUMMARY, &text, Durable::No)
    }

    /// Adds the row of a stage; `false` if the job has no summary. That costs one system call.
    pub fn add_to_summary(
        &self,
        attempt: &AttemptName,
        row: impl FnOnce() -> SummaryRow,
    ) -> io::Result<bool> {
        let path = self.state.attempt(attempt).map_err(io::Error::other)?.join(SUMMARY);
        let Some(mut file) = files::missing_is_none(OpenOptions::new().append(true).open(path))? else {
            return Ok(false);
        };
        file.write_all(&line(&row())?)?;
        Ok(true)
    }

    /// The rows so far.
    pub fn summary(&self, attempt: &AttemptName) -> io::Result<Vec<SummaryRow>> {
        let path = self.state.attempt(attempt).map_err(io::Error::other)?.join(SUMMARY);
        read(&path)
    }
}

fn line(row: &SummaryRow) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    Ok(line)
}

fn read(path: &Path) -> io::Result<Vec<SummaryRow>> {
    let text = files::read(path)?.unwrap_or_default();
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}
