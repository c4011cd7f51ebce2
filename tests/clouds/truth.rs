//! What the lab tells of what really exists, and of what it was asked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

/// Everything in the accounts, whatever lists say.
#[derive(Debug, Deserialize)]
pub struct Truth {
    pub instances: Vec<Machine>,
    pub volumes: Vec<Volume>,
}

/// An instance as its cloud has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Machine {
    /// EC2's id, or Compute Engine's name.
    pub id: String,
    /// In the words of its cloud.
    pub state: String,
    /// Is it paid for, or about to be?
    pub live: bool,
    /// Tags, or labels.
    pub tags: BTreeMap<String, String>,
    pub spot: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[expect(dead_code, reason = "for messages of failed tests")]
pub struct Volume {
    pub id: String,
    pub tags: BTreeMap<String, String>,
    /// The instance that has it, by the cloud's id.
    pub instance: Option<String>,
}

/// One request that the lab got.
#[derive(Debug, Clone, Deserialize)]
#[expect(dead_code, reason = "for messages of failed tests")]
pub struct Request {
    pub operation: String,
    pub parameters: Value,
    /// Zero while it is on its way, or where no answer was sent.
    pub status: u16,
    pub code: Option<String>,
    /// The mode of the fault that it met.
    pub fault: Option<String>,
    /// Seconds since the lab began.
    pub at: f64,
}

impl Machine {
    /// Does it run, or is it about to?
    pub fn runs(&self) -> bool {
        matches!(self.state.as_str(), "pending" | "running" | "PROVISIONING" | "STAGING" | "RUNNING")
    }
}

impl Truth {
    pub fn live(&self) -> impl Iterator<Item = &Machine> {
        self.instances.iter().filter(|machine| machine.live)
    }

    /// Volumes that no living instance has.
    pub fn orphans(&self) -> impl Iterator<Item = &Volume> {
        let living: BTreeSet<&str> = self.live().map(|machine| machine.id.as_str()).collect();
        let has_owner =
            move |volume: &&Volume| volume.instance.as_deref().is_some_and(|id| living.contains(id));
        self.volumes.iter().filter(move |volume| !has_owner(volume))
    }
}
