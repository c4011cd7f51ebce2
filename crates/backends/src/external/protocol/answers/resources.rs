//! What the pool has besides machines, and what the program finds for `doctor`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Answer, Wrong, each, word};

/// One resource that is no machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourceAnswer {
    /// For people, in lower case: `volume`, `address`.
    pub kind: String,
    pub id: String,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// The name of the machine that it was made for.
    #[serde(default)]
    pub name: Option<String>,
    /// The machine that uses it now.
    #[serde(default)]
    pub machine: Option<String>,
    #[serde(default)]
    pub created: Option<Timestamp>,
    #[serde(default)]
    pub description: Option<String>,
}

/// The answer of `resources`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ResourcesAnswer {
    pub complete: bool,
    pub resources: Vec<ResourceAnswer>,
}

impl Answer for ResourcesAnswer {
    fn check(&self) -> Result<(), Wrong> {
        let ids = self.resources.iter().map(|one| one.id.as_str());
        each("resources", "id", ids)?;
        for (at, one) in self.resources.iter().enumerate() {
            word(&format!("resources[{at}].kind"), &one.kind)?;
        }
        Ok(())
    }
}

/// The answer of `delete`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DeleteAnswer {}

impl Answer for DeleteAnswer {}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Error,
    Warning,
    Note,
}

/// One finding of the program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FindingAnswer {
    pub level: Level,
    pub message: String,
    #[serde(default)]
    pub help: Option<String>,
}

/// The answer of `examine`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExamineAnswer {
    pub findings: Vec<FindingAnswer>,
}

impl Answer for ExamineAnswer {}
