//! What a job asks for.

use super::limits::JobLimit;
use crate::secret::Secret;

/// The containers of a job, as its response describes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerRequest {
    /// `None`: the job names no image.
    pub image: Option<ImageRequest>,
    pub services: Vec<ServiceRequest>,
    /// Registry credentials that GitLab gives to the job.
    pub credentials: Vec<Credential>,
    /// The job's variables, in GitLab's order. A later one overrides an earlier one of the same name.
    pub variables: Vec<Variable>,
    /// The limit that the job exceeds: what exceeds it is left out.
    pub excess: Option<JobLimit>,
}

/// An image, and how its container starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageRequest {
    /// As GitLab sends it, with variables expanded.
    pub name: String,
    /// `None`: the image's own. Empty, or one empty word: none.
    pub entrypoint: Option<Vec<String>>,
    /// Empty: the pool's.
    pub pull_policy: Vec<String>,
    /// Not expanded yet.
    pub user: Option<String>,
    /// Not expanded yet.
    pub platform: Option<String>,
}

/// A service beside the job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceRequest {
    pub image: ImageRequest,
    /// One text with any number of aliases, separated by commas or blanks.
    pub alias: Option<String>,
    /// `None`: the image's own.
    pub command: Option<Vec<String>>,
    /// Not expanded yet.
    pub variables: Vec<Variable>,
}

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The registry, as GitLab names it, such as `registry.example.com:5005`.
    pub registry: String,
    pub username: String,
    pub password: Secret<String>,
}

/// A variable of a job or a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub key: String,
    pub value: Secret<String>,
    /// True if services get it.
    pub public: bool,
    /// True if the job sees the path of a file with the value.
    pub file: bool,
    /// True if references to other variables in its value stay as they are.
    pub raw: bool,
}
