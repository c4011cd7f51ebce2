//! Why a pool does not run the containers of a job.

use std::fmt;

use super::limits::JobLimit;
use super::settings::PullPolicy;
use crate::glob::Glob;
use crate::text::clean_line;

/// How many patterns of an allow-list a message names.
const PATTERNS_NAMED: usize = 5;

/// A refusal that another attempt would not change. Each sentence says what is refused, and who can change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerRefusal {
    #[error(
        "all jobs of this pool run in containers, and this one names no image: set `image:` in `.gitlab-ci.yml`, or have \
         the operator set `default_image`"
    )]
    NoImage,
    #[error(
        "the job has {wanted} services, but this pool allows {limit}: remove services, or have the operator raise \
         `services_limit`"
    )]
    Services { wanted: usize, limit: usize },
    #[error(transparent)]
    Limit(#[from] JobLimit),
    #[error("a {} has no name: correct it in `.gitlab-ci.yml`", .0.as_str())]
    NoName(Role),
    #[error("the name of the {container} is not valid: {why}; correct it in `.gitlab-ci.yml`")]
    Name { container: Requested, why: &'static str },
    #[error(
        "the {container} is not allowed in this pool ({}): use another one, or have the operator extend `{}`",
        shown(.allowed), .container.role.key()
    )]
    Image { container: Requested, allowed: Vec<Glob> },
    #[error("{refused} for the {container}: change it in `.gitlab-ci.yml`, or have the operator allow it")]
    PullPolicy {
        container: Requested,
        #[source]
        refused: PullPolicyRefusal,
    },
    /// `platform` is what the job has asked for, cleaned.
    #[error(
        "the platform `{platform}` of the {container} is not valid: {why}; correct it in `.gitlab-ci.yml`"
    )]
    Platform { container: Requested, platform: String, why: &'static str },
    /// `user` is what the job has asked for, cleaned.
    #[error("the user `{user}` of the {container} is not valid: use a name or `UID:GID` in `.gitlab-ci.yml`")]
    UserName { container: Requested, user: String },
    #[error(
        "the user `{user}` of the {container} is not allowed in this pool ({}): use another one, or have the operator \
         extend `allowed_users`",
        shown(.allowed)
    )]
    User { container: Requested, user: String, allowed: Vec<Glob> },
}

/// The pool allows none of the pull policies that a job wants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct PullPolicyRefusal {
    pub requested: Vec<String>,
    pub allowed: Vec<PullPolicy>,
}

impl PullPolicyRefusal {
    /// GitLab Runner's own sentence. A job may ask for any text.
    fn sentence(&self) -> String {
        let allowed: Vec<&str> = self.allowed.iter().map(|policy| policy.as_str()).collect();
        let sentence = format!(
            "pull_policy ([{}]) is not one of the allowed_pull_policies ([{}])",
            self.requested.join(" "),
            allowed.join(" ")
        );
        clean_line(sentence.as_bytes(), 300)
    }
}

/// What a container is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Job,
    Service,
}

impl Role {
    /// The word for its image.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "image",
            Self::Service => "service",
        }
    }

    /// The key of the pool with the images that are allowed for it.
    fn key(self) -> &'static str {
        match self {
            Self::Job => "images",
            Self::Service => "services",
        }
    }
}

/// A container that a job has asked for, as messages call it: *image `ruby`*.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    pub role: Role,
    /// The name of its image, cleaned.
    pub image: String,
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.role.as_str(), self.image)
    }
}

/// The patterns of an allow-list, as messages show them.
fn shown(allowed: &[Glob]) -> String {
    let named = allowed.iter().take(PATTERNS_NAMED).map(|pattern| format!("`{pattern}`"));
    let named: Vec<String> = named.collect();
    match allowed.len().saturating_sub(PATTERNS_NAMED) {
        0 if named.is_empty() => "none is allowed".to_owned(),
        0 => format!("allowed: {}", named.join(", ")),
        more => format!("allowed: {} and {more} more", named.join(", ")),
    }
}
