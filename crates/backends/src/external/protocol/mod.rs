//! The protocol between Greenroom and a program that creates machines: verbs, requests, answers, exit codes.
//!
//! docs/providers/external.md describes it for authors of such programs.

pub mod answers;
pub mod exit;
pub mod requests;

use std::fmt;
use std::time::Duration;

/// The version that this Greenroom speaks.
pub const VERSION: u32 = 1;

/// What the program is called for; its name is the last argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    Capabilities,
    Launch,
    List,
    Terminate,
    Endpoint,
    Console,
    Resources,
    Delete,
    Examine,
}

impl Verb {
    pub const ALL: &[Self] = &[
        Self::Capabilities,
        Self::Launch,
        Self::List,
        Self::Terminate,
        Self::Endpoint,
        Self::Console,
        Self::Resources,
        Self::Delete,
        Self::Examine,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::Launch => "launch",
            Self::List => "list",
            Self::Terminate => "terminate",
            Self::Endpoint => "endpoint",
            Self::Console => "console",
            Self::Resources => "resources",
            Self::Delete => "delete",
            Self::Examine => "examine",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }

    /// True if every program has it. The others count only if `capabilities` names them.
    pub fn is_required(self) -> bool {
        matches!(self, Self::Capabilities | Self::Launch | Self::List | Self::Terminate)
    }

    /// The default limit of one call. Two calls fit into an exchange of the keeper with a provider, except a launch, which
    /// has more time.
    pub fn time_limit(self) -> Duration {
        match self {
            Self::Launch => Duration::from_mins(5),
            Self::Console => Duration::from_secs(8),
            Self::Capabilities => Duration::from_secs(20),
            Self::List | Self::Terminate | Self::Endpoint => Duration::from_secs(50),
            Self::Resources | Self::Delete | Self::Examine => Duration::from_mins(1),
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_found_by_its_name() {
        for verb in Verb::ALL {
            assert_eq!(Verb::of_name(verb.name()), Some(*verb));
        }
        assert_eq!(Verb::of_name("reboot"), None);
        assert_eq!(Verb::ALL.iter().filter(|verb| verb.is_required()).count(), 4);
    }
}
