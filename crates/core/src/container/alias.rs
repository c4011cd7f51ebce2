//! The host names of services.

use std::collections::BTreeSet;

use super::limits::{JobLimit, REMARKS, Room, SERVICE_NAMES, SERVICE_NAMES_BYTES};
use crate::text::clean_line;

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

    fn take(services: &[(&str, &str)]) -> (Vec<Vec<String>>, Vec<String>) {
        let (mut taken, mut remarks) = (TakenNames::new(), Vec::new());
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
        let (mut taken, mut remarks) = (TakenNames::new(), Vec::new());
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
