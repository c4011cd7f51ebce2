//! The two clouds: the table of a pool in each, and the names of their operations.
//!
//! In these tests, only this file contains names that the vendors chose.

use std::collections::BTreeMap;

use greenroom_core::failure::ErrorClass;
use serde_json::{Value, json};
use toml::Table;

use crate::credentials;
use crate::lab::Taken;
use crate::truth::{Machine, Request, Truth};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    Ec2,
    Gce,
}

/// A launch call that the emulator received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Greenroom's name of the instance.
    pub instance: String,
    /// The token by which the cloud recognises a repeat: EC2's client token, Compute Engine's request id.
    pub token: String,
}

/// The way in which an offering is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buy {
    OnDemand,
    Spot,
    /// Spot first.
    Either,
}

impl Buy {
    fn market(self) -> toml::Value {
        match self {
            Self::OnDemand => "on-demand".into(),
            Self::Spot => "spot".into(),
            Self::Either => toml::Value::Array(vec!["spot".into(), "on-demand".into()]),
        }
    }
}

impl Cloud {
    /// The kind of its provider.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ec2 => "aws-ec2",
            Self::Gce => "gce",
        }
    }

    /// The cloud's name in the job log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Gce => "Compute Engine",
        }
    }

    /// The provider's table of a pool, with three places to launch in. `url` is the emulator, or a gate in front of it.
    pub fn table(self, lab: &Taken, url: &str, buy: Buy) -> Table {
        let mut table = match self {
            Self::Ec2 => ec2(lab),
            Self::Gce => gce(lab),
        };
        let port = lab.world["ssh_port"].as_i64().expect("a port");
        for (key, value) in [
            ("endpoint", toml::Value::from(url)),
            ("user", "root".into()),
            ("ssh_port", port.into()),
            ("address", "private".into()),
            ("market", buy.market()),
        ] {
            table.insert(key.to_owned(), value);
        }
        table
    }

    /// The key of machine types, and two types; `table` has the first.
    pub fn two_types(self) -> (&'static str, toml::Value) {
        let (key, types) = match self {
            Self::Ec2 => ("instance_types", ["m5.large", "m5a.large"]),
            Self::Gce => ("machine_types", ["n2d-standard-2", "e2-standard-2"]),
        };
        (key, toml::Value::Array(types.map(toml::Value::from).to_vec()))
    }

    /// The operation that makes an instance.
    pub fn launch(self) -> &'static str {
        match self {
            Self::Ec2 => "RunInstances",
            Self::Gce => "compute.instances.insert",
        }
    }

    /// The operation that lists instances.
    pub fn list(self) -> &'static str {
        match self {
            Self::Ec2 => "DescribeInstances",
            Self::Gce => "compute.instances.aggregatedList",
        }
    }

    /// The operations whose answers many instances share.
    pub fn shared(self) -> &'static [&'static str] {
        match self {
            Self::Ec2 => &[
                "DescribeImages",
                "DescribeInstances",
                "GetCallerIdentity",
                "DescribeInstanceStatus",
                "DescribeSpotInstanceRequests",
            ],
            Self::Gce => &["compute.instances.aggregatedList", "compute.zoneOperations.list"],
        }
    }

    /// The operation that reads an instance's console.
    pub fn console(self) -> &'static str {
        match self {
            Self::Ec2 => "GetConsoleOutput",
            Self::Gce => "compute.instances.getSerialPortOutput",
        }
    }

    /// The call that returns the status of a launch; `None` if the launch call itself does.
    pub fn launch_status_call(self) -> Option<&'static str> {
        match self {
            Self::Ec2 => None,
            Self::Gce => Some("compute.zoneOperations.list (of inserts)"),
        }
    }

    /// The call that returns why an instance is gone; `None` if the list of instances shows it.
    pub fn end_reason_call(self) -> Option<&'static str> {
        match self {
            Self::Ec2 => None,
            Self::Gce => Some("compute.zoneOperations.list (of ends)"),
        }
    }

    /// Every call that a keeper makes in the life of an instance: the operation, with its subject in parentheses.
    pub fn calls(self) -> &'static [&'static str] {
        match self {
            Self::Ec2 => &[
                "RunInstances",
                "DescribeImages",
                "DescribeInstances",
                "TerminateInstances",
                "GetConsoleOutput",
                "GetCallerIdentity",
                "DescribeInstanceStatus",
                "DescribeSpotInstanceRequests",
            ],
            Self::Gce => &[
                "compute.instances.insert",
                "compute.zoneOperations.list (of inserts)",
                "compute.zoneOperations.list (of ends)",
                "compute.instances.aggregatedList",
                "compute.instances.delete",
                "compute.instances.getSerialPortOutput",
            ],
        }
    }

    /// The fault that makes one launch fail with this class; `None` if the cloud has no such error.
    pub fn refusal(self, class: &ErrorClass) -> Option<Value> {
        let invalid = if self == Self::Ec2 { "InvalidParameterValue" } else { "invalid" };
        let mut fault = match class {
            ErrorClass::NoCapacity { .. } => json!({ "mode": "capacity" }),
            ErrorClass::Quota => json!({ "mode": "quota" }),
            ErrorClass::Denied => json!({ "mode": "denied" }),
            ErrorClass::Invalid => json!({ "mode": "rejected", "code": invalid }),
            ErrorClass::Throttled { .. } => json!({ "mode": "throttled" }),
            // An internal error of the launch call leaves the result unknown. An error of the preceding call, or of the
            // launch's operation, does not.
            ErrorClass::Transient => match self {
                Self::Ec2 => {
                    json!({ "operation": "DescribeImages", "mode": "rejected", "code": "InternalError" })
                }
                Self::Gce => json!({ "mode": "ends-in-error" }),
            },
            ErrorClass::NotFound | ErrorClass::Unknown | ErrorClass::Order { .. } => return None,
        };
        if fault["operation"].is_null() {
            fault["operation"] = self.launch().into();
        }
        Some(fault)
    }

    /// The reason why the cloud ends an on-demand instance: its own failure.
    pub fn host_failure(self) -> &'static str {
        match self {
            Self::Ec2 => "Server.InternalError",
            Self::Gce => "compute.instances.hostError",
        }
    }

    /// The places of `table`, in its order, as named in the emulator's setting `capacity`.
    pub fn places(self) -> [&'static str; 3] {
        match self {
            Self::Ec2 => ["m5.large/eu-west-1a", "m5.large/eu-west-1b", "m5.large/eu-west-1c"],
            Self::Gce => {
                ["n2d-standard-2/us-east1-b", "n2d-standard-2/us-east1-c", "n2d-standard-2/us-east1-d"]
            }
        }
    }
}

impl Launch {
    /// Reads a launch; `None` if the request is another one.
    pub fn read(request: &Request) -> Option<Self> {
        let parameters = &request.parameters;
        let (token, tags) = if request.operation == Cloud::Ec2.launch() {
            let tags = parameters["TagSpecifications"][0]["Tags"].as_array().into_iter().flatten();
            (&parameters["ClientToken"], tags.map(|tag| (text(&tag["Key"]), text(&tag["Value"]))).collect())
        } else if request.operation == Cloud::Gce.launch() {
            let labels = parameters["resource"]["labels"].as_object().into_iter().flatten();
            (&parameters["requestId"], labels.map(|(name, value)| (name.clone(), text(value))).collect())
        } else {
            return None;
        };
        Some(Self { instance: named(&tags), token: text(token) })
    }
}

/// Greenroom's name of an instance, by its tags.
pub fn instance_name(machine: &Machine) -> String {
    named(&machine.tags)
}

fn named(tags: &BTreeMap<String, String>) -> String {
    let tag = |name: &str| tags.get(&format!("greenroom-{name}")).cloned().unwrap_or_default();
    format!("{}-{}-{}", tag("pool"), tag("generation"), tag("number"))
}

/// The live instance with one of Greenroom's names.
pub fn machine(truth: &Truth, name: &str) -> Option<Machine> {
    truth.live().find(|machine| instance_name(machine) == name).cloned()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn ec2(lab: &Taken) -> Table {
    let world = &lab.world["ec2"];
    let subnets = ["a", "b", "c"].map(|zone| text(&world["subnets"][format!("eu-west-1{zone}")]).into());
    Table::from_iter([
        ("region".to_owned(), text(&world["region"]).into()),
        ("credentials_file".to_owned(), lab.credentials(credentials::EC2).display().to_string().into()),
        ("image".to_owned(), text(&world["images"]["x86_64"]).into()),
        ("instance_types".to_owned(), toml::Value::Array(vec!["m5.large".into()])),
        ("subnets".to_owned(), toml::Value::Array(subnets.to_vec())),
        ("security_groups".to_owned(), toml::Value::Array(vec![text(&world["security_group"]).into()])),
    ])
}

fn gce(lab: &Taken) -> Table {
    let world = &lab.world["gce"];
    let zones = ["us-east1-b", "us-east1-c", "us-east1-d"].map(toml::Value::from);
    Table::from_iter([
        ("project".to_owned(), text(&world["project"]).into()),
        ("credentials_file".to_owned(), lab.credentials(credentials::GCE).display().to_string().into()),
        ("image".to_owned(), text(&world["images"]["x86_64"]).into()),
        ("machine_types".to_owned(), toml::Value::Array(vec!["n2d-standard-2".into()])),
        ("zones".to_owned(), toml::Value::Array(zones.to_vec())),
    ])
}
