//! The containers that a job gets.

use std::time::Duration;

use super::engine::ContainerEngine;
use super::image::ImageName;
use super::request::RECORDED_IMAGES;
use super::settings::{EngineOptions, PullPolicy, Umask};
use super::variables::Environment;
use crate::images::WantedImages;
use crate::text::Secret;

/// Everything that an instance needs to create a job's containers. Judged: what the pool does not allow is not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerJob {
    pub engine: ContainerEngine,
    pub job: ContainerSpec,
    /// The services in the order of the job; those that have no free name are left out.
    pub services: Vec<ServiceSpec>,
    /// Sentences for the job log, such as the names that a service did not get.
    pub remarks: Vec<String>,
    pub umask: Umask,
    pub options: EngineOptions,
    /// Shared by all containers, in Docker's syntax. Without the builds and cache directories.
    pub volumes: Vec<String>,
    /// Mirrors: from a registry to its mirror.
    pub mirrors: Vec<(String, String)>,
    /// PEM certificates.
    pub ca: Option<String>,
    pub wait_for_services: Option<Duration>,
    pub pull_timeout: Duration,
    /// The free space, in bytes, below which images go that were not used for longest. It matters only where images stay.
    pub min_free_space: u64,
    /// An init process reaps in each container.
    pub init: bool,
    /// Services' logs go to the job log while they run.
    pub debug_services: bool,
}

/// True if an entrypoint starts nothing: the command takes its place.
pub fn starts_nothing(entrypoint: &[String]) -> bool {
    entrypoint.iter().all(String::is_empty)
}

impl ContainerJob {
    /// All its containers, the job's own first.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerSpec> {
        std::iter::once(&self.job).chain(self.services.iter().map(|service| &service.container))
    }

    /// The complete names of its images, for the record: the first ones, if there are many.
    pub fn images(&self) -> WantedImages {
        let mut names: Vec<&str> = Vec::new();
        for spec in self.containers() {
            if names.len() < RECORDED_IMAGES && !names.contains(&spec.image.as_str()) {
                names.push(&spec.image);
            }
        }
        WantedImages::new(names.into_iter().map(Into::into))
    }

    /// The registries of its images.
    pub fn registries(&self) -> impl Iterator<Item = String> {
        let names = self.containers().filter_map(|spec| ImageName::parse(&spec.image).ok());
        names.map(|image| image.registry().to_owned())
    }

    /// The complete name of an image that the job calls this.
    pub fn complete_name(&self, called: &str) -> Option<&str> {
        self.containers().find(|spec| spec.called == called).map(|spec| spec.image.as_str())
    }
}

/// One container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSpec {
    /// The image's name in the job, for messages.
    pub called: String,
    /// The complete reference: registry, path, and tag or digest.
    pub image: String,
    /// The pull policies in the order to try; never empty.
    pub policies: Vec<PullPolicy>,
    /// Credentials for the image's registry.
    pub login: Option<Login>,
    /// True if `registry_auth` has credentials for it that this job does not get.
    pub login_withheld: bool,
    pub platform: Option<String>,
    pub user: Option<String>,
    /// `None`: the image's own. Empty: none.
    pub entrypoint: Option<Vec<String>>,
    /// `None`: the image's own. The job's container runs the search for a shell, whatever this is.
    pub command: Option<Vec<String>>,
    pub environment: Environment,
    pub privileged: bool,
}

impl ContainerSpec {
    /// True if one pull serves both.
    pub fn shares_pull(&self, other: &Self) -> bool {
        let own = (&self.image, &self.platform);
        let its = (&other.image, &other.platform);
        own == its && self.policies == other.policies && self.login == other.login
    }
}

/// A service's container, and the names by which it is reached.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceSpec {
    pub container: ContainerSpec,
    /// Never empty. The first is the one that messages use.
    pub names: Vec<String>,
    /// The only port to probe; `None`: those that the image exposes.
    pub probe: Option<u16>,
}

/// Credentials for one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The key of the credentials: a registry, or a path in one.
    pub scope: String,
    pub username: String,
    pub password: Secret<String>,
    /// The source of the credentials, for messages: `DOCKER_AUTH_CONFIG`.
    pub source: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrypoint_of_empty_words_starts_nothing() {
        let starts = |words: &[&str]| {
            !starts_nothing(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>())
        };
        assert!(!starts(&[]) && !starts(&[""]) && !starts(&["", ""]));
        assert!(starts(&["tini"]) && starts(&["", "tini"]));
    }
}
