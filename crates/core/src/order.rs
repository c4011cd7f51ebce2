//! A job's order: what an instance of its own is to be made of.
//!
//! [`Order`] has names only, for the record and for people. [`LaunchOrder`] is complete, with the values of variables: it
//! lies in the attempt's directory and in launch specs, and in no record.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::container::settings::PullPolicy;
use super::ids::{AttemptName, JobKey, TrustDomain};

/// The parts that a job's own instance is to be made of, by names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub image: Arc<str>,
    /// The first of them, if there are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Arc<str>>,
    /// Number of services that are not among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_services: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The job that an instance was launched for, and what it ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// No other attempt gets the instance.
    pub attempt: AttemptName,
    pub job: JobKey,
    pub domain: TrustDomain,
    pub order: Arc<Order>,
}

/// The provider refused to make an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedOrder {
    /// One sentence that names the image and the reason.
    pub reason: String,
    /// True if the order itself is at fault, so that only its author can correct it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_job: bool,
}

/// An order with everything that its launch needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrder {
    pub image: String,
    /// True if the job names no image: each offering of the pool has its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_offering: bool,
    /// `None`: the provider's own rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// The services in the job's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<OrderService>,
    /// Directories of the job's files, which its user must be able to write to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
}

/// A container beside the job's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderService {
    /// The name of its container.
    pub name: String,
    pub image: String,
    /// The host names under which the job reaches it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// `None`: the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// `None`: the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Names and values; the values may be secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
    /// The port that answers before the job starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// The values of variables are not shown.
impl fmt::Debug for OrderService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, image, aliases, entrypoint, command, variables, pull_policy, port } = self;
        let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OrderService")
            .field("name", name)
            .field("image", image)
            .field("aliases", aliases)
            .field("entrypoint", entrypoint)
            .field("command", command)
            .field("variables", &names)
            .field("pull_policy", pull_policy)
            .field("port", port)
            .finish()
    }
}

/// `launched for job 4711: …`.
impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launched for job {}: {}", self.job.id, self.order)
    }
}

/// The text after a colon: ``image `ruby:3.3`, 2 services``.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image `{}`", self.image)?;
        match self.services.len() + self.more_services {
            0 => Ok(()),
            1 => f.write_str(", 1 service"),
            more => write!(f, ", {more} services"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> OrderService {
        OrderService {
            name: name.to_owned(),
            image: "postgres:17".to_owned(),
            aliases: vec!["postgres".to_owned()],
            entrypoint: None,
            command: Some(vec!["-c".to_owned()]),
            variables: vec![("POSTGRES_PASSWORD".to_owned(), "hunter2".to_owned())],
            pull_policy: Some(PullPolicy::IfNotPresent),
            port: None,
        }
    }

    #[test]
    fn no_value_of_a_variable_is_shown() {
        let order = LaunchOrder {
            image: "ruby:3.3".to_owned(),
            of_offering: false,
            pull_policy: None,
            services: vec![service("svc-0")],
            dirs: vec!["/builds".to_owned()],
        };
        let shown = format!("{order:?}");
        assert!(shown.contains("POSTGRES_PASSWORD") && shown.contains("postgres:17"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<LaunchOrder>(&text).unwrap(), order);
    }

    #[test]
    fn an_order_names_its_image_and_counts_its_services() {
        let of = |services: usize| Order {
            image: "ruby:3.3".into(),
            services: vec!["a".into(); services],
            more_services: 0,
        };
        for (services, text) in
            [(0, "image `ruby:3.3`"), (1, "image `ruby:3.3`, 1 service"), (2, "image `ruby:3.3`, 2 services")]
        {
            assert_eq!(of(services).to_string(), text);
        }
        let more = Order { more_services: 3, ..of(2) };
        assert_eq!(more.to_string(), "image `ruby:3.3`, 5 services");
        assert_eq!(serde_json::to_string(&of(0)).unwrap(), r#"{"image":"ruby:3.3"}"#);
    }
}
