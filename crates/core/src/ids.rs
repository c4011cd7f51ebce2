//! Identifiers: cheap, ordered, checked.
//!
//! Each one is text that is readable in a journal, and shared so that a clone costs no allocation.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Creates shared text directly from the input: a state of 1,000 instances holds many thousands of names.
struct Text;

impl Visitor<'_> for Text {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Arc<str>, E> {
        Ok(Arc::from(text))
    }
}

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text).map(Self)
            }
        }

        impl $name {
            /// Takes the text as it is; use `parse` for text that comes from outside.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), &self.0)
            }
        }
    };
}

text_name!(
    /// A pool: instances of one kind under one policy. Lower-case letters, digits and hyphens, at most 32.
    PoolName
);
text_name!(
    /// One instance. If launched: `POOL-GENERATION-NUMBER`; for a static host: the operator's name.
    InstanceId
);
text_name!(
    /// One prepare-to-cleanup cycle: the base name of the runner's TMPDIR.
    AttemptName
);
text_name!(
    /// The state directory's random ID. Created once, never derived from configuration or host name.
    OwnerId
);
text_name!(
    /// One start of a keeper: a random nonce.
    Generation
);
text_name!(
    /// One way to launch: machine type, zone or subnet, spot or on demand, image. A readable name, unique in its pool:
    /// `us-east1-b n2d-standard-4 spot`.
    OfferingName
);
text_name!(
    /// The place in which a provider launches and lists: the provider's kind, and the account, region or project. A text
    /// for people: `aws-ec2 account 123456789012 in eu-central-1`.
    Location
);
text_name!(
    /// The jobs that may share an instance: those of a project, those of a namespace, or all.
    TrustDomain
);

/// A name that breaks the rules of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}: {rule}")]
pub struct NameError {
    pub what: &'static str,
    pub text: String,
    pub rule: &'static str,
}

impl PoolName {
    /// Checks a pool's name from configuration or the command line.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let ok = !text.is_empty()
            && text.len() <= 32
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if ok {
            return Ok(Self::new(text));
        }
        let rule = "lower-case letters, digits and hyphens, at most 32, not starting with a hyphen";
        Err(NameError { what: "pool name", text: text.to_owned(), rule })
    }
}

impl AttemptName {
    /// Checks the base name of a TMPDIR before it becomes the name of a directory.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let ok = !text.is_empty()
            && text.len() <= 128
            && !text.starts_with('.')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if ok {
            return Ok(Self::new(text));
        }
        let rule = "letters, digits, `-`, `_` and `.`, at most 128, not starting with a dot";
        Err(NameError { what: "TMPDIR base name", text: text.to_owned(), rule })
    }
}

impl InstanceId {
    /// The id of launch `number` of a generation.
    pub fn launched(pool: &PoolName, generation: &Generation, number: u32) -> Self {
        Self::new(format!("{pool}-{generation}-{number}"))
    }

    /// The idempotency token of a launch attempt.
    pub fn token(&self, attempt: u32) -> String {
        format!("{self}/{attempt}")
    }
}

/// One CI job of one GitLab.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// GitLab's URL, from the first `CI_SERVER_URL` among the job response's variables.
    pub server: Arc<str>,
    pub id: u64,
}

impl JobKey {
    pub fn new(server: impl AsRef<str>, id: u64) -> Self {
        Self { server: Arc::from(server.as_ref()), id }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_name_is_a_directory_name_everywhere() {
        for good in ["linux", "a", "gpu-2", "0"] {
            assert!(PoolName::parse(good).is_ok(), "{good}");
        }
        let long = "x".repeat(33);
        for bad in ["", "-a", "Linux", "a/b", "..", "a b", "ä", long.as_str()] {
            assert!(PoolName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_attempt_name_never_leaves_its_directory() {
        assert!(AttemptName::parse("custom-executor123").is_ok());
        for bad in ["", ".", "..", ".hidden", "a/b", "a\0b", "ü"] {
            assert!(AttemptName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_launched_instance_says_where_it_comes_from() {
        let id = InstanceId::launched(&PoolName::new("linux"), &Generation::new("3f9a"), 12);
        assert_eq!(id.as_str(), "linux-3f9a-12");
    }
}
