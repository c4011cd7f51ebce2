//! The containers that a job requests.

use std::fmt;

use crate::text::Secret;

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
    /// The image's name as GitLab sends it, with variables expanded.
    pub name: String,
    /// `None`: the image's own. Empty, or one empty word: none.
    pub entrypoint: Option<Vec<String>>,
    /// Empty: the pool's.
    pub pull_policy: Vec<String>,
    /// The user, whose references are not expanded yet.
    pub user: Option<String>,
    /// The platform, whose references are not expanded yet.
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
    /// The service's own variables, which are not expanded yet.
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

// The most that a job may choose of each thing, whatever its pool allows.
//
// They are applied while the job's response is read, before anything is copied. No honest job meets them: Linux passes
// no program more variables, and no engine or registry accepts longer names.

/// Services of a job.
pub const SERVICES: usize = 100;
/// Host names of all services together: each container gets each of them.
pub const SERVICE_NAMES: usize = 500;
/// Bytes of the host names of all services together, and of the `alias` of one.
pub const SERVICE_NAMES_BYTES: usize = 32 << 10;
/// Variables of a job, and those of all its services together.
pub const VARIABLES: usize = 10_000;
/// Bytes of a variable's name.
pub const VARIABLE_NAME: usize = 1 << 10;
/// Bytes of a variable's value, before and after references are resolved: Linux passes a program no longer one.
pub const VARIABLE_VALUE: usize = 128 << 10;
/// Bytes of all names and values: Linux passes a program no more.
pub const VARIABLES_BYTES: usize = 2 << 20;
/// Bytes that the environments of all services have in the script that creates them. Each has the public variables.
pub const ENVIRONMENTS_BYTES: usize = 16 << 20;
/// Words of all entrypoints and commands.
pub const WORDS: usize = 10_000;
/// Bytes of all entrypoints and commands.
pub const WORDS_BYTES: usize = 1 << 20;
/// Bytes of an image's name.
pub const IMAGE_NAME: usize = 1 << 10;
/// Bytes of `user` or `platform`, before and after references are resolved, and of one `pull_policy`.
pub const OPTION: usize = 256;
/// Entries of `pull_policy`.
pub const PULL_POLICIES: usize = 16;
/// Registries that GitLab gives credentials for.
pub const CREDENTIALS: usize = 200;
/// Bytes of all of them.
pub const CREDENTIALS_BYTES: usize = 512 << 10;
/// Bytes of an order for an instance of the job's own.
pub const ORDER_BYTES: usize = 1 << 20;
/// Sentences in the job log about what a pool ignores.
pub const REMARKS: usize = 50;
/// Names of images in the record of a job.
pub const RECORDED_IMAGES: usize = 20;

/// A limit that a job exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobLimit {
    Services,
    ServiceNames,
    Variables,
    VariableName,
    VariableValue,
    VariablesBytes,
    Environments,
    Words,
    ImageName,
    Option,
    PullPolicies,
    Credentials,
    Order,
}

impl std::error::Error for JobLimit {}

/// One sentence for the job log: the limit, and what the job's author changes.
impl fmt::Display for JobLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: usize| format!("{} KiB", bytes >> 10);
        let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
        let (what, remedy) = match self {
            Self::Services => {
                (format!("the job has more than {SERVICES} services"), "remove services in `.gitlab-ci.yml`")
            }
            Self::ServiceNames => (
                format!(
                    "the job's services have more than {SERVICE_NAMES} host names or {} of them",
                    kib(SERVICE_NAMES_BYTES)
                ),
                "shorten `alias` in `.gitlab-ci.yml`, or remove services",
            ),
            Self::Variables => {
                (format!("the job or its services have more than {VARIABLES} variables"), "remove some")
            }
            Self::VariableName => {
                (format!("the name of a variable is longer than {}", kib(VARIABLE_NAME)), "shorten it")
            }
            Self::VariableValue => (
                format!(
                    "the value of a variable is larger than {}, references resolved",
                    kib(VARIABLE_VALUE)
                ),
                "keep the value in a file of the repository or in an artifact",
            ),
            Self::VariablesBytes => (
                format!(
                    "the variables of the job or its services are larger than {}, references resolved",
                    mib(VARIABLES_BYTES)
                ),
                "keep large values in files of the repository or in artifacts",
            ),
            Self::Environments => (
                format!(
                    "each of the job's services gets its public variables, together more than {}",
                    mib(ENVIRONMENTS_BYTES)
                ),
                "remove services, or mask variables that services do not need",
            ),
            Self::Words => (
                format!(
                    "the entrypoints and commands of the job have more than {WORDS} words or {}",
                    mib(WORDS_BYTES)
                ),
                "shorten them in `.gitlab-ci.yml`",
            ),
            Self::ImageName => (
                format!("the name of an image is longer than {}", kib(IMAGE_NAME)),
                "correct it in `.gitlab-ci.yml`",
            ),
            Self::Option => (
                format!(
                    "`user`, `platform` or `pull_policy` of an image is longer than {OPTION} bytes, references resolved"
                ),
                "correct it in `.gitlab-ci.yml`",
            ),
            Self::PullPolicies => (
                format!("`pull_policy` of an image has more than {PULL_POLICIES} entries"),
                "remove some of them in `.gitlab-ci.yml`",
            ),
            Self::Credentials => (
                format!(
                    "GitLab gives the job credentials for more than {CREDENTIALS} registries or {}",
                    kib(CREDENTIALS_BYTES)
                ),
                "have an administrator of GitLab look into it",
            ),
            Self::Order => (
                format!(
                    "the pod for the job's images would have more than {} of variables, commands and names",
                    mib(ORDER_BYTES)
                ),
                "remove services or public variables",
            ),
        };
        write!(f, "{what}, which no pool accepts: {remedy}")
    }
}

/// The rest of a limit on entries and bytes.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    entries: usize,
    bytes: usize,
}

impl Room {
    pub const fn new(entries: usize, bytes: usize) -> Self {
        Self { entries, bytes }
    }

    /// True if there is room for another entry.
    pub fn has_entries(&self) -> bool {
        self.entries > 0
    }

    /// Takes one entry of so many bytes; false if there is too little room, now or before.
    pub fn take(&mut self, bytes: usize) -> bool {
        let left = self.entries.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        let (entries, bytes) = left.unwrap_or_default();
        *self = Self { entries, bytes };
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_that_was_exceeded_once_stays_so() {
        let mut room = Room::new(3, 10);
        assert!(room.take(10) && room.take(0));
        assert!(!room.take(1) && !room.take(0));
        let mut room = Room::new(1, 10);
        assert!(room.take(1) && !room.take(1));
    }

    #[test]
    fn a_limit_names_itself_and_what_the_author_changes() {
        assert_eq!(
            JobLimit::Services.to_string(),
            "the job has more than 100 services, which no pool accepts: remove services in `.gitlab-ci.yml`"
        );
        let value = JobLimit::VariableValue.to_string();
        assert!(
            value.starts_with("the value of a variable is larger than 128 KiB, references resolved"),
            "{value}"
        );
    }
}
