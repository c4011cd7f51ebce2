//! The names of containers, and the host names of services.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::engine::ContainerEngine;
use super::request::{JobLimit, REMARKS, Room, SERVICE_NAMES, SERVICE_NAMES_BYTES};
use crate::ids::AttemptName;
use crate::text::clean_line;
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

    /// The name of an attempt's container where the account of jobs runs the engine. Later calls tell that from the name.
    pub fn rootless(attempt: &AttemptName) -> Self {
        Self(format!("{ROOTLESS}{attempt}"))
    }

    /// The name that a pull in advance which began at `at` gives its files. `rootless`: the account of jobs runs the
    /// engine.
    pub fn of_pull(at: Stamp, rootless: bool) -> Self {
        let begin = if rootless { ROOTLESS } else { "greenroom-" };
        Self(format!("{begin}pull-{}-{}", at.wall_ms, at.uptime_ms))
    }

    /// The name that the keeper's check of an engine which began at `at` gives its network.
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
    /// The user who gets the files of the runner's own stages before the container's stages; `None`: they stay the login's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The services whose output the job log shows, by their numbers from 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown_services: Vec<String>,
}

impl JobContainer {
    /// The container as its engine finds it.
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

// The host names of services.

/// The names that are taken, in lower case: a look-up of a host name does not heed case.
#[derive(Debug)]
pub struct TakenNames {
    names: BTreeSet<String>,
    room: Room,
}

impl TakenNames {
    /// `build` is the job's container. A service that is called `localhost` would hide the container's own address.
    pub fn new() -> Self {
        Self {
            names: ["build", "localhost"].map(str::to_owned).into(),
            room: Room::new(SERVICE_NAMES, SERVICE_NAMES_BYTES),
        }
    }

    /// Gives a service its names, as GitLab Runner does: one or two from its image, then the job's own. Names that it
    /// cannot get are said in `remarks`. An empty list: no name is left, so the job could not reach the service.
    pub fn take(
        &mut self,
        image: &str,
        aliases: Option<&str>,
        remarks: &mut Vec<String>,
    ) -> Result<Vec<String>, JobLimit> {
        let mut names: Vec<String> = Vec::new();
        let own = aliases.unwrap_or_default().split([',', ' ', '\t', '\r', '\n']).map(str::to_owned);
        let shown = shown(image);
        for name in from_image(image).into_iter().chain(own).filter(|name| !name.is_empty()) {
            if names.iter().any(|taken| taken.eq_ignore_ascii_case(&name)) {
                continue;
            }
            let why = if !is_host_name(&name) {
                "it is not a valid host name"
            } else if !self.names.insert(name.to_ascii_lowercase()) {
                "it is already in use"
            } else if self.room.take(name.len()) {
                names.push(name);
                continue;
            } else {
                return Err(JobLimit::ServiceNames);
            };
            if remarks.len() > REMARKS {
                continue;
            }
            let name = clean_line(name.as_bytes(), 80);
            remarks.push(format!("service `{shown}` does not get the name `{name}`: {why}"));
        }
        if names.is_empty() {
            remarks.push(format!(
                "service `{shown}` is not started: it has no name of its own; give it an `alias` in `.gitlab-ci.yml`"
            ));
        }
        Ok(names)
    }
}

impl Default for TakenNames {
    fn default() -> Self {
        Self::new()
    }
}

/// Path and registry with `__` for each slash, and with `-`. Tag, digest and the registry's port are left out.
fn from_image(image: &str) -> Vec<String> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        Some(_) | None => name,
    };
    let (registry, path) = name.split_once('/').map_or((name, None), |(first, path)| (first, Some(path)));
    let host = registry.split_once(':').map_or(registry, |(host, _)| host);
    let name = path.map_or_else(|| host.to_owned(), |path| format!("{host}/{path}"));
    let mut names = vec![name.replace('/', "__"), name.replace('/', "-")];
    names.dedup();
    names
}

/// Underscores are allowed, because GitLab Runner's own names have them. A name of digits and dots would be read as an
/// address.
fn is_host_name(name: &str) -> bool {
    let is_edge = |b: u8| b.is_ascii_alphanumeric();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|b| is_edge(*b))
            && bytes.last().is_some_and(|b| is_edge(*b))
            && bytes.len() <= 63
            && bytes.iter().all(|b| is_edge(*b) || *b == b'-' || *b == b'_')
    };
    name.len() <= 253 && name.split('.').all(is_label) && name.bytes().any(|b| b.is_ascii_alphabetic())
}

/// An image's name as messages call it.
pub(super) fn shown(image: &str) -> String {
    clean_line(image.as_bytes(), 200)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    fn take(services: &[(&str, &str)]) -> (Vec<Vec<String>>, Vec<String>) {
        let mut taken = TakenNames::new();
        let mut remarks = Vec::new();
        let names =
            services.iter().map(|(image, alias)| taken.take(image, Some(alias), &mut remarks).unwrap());
        (names.collect(), remarks)
    }

    #[test]
    fn a_service_has_the_names_that_gitlab_runner_gives_it() {
        let digest = format!("postgres@sha256:{}", "a".repeat(64));
        for (image, alias, expected) in [
            ("postgres", "", vec!["postgres"]),
            ("postgres:16", "", vec!["postgres"]),
            (&digest, "", vec!["postgres"]),
            ("postgres:16@sha256:abc", "", vec!["postgres"]),
            ("tutum/wordpress:latest", "", vec!["tutum__wordpress", "tutum-wordpress"]),
            (
                "registry.example.com:5005/g/db/postgres:16",
                "",
                vec!["registry.example.com__g__db__postgres", "registry.example.com-g-db-postgres"],
            ),
            ("localhost:5000/db", "", vec!["localhost__db", "localhost-db"]),
            ("registry:5000/db", "", vec!["registry__db", "registry-db"]),
            ("docker:24-dind", "docker", vec!["docker"]),
            ("postgres:16", "db, pg  demo,db", vec!["postgres", "db", "pg", "demo"]),
            ("postgres:16", " ,\t", vec!["postgres"]),
        ] {
            assert_eq!(take(&[(image, alias)]), (vec![strings(&expected)], vec![]), "{image} {alias}");
        }
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_taken_name_is_left_to_the_first_service() {
        let (names, remarks) = take(&[("postgres:16", "db"), ("postgres:15", "DB,old"), ("build", "main")]);
        assert_eq!(names, [strings(&["postgres", "db"]), strings(&["old"]), strings(&["main"])]);
        assert_eq!(
            remarks,
            [
                "service `postgres:15` does not get the name `postgres`: it is already in use",
                "service `postgres:15` does not get the name `DB`: it is already in use",
                "service `build` does not get the name `build`: it is already in use",
            ]
        );
    }

    #[test]
    fn a_service_without_a_name_of_its_own_is_not_started() {
        let (names, remarks) = take(&[("postgres:16", ""), ("postgres:16", "")]);
        assert_eq!(names, [strings(&["postgres"]), vec![]]);
        assert!(remarks[1].starts_with("service `postgres:16` is not started: "), "{remarks:?}");
    }

    #[test]
    fn only_host_names_are_names() {
        for bad in ["-x", "x-", "a..b", ".a", "a;b", "a=b", "1.2.3.4", "12", "ä", "x\u{1b}[31m", "a:1", "#x"]
        {
            let (names, remarks) = take(&[("postgres", bad)]);
            assert_eq!(names, [strings(&["postgres"])], "{bad}");
            assert!(remarks[0].ends_with("it is not a valid host name"), "{remarks:?}");
            assert!(!remarks[0].contains('\u{1b}'));
        }
        let (names, _) = take(&[("postgres", "a_b,3com,a.b-c")]);
        assert_eq!(names, [strings(&["postgres", "a_b", "3com", "a.b-c"])]);
    }

    #[test]
    fn names_are_as_many_as_each_container_can_get() {
        let mut taken = TakenNames::new();
        let mut remarks = Vec::new();
        let aliases: Vec<String> = (0..SERVICE_NAMES).map(|number| format!("a{number}")).collect();
        assert!(taken.take("db", Some(&aliases[1..].join(",")), &mut remarks).is_ok());
        assert_eq!(taken.take("cache", None, &mut remarks), Err(JobLimit::ServiceNames));
        // A name that is not valid, or taken, costs nothing but a sentence.
        let wrong = "-, db,".repeat(1000);
        assert_eq!(TakenNames::new().take("db", Some(&wrong), &mut remarks).unwrap(), ["db"]);
        assert_eq!(remarks.len(), REMARKS + 1);
    }

    proptest! {
        #[test]
        fn no_name_is_given_twice(services in prop::collection::vec(("[abB/:.]{0,5}", "[abcB, _-]{0,8}"), 0..6)) {
            let services: Vec<_> = services.iter().map(|(image, alias)| (&**image, &**alias)).collect();
            let (names, _) = take(&services);
            let mut all: Vec<String> = names.concat().iter().map(|name| name.to_lowercase()).collect();
            let count = all.len();
            all.sort();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            prop_assert!(!all.iter().any(|name| name == "build" || name == "localhost"));
        }

        #[test]
        fn no_text_panics(image in ".{0,30}", alias in ".{0,30}") {
            take(&[(&image, &alias)]);
        }
    }
}
