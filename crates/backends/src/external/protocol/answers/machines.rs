//! Machines: launched, listed, reached, ended.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::{Answer, Wrong, each, reachable, word};

/// The answer of `launch`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LaunchAnswer {
    pub machine: String,
    /// True if the platform may still refuse it: `list` shows it as pending until then.
    #[serde(default)]
    pub pending: bool,
}

impl Answer for LaunchAnswer {
    fn check(&self) -> Result<(), Wrong> {
        word("machine", &self.machine)
    }
}

/// State of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Accepted, but without capacity so far.
    Pending,
    /// Refused for lack of capacity after it was accepted, and there until `terminate`.
    Refused,
    Starting,
    Running,
    Stopping,
    /// Stopped, and there until `terminate`.
    Stopped,
    /// No longer there, but still listed.
    Gone,
}

/// An announcement about a machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NoticeAnswer {
    /// To follow the instance's name: `will be reclaimed`.
    pub text: String,
    #[serde(default)]
    pub at: Option<Timestamp>,
}

/// One machine in `list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MachineAnswer {
    pub machine: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    pub state: State,
    #[serde(default)]
    pub address: Option<String>,
    #[serde(default)]
    pub port: Option<u16>,
    /// Its public host key, in OpenSSH format.
    #[serde(default)]
    pub host_key: Option<String>,
    #[serde(default)]
    pub created: Option<Timestamp>,
    /// For people: type, zone.
    #[serde(default)]
    pub description: Option<String>,
    /// Why it ended, to follow the instance's name: `was reclaimed`.
    #[serde(default)]
    pub reason: Option<String>,
    #[serde(default)]
    pub notice: Option<NoticeAnswer>,
}

/// The answer of `list`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListAnswer {
    /// False if a machine may be missing.
    pub complete: bool,
    #[serde(default)]
    pub account: Option<String>,
    pub machines: Vec<MachineAnswer>,
}

impl Answer for ListAnswer {
    fn check(&self) -> Result<(), Wrong> {
        each("machines", "machine", self.machines.iter().map(|one| one.machine.as_str()))?;
        for (at, one) in self.machines.iter().enumerate() {
            reachable(&format!("machines[{at}]."), one.address.as_ref(), one.port, one.host_key.as_ref())?;
        }
        Ok(())
    }
}

/// The answer of `endpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EndpointAnswer {
    pub address: String,
    #[serde(default)]
    pub port: Option<u16>,
    #[serde(default)]
    pub host_key: Option<String>,
}

impl Answer for EndpointAnswer {
    fn check(&self) -> Result<(), Wrong> {
        reachable("", Some(&self.address), self.port, self.host_key.as_ref())
    }
}

/// The answer of `terminate`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TerminateAnswer {
    pub state: Ended,
}

/// What `terminate` achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The machine is still there, and ends.
    Stopping,
    /// The machine and all that it had are gone.
    Gone,
}

impl Answer for TerminateAnswer {}

/// The answer of `console`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ConsoleAnswer {
    pub text: String,
}

impl Answer for ConsoleAnswer {}
