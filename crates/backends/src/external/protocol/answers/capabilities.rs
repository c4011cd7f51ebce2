//! What the program can do.

use std::collections::BTreeSet;

use greenroom_core::text::clean_line;
use serde::Deserialize;

use super::{Answer, Wrong, each, word};
use crate::external::protocol::{VERSION, Verb};

/// How the program's machines show which instance they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identity {
    /// They carry the tags of their launch.
    #[default]
    Tags,
    /// They carry the name of their launch only.
    Names,
}

/// How Greenroom learns a machine's host key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostKey {
    /// Greenroom makes it, and the program puts it on the machine.
    #[default]
    Launch,
    /// The machine makes it, and the program reports it in `list` or `endpoint`.
    Report,
    /// The machine makes it, and its console shows it, as cloud-init writes it there.
    Console,
    /// The operator states it: the image has it.
    Operator,
    /// The machine makes it, and has a certificate for it, of an authority that the operator states.
    Certificate,
}

/// One way to launch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OfferingAnswer {
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
}

/// The answer of `capabilities`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CapabilitiesAnswer {
    pub protocol: u32,
    pub name: String,
    #[serde(default)]
    pub version: Option<String>,
    /// Where the machines are: account, project, region, host.
    #[serde(default)]
    pub account: Option<String>,
    #[serde(default)]
    pub identity: Identity,
    /// True if a repeated token never makes a second machine.
    #[serde(default)]
    pub idempotent_launch: bool,
    #[serde(default)]
    pub host_key: HostKey,
    /// True if machines end by themselves after `lifetime_s`.
    #[serde(default)]
    pub lifetime: bool,
    /// How long `list` may lack a new machine.
    #[serde(default = "appears_within_s")]
    pub appears_within_s: u64,
    /// The optional verbs that the program has.
    #[serde(default)]
    pub verbs: BTreeSet<String>,
    #[serde(default)]
    pub offerings: Vec<OfferingAnswer>,
    /// What a machine costs, for people: `0.007 EUR an hour`.
    #[serde(default)]
    pub price: Option<String>,
}

/// Default of `appears_within_s`.
const fn appears_within_s() -> u64 {
    60
}

impl CapabilitiesAnswer {
    pub fn has(&self, verb: Verb) -> bool {
        verb.is_required() || self.verbs.contains(verb.name())
    }
}

impl Answer for CapabilitiesAnswer {
    fn check(&self) -> Result<(), Wrong> {
        if self.protocol != VERSION {
            let why = format!("is {}, but this Greenroom speaks version {VERSION}", self.protocol);
            return Err(("protocol".to_owned(), why));
        }
        if let Some(unknown) = self.verbs.iter().find(|name| Verb::of_name(name).is_none()) {
            return Err((
                "verbs".to_owned(),
                format!("`{}` is not a verb", clean_line(unknown.as_bytes(), 40)),
            ));
        }
        if self.appears_within_s > 3600 {
            return Err(("appears_within_s".to_owned(), "is more than an hour".to_owned()));
        }
        word("name", &self.name)?;
        let names = self.offerings.iter().map(|offering| offering.name.as_str());
        each("offerings", "name", names)
    }
}
