//! The two clouds: what a pool of each says, and how each calls what it does.
//!
//! Names that the providers chose stand here and nowhere else in these tests.

use std::collections::BTreeMap;

use greenroom::core::failure::ErrorClass;
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

/// A launch, as its cloud was asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Our name of the instance.
    pub instance: String,
    /// By which the cloud knows a repeat: EC2's client token, Compute Engine's request id.
    pub token: String,
}

/// How an offering is paid for.
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

    /// As job authors read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Gce => "Compute Engine",
        }
    }

    /// The provider's table of a pool, with three places to launch in, at `url`: the lab, or a gate before it.
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

    /// The key of machine types, and two of them; `table` has the first.
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

    /// The operations whose answers tell of many instances at once, however many want to know.
    pub fn shared(self) -> &'static [&'static str] {
        match self {
            Self::Ec2 => &["DescribeImages", "DescribeInstances"],
            Self::Gce => &["compute.instances.aggregatedList", "compute.zoneOperations.list"],
        }
    }

    /// The operation that reads what an instance has printed.
    pub fn console(self) -> &'static str {
        match self {
            Self::Ec2 => "GetConsoleOutput",
            Self::Gce => "compute.instances.getSerialPortOutput",
        }
    }

    /// The call that says what became of a launch, where its own answer does not.
    pub fn fates(self) -> Option<&'static str> {
        match self {
            Self::Ec2 => None,
            Self::Gce => Some("compute.zoneOperations.list (of inserts)"),
        }
    }

    /// The call that says why an instance is gone, where that is not in the list of instances.
    pub fn endings(self) -> Option<&'static str> {
        match self {
            Self::Ec2 => None,
            Self::Gce => Some("compute.zoneOperations.list (of ends)"),
        }
    }

    /// Every call that a keeper makes in the life of an instance: operations, and in parentheses what is asked of them.
    pub fn calls(self) -> &'static [&'static str] {
        match self {
            Self::Ec2 => &[
                "RunInstances",
                "DescribeImages",
                "DescribeInstances",
                "TerminateInstances",
                "GetConsoleOutput",
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

    /// The fault of one launch that its provider must give this class; `None` where the cloud has no such refusal.
    pub fn refusal(self, class: &ErrorClass) -> Option<Value> {
        let invalid = if self == Self::Ec2 { "InvalidParameterValue" } else { "invalid" };
        let mut fault = match class {
            ErrorClass::NoCapacity { .. } => json!({ "mode": "capacity" }),
            ErrorClass::Quota => json!({ "mode": "quota" }),
            ErrorClass::Denied => json!({ "mode": "denied" }),
            ErrorClass::Invalid => json!({ "mode": "rejected", "code": invalid }),
            ErrorClass::Throttled { .. } => json!({ "mode": "throttled" }),
            // Their own errors leave open what became of a launch, but not those of the question before it, nor of the
            // operation behind it.
            ErrorClass::Transient => match self {
                Self::Ec2 => {
                    json!({ "operation": "DescribeImages", "mode": "rejected", "code": "InternalError" })
                }
                Self::Gce => json!({ "mode": "ends-in-error" }),
            },
            ErrorClass::NotFound | ErrorClass::Unknown => return None,
        };
        if fault["operation"].is_null() {
            fault["operation"] = self.launch().into();
        }
        Some(fault)
    }

    /// Why an instance that is no spot instance is taken away: the cloud's own failure.
    pub fn host_failure(self) -> &'static str {
        match self {
            Self::Ec2 => "Server.InternalError",
            Self::Gce => "compute.instances.hostError",
        }
    }

    /// The places of `table`, in its order, as the lab's setting `capacity` names them.
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
    /// `None`: the request is for something else.
    pub fn read(request: &Request) -> Option<Self> {
        let asked = &request.parameters;
        let (token, tags) = if request.operation == Cloud::Ec2.launch() {
            let tags = asked["TagSpecifications"][0]["Tags"].as_array().into_iter().flatten();
            (&asked["ClientToken"], tags.map(|tag| (text(&tag["Key"]), text(&tag["Value"]))).collect())
        } else if request.operation == Cloud::Gce.launch() {
            let labels = asked["resource"]["labels"].as_object().into_iter().flatten();
            (&asked["requestId"], labels.map(|(name, value)| (name.clone(), text(value))).collect())
        } else {
            return None;
        };
        Some(Self { instance: named(&tags), token: text(token) })
    }
}

/// Our name of an instance, by its tags.
pub fn our_name(machine: &Machine) -> String {
    named(&machine.tags)
}

fn named(tags: &BTreeMap<String, String>) -> String {
    let tag = |name: &str| tags.get(&format!("greenroom-{name}")).cloned().unwrap_or_default();
    format!("{}-{}-{}", tag("pool"), tag("generation"), tag("number"))
}

/// The instance that lives under one of our names.
pub fn machine(truth: &Truth, name: &str) -> Option<Machine> {
    truth.live().find(|machine| our_name(machine) == name).cloned()
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
