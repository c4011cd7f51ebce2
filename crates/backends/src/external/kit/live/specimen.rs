//! One launch of the kit's: its request, its keys, and how to recognise its machine in a list.

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::text::hex;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};
use serde_json::{Value, json};

use super::Known;
use super::left::full_name;
use crate::cloud::settings::UserData;
use crate::cloud::{idempotency, tags, user_data};
use crate::external::protocol::answers::{HostKey, Identity, MachineAnswer};
use crate::program::kit::check::{Judged, failed};

/// A launch, and the machine that comes of it.
#[derive(Debug)]
pub(super) struct Specimen {
    pub(super) pool: String,
    pub(super) instance: InstanceId,
    pub(super) keys: InstanceKeys,
    /// The fields of the launch.
    pub(super) fields: Value,
    identity: Identity,
}

/// What a specimen is made of.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) pool: &'a str,
    pub(super) owner: &'a str,
    pub(super) generation: &'a str,
    pub(super) number: u32,
    pub(super) user: &'a str,
    pub(super) offering: Option<&'a str>,
    pub(super) identity: Identity,
    pub(super) host_key: HostKey,
}

impl Origin<'_> {
    pub(super) fn instance(&self) -> InstanceId {
        InstanceId::launched(&PoolName::new(self.pool), &Generation::new(self.generation), self.number)
    }
}

impl Specimen {
    pub(super) fn new(origin: &Origin<'_>, keys: InstanceKeys) -> Self {
        let (instance, owner) = (origin.instance(), OwnerId::new(origin.owner));
        let own = Tags {
            pool: PoolName::new(origin.pool),
            owner: owner.clone(),
            generation: Generation::new(origin.generation),
            number: origin.number,
        };
        let token = hex(&idempotency::digest(&owner, &instance.token(1)))[..40].to_owned();
        let mut labels: serde_json::Map<String, Value> =
            tags::written(&own).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        labels.insert("greenroom-token".to_owned(), json!(token));
        let request = LaunchRequest {
            token: token.clone(),
            instance: instance.clone(),
            tags: own,
            offering: None,
            keys: keys.clone(),
            lifetime: None,
            order: None,
        };
        let mut fields = json!({
            "instance": instance.as_str(),
            "name": full_name(instance.as_str(), &owner),
            "token": token,
            "tags": labels,
            "user": origin.user,
            "authorized_key": keys.authorized_key.trim(),
            "user_data": user_data::text(UserData::CloudInit, &request, origin.user, None),
            "lifetime_s": 3600,
        });
        if origin.host_key == HostKey::Launch {
            fields["host_key"] = json!(keys.host_key);
            fields["host_key_public"] = json!(keys.host_key_public.trim());
        }
        if let Some(offering) = origin.offering {
            fields["offering"] = json!(offering);
        }
        Self { pool: origin.pool.to_owned(), instance, keys, fields, identity: origin.identity }
    }

    /// Its machine, once the ID is known.
    pub(super) fn known(&self, machine: &str) -> Known {
        Known {
            pool: self.pool.clone(),
            machine: machine.to_owned(),
            instance: self.instance.to_string(),
            name: self.fields["name"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// True if a listed machine is this launch's, by what it shows.
    pub(super) fn is(&self, listed: &MachineAnswer) -> bool {
        self.compare(listed).is_ok()
    }

    /// Compares what a machine shows with the launch.
    pub(super) fn compare(&self, listed: &MachineAnswer) -> Judged {
        let machine = &listed.machine;
        match self.identity {
            Identity::Names => {
                let (name, wanted) = (listed.name.as_deref(), self.fields["name"].as_str());
                if name == wanted {
                    return Ok(());
                }
                let (name, wanted) = (name.unwrap_or("none"), wanted.unwrap_or_default());
                failed(format!("the machine `{machine}` has the name `{name}`, not `{wanted}`"))
            }
            Identity::Tags => {
                for (tag, wanted) in self.fields["tags"].as_object().into_iter().flatten() {
                    let wanted = wanted.as_str().unwrap_or_default();
                    match listed.tags.get(tag) {
                        Some(value) if value == wanted => {}
                        Some(value) => {
                            let came = format!(
                                "the machine `{machine}` has the tag `{tag}` = `{value}`, not `{wanted}`"
                            );
                            return failed(came);
                        }
                        None => return failed(format!("the machine `{machine}` lacks the tag `{tag}`")),
                    }
                }
                Ok(())
            }
        }
    }
}
