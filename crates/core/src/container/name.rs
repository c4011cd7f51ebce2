//! The name of a job's container.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::engine::ContainerEngine;
use crate::ids::AttemptName;
use crate::time::Stamp;

/// Begins the names of containers that the account of jobs runs.
const ROOTLESS: &str = "rootless-greenroom-";

/// A container's name at the engine. Letters, digits and `-`, `_`, `.` only, so that it needs no quoting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerName(String);

impl ContainerName {
    /// The length of the longest name.
    pub const LONGEST: usize = 128;

    /// The container of an attempt's job.
    pub fn of(attempt: &AttemptName) -> Self {
        Self(format!("greenroom-{attempt}"))
    }

    /// The same where the account of jobs runs the engine. The name says so to all who meet the container later.
    pub fn rootless(attempt: &AttemptName) -> Self {
        Self(format!("{ROOTLESS}{attempt}"))
    }

    /// What a pull in advance that began at `at` calls its files. `rootless`: the account of jobs runs the engine.
    pub fn of_pull(at: Stamp, rootless: bool) -> Self {
        let begin = if rootless { ROOTLESS } else { "greenroom-" };
        Self(format!("{begin}pull-{}-{}", at.wall_ms, at.uptime_ms))
    }

    /// What the keeper's check of an engine that began at `at` calls its network.
    pub fn of_check(at: Stamp, rootless: bool) -> Self {
        let begin = if rootless { ROOTLESS } else { "greenroom-" };
        Self(format!("{begin}check-{}-{}", at.wall_ms, at.uptime_ms))
    }

    /// True if the account of jobs runs the engine, false if root does.
    pub fn is_rootless(&self) -> bool {
        self.0.starts_with(ROOTLESS)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let is_safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let starts_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        (starts_well && text.len() <= Self::LONGEST && text.bytes().all(is_safe))
            .then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<ContainerName> for String {
    fn from(name: ContainerName) -> Self {
        name.0
    }
}

impl TryFrom<String> for ContainerName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a container's name")
    }
}

/// A container, and the engine that has it. As text, the name alone stands for the default engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EngineContainer {
    pub engine: ContainerEngine,
    pub name: ContainerName,
}

impl EngineContainer {
    /// The length of the longest text.
    pub const LONGEST: usize = "podman/".len() + ContainerName::LONGEST;

    pub fn parse(text: &str) -> Option<Self> {
        let (engine, name) = match text.split_once('/') {
            Some((engine, name)) => {
                (ContainerEngine::ALL.into_iter().find(|known| known.program() == engine)?, name)
            }
            None => (ContainerEngine::default(), text),
        };
        Some(Self { engine, name: ContainerName::parse(name)? })
    }
}

impl From<ContainerName> for EngineContainer {
    fn from(name: ContainerName) -> Self {
        Self { engine: ContainerEngine::default(), name }
    }
}

impl fmt::Display for EngineContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.engine.is_default() {
            return self.name.fmt(f);
        }
        write!(f, "{}/{}", self.engine.program(), self.name)
    }
}

impl From<EngineContainer> for String {
    fn from(container: EngineContainer) -> Self {
        container.to_string()
    }
}

impl TryFrom<String> for EngineContainer {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not a container of an engine")
    }
}

/// The container that a job's own stages run in. It exists from `prepare` to the end of its instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobContainer {
    pub name: ContainerName,
    #[serde(default, skip_serializing_if = "ContainerEngine::is_default")]
    pub engine: ContainerEngine,
    /// True if the runner's own stages run with umask 0, because users other than root share their files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open_umask: bool,
    /// True if it may start before its first stage: it has no entrypoint that could read the checkout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub starts_ahead: bool,
    /// Who gets the files of the runner's own stages before the container's stages; `None`: they stay the login's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The services whose output the job log shows, by their numbers from 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_services: Vec<String>,
}

impl JobContainer {
    /// Where its engine has it.
    pub fn at_engine(&self) -> EngineContainer {
        EngineContainer { engine: self.engine, name: self.name.clone() }
    }
}

/// The numbers of a user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_no_quoting() {
        let name = ContainerName::of(&AttemptName::new("a1-b2"));
        assert_eq!(ContainerName::parse(name.as_str()), Some(name.clone()));
        assert_eq!(serde_json::to_string(&name).unwrap(), "\"greenroom-a1-b2\"");
        for bad in ["", "-x", "a b", "a;b", "a/b", "a\n", "ä"] {
            assert_eq!(ContainerName::parse(bad), None, "{bad:?}");
            assert!(serde_json::from_value::<ContainerName>(bad.into()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_container_is_read_as_it_was_written() {
        for (text, engine) in
            [("greenroom-a1", ContainerEngine::Podman), ("docker/greenroom-a1", ContainerEngine::Docker)]
        {
            let container = EngineContainer::parse(text).unwrap();
            assert_eq!((container.engine, container.name.as_str()), (engine, "greenroom-a1"));
            let json = serde_json::to_string(&container).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<EngineContainer>(&json).unwrap(), container);
        }
        for bad in ["", "docker/", "containerd/a", "docker/a/b", "Docker/a", "docker/a;b", "/a"] {
            assert_eq!(EngineContainer::parse(bad), None, "{bad}");
        }
    }
}
