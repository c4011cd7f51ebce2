//! The emulator's reports: what really exists, and the requests it received.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

/// Everything in the accounts, whatever the clouds' lists show.
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
    /// The state of the instance, as its cloud names it.
    pub state: String,
    /// True if it costs money, or soon will.
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
    /// The instance that it is attached to, by the cloud's id.
    pub instance: Option<String>,
}

/// One request that the emulator received.
#[derive(Debug, Clone, Deserialize)]
#[expect(dead_code, reason = "for messages of failed tests")]
pub struct Request {
    pub operation: String,
    pub parameters: Value,
    /// Zero until an answer is sent.
    pub status: u16,
    pub code: Option<String>,
    /// The mode of the fault that affected it.
    pub fault: Option<String>,
    /// The time in seconds since the emulator's start.
    pub at: f64,
}

impl Machine {
    /// True if it runs, or soon will.
    pub fn runs(&self) -> bool {
        matches!(self.state.as_str(), "pending" | "running" | "PROVISIONING" | "STAGING" | "RUNNING")
    }
}

impl Truth {
    pub fn live(&self) -> impl Iterator<Item = &Machine> {
        self.instances.iter().filter(|machine| machine.live)
    }

    /// Volumes without a live instance.
    pub fn orphans(&self) -> impl Iterator<Item = &Volume> {
        let living: BTreeSet<&str> = self.live().map(|machine| machine.id.as_str()).collect();
        let has_owner =
            move |volume: &&Volume| volume.instance.as_deref().is_some_and(|id| living.contains(id));
        self.volumes.iter().filter(move |volume| !has_owner(volume))
    }
}
