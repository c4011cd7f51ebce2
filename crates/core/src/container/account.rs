//! The fate of a job's containers on its instance, as `explain` and `pool status` show it. No variables.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{ContainerJob, ContainerSpec};
use crate::ids::{JobKey, PoolName};
use crate::text::size;
use crate::time::{Pretty, Stamp, millis};

/// One attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerAccount {
    pub job: JobKey,
    pub pool: PoolName,
    /// Time at which the preparation of the job's containers began.
    pub at: Stamp,
    pub image: ImageAccount,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceAccount>,
    /// Other images that went from a static host to make room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureAccount>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageAccount {
    /// The service's name in the job.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// `None`: it has not come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ImageSource>,
}

/// The way in which an instance got an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageSource {
    /// The instance had the image already.
    Present,
    Pulled {
        #[serde(with = "millis")]
        after: Duration,
        /// The image's size on the instance; `None`: written by a version that did not note it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
}

/// A service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAccount {
    pub name: String,
    pub image: ImageAccount,
    /// `None`: it was not waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ServiceStart>,
}

/// The behavior of a service while it was waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceStart {
    Answered {
        #[serde(with = "millis")]
        after: Duration,
    },
    Exited {
        #[serde(with = "millis")]
        after: Duration,
        status: String,
    },
    Silent {
        #[serde(with = "millis")]
        waited: Duration,
    },
    Unstarted,
}

/// The reason why the job failed, apart from its script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureAccount {
    pub class: FailureClass,
    /// The sentence of the job log.
    pub message: String,
}

/// The party at fault for a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// The job's own: a new attempt fails, too.
    Job,
    /// A registry's, the network's, or the instance's.
    System,
}

impl ContainerAccount {
    /// Before anything has happened.
    pub fn new(job: JobKey, pool: PoolName, at: Stamp, containers: &ContainerJob) -> Self {
        let image =
            |spec: &ContainerSpec| ImageAccount { name: spec.called.clone(), digest: None, source: None };
        let services = containers.services.iter().map(|service| ServiceAccount {
            name: service.names.first().cloned().unwrap_or_default(),
            image: image(&service.container),
            start: None,
        });
        let image = image(&containers.job);
        let services = services.collect();
        Self { job, pool, at, image, services, removed: Vec::new(), failure: None }
    }

    /// All images with this name.
    pub fn images(&mut self, name: &str) -> impl Iterator<Item = &mut ImageAccount> {
        let services = self.services.iter_mut().map(|service| &mut service.image);
        std::iter::once(&mut self.image).chain(services).filter(move |image| image.name == name)
    }

    /// The account, in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let mut all = vec![self.image.to_string()];
        all.extend(self.services.iter().map(ToString::to_string));
        all.extend(self.removed.iter().map(|image| format!("image `{image}` was removed to make room")));
        all.extend(self.failure.as_ref().map(ToString::to_string));
        all
    }
}

impl fmt::Display for ImageAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source == Some(ImageSource::Present) {
            f.write_str("the instance had ")?;
        }
        write!(f, "image `{}`", self.name)?;
        if let Some(digest) = &self.digest {
            write!(f, " ({digest})")?;
        }
        match self.source {
            Some(ImageSource::Present) => Ok(()),
            Some(ImageSource::Pulled { after, bytes: None }) => write!(f, " pulled in {}", Pretty(after)),
            Some(ImageSource::Pulled { after, bytes: Some(bytes) }) => {
                write!(f, " pulled {} in {}", size(bytes), Pretty(after))
            }
            None => f.write_str(" not pulled"),
        }
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service `{}`", self.name)?;
        match &self.start {
            Some(ServiceStart::Answered { after }) => write!(f, " answered after {}", Pretty(*after))?,
            Some(ServiceStart::Exited { after, status }) => {
                write!(f, " exited after {} with status {status}", Pretty(*after))?;
            }
            Some(ServiceStart::Silent { waited }) => write!(f, " did not answer within {}", Pretty(*waited))?,
            Some(ServiceStart::Unstarted) => f.write_str(" did not start")?,
            None => {}
        }
        write!(f, "; {}", self.image)
    }
}

impl fmt::Display for FailureAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            FailureClass::Job => "failed by its own fault",
            FailureClass::System => "system failure",
        };
        write!(f, "{class}: {}", self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::NOW;

    #[test]
    fn an_account_is_told_in_the_order_of_what_happened() {
        let image = |name: &str, source| ImageAccount { name: name.to_owned(), digest: None, source };
        let service = |name: &str, start| ServiceAccount {
            name: name.to_owned(),
            image: image(name, Some(ImageSource::Present)),
            start,
        };
        let second = Duration::from_secs(1);
        let pulled = |bytes| Some(ImageSource::Pulled { after: second * 3, bytes });
        let mut account = ContainerAccount {
            job: JobKey::new("gl", 7),
            pool: PoolName::new("linux"),
            at: NOW,
            image: ImageAccount {
                digest: Some("sha256:0f".to_owned()),
                ..image("ruby", pulled(Some(5 << 20)))
            },
            services: vec![
                service("db", Some(ServiceStart::Answered { after: second })),
                service("cache", Some(ServiceStart::Exited { after: second, status: "7".to_owned() })),
                service("mail", Some(ServiceStart::Silent { waited: second * 30 })),
                service("search", Some(ServiceStart::Unstarted)),
                service("ruby", None),
            ],
            removed: vec!["node".to_owned()],
            failure: Some(FailureAccount { class: FailureClass::Job, message: "no shell".to_owned() }),
        };
        assert_eq!(
            account.sentences(),
            [
                "image `ruby` (sha256:0f) pulled 5 MiB in 3 s",
                "service `db` answered after 1 s; the instance had image `db`",
                "service `cache` exited after 1 s with status 7; the instance had image `cache`",
                "service `mail` did not answer within 30 s; the instance had image `mail`",
                "service `search` did not start; the instance had image `search`",
                "service `ruby`; the instance had image `ruby`",
                "image `node` was removed to make room",
                "failed by its own fault: no shell",
            ]
        );
        for named in account.images("ruby") {
            named.source = None;
        }
        assert_eq!(account.image.to_string(), "image `ruby` (sha256:0f) not pulled");
        assert_eq!(account.services[4].image.to_string(), "image `ruby` not pulled");
        assert_eq!(account.services[0].image.source, Some(ImageSource::Present));
        assert_eq!(image("go", pulled(None)).to_string(), "image `go` pulled in 3 s");
        let failure = FailureAccount { class: FailureClass::System, message: "no answer".to_owned() };
        assert_eq!(failure.to_string(), "system failure: no answer");
    }
}
