//! What the pool has besides machines: volumes, addresses.

use std::collections::BTreeMap;

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Resource, ResourceKind, Tags};
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

use super::{External, identity};
use crate::cloud::api::{Disk, Disks};
use crate::cloud::machine::moment;
use crate::cloud::tags;
use crate::external::protocol::Verb;
use crate::external::protocol::answers::{ResourceAnswer, ResourcesAnswer};
use crate::external::protocol::requests::Nothing;

/// Attempts of a launch whose tokens are compared.
const ATTEMPTS: u32 = 1000;

/// The resources of the last answer, by their ids.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<String, (String, bool)>);

impl Known {
    /// The program's word for a resource's kind.
    pub(super) fn kind(&self, resource: &Resource) -> String {
        self.0.get(&resource.name).map_or_else(|| resource.kind.to_string(), |(kind, _)| kind.clone())
    }

    /// True if it shows that a launch made it.
    pub(super) fn is_proven(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|(_, proven)| *proven)
    }
}

/// Those of the pool; none if the program does not have the verb.
pub(super) async fn list(api: &External, now: Stamp) -> Result<Disks, ProviderError> {
    if !api.capabilities().await?.has(Verb::Resources) {
        return Ok(Disks { all: Vec::new(), complete: true });
    }
    let answer: ResourcesAnswer = api.ask(Verb::Resources, Nothing {}).await?;
    let mut known = Known::default();
    let mut all = Vec::new();
    for one in &answer.resources {
        let Some((instance, tags, proven)) = marks(&api.pool, one) else { continue };
        known.0.insert(one.id.clone(), (one.kind.clone(), proven));
        let handle =
            one.machine.as_ref().and_then(|id| api.listed.borrow().get(id).map(|seen| seen.handle.clone()));
        let resource = Resource {
            kind: kind(&one.kind),
            name: one.id.clone(),
            instance: Some(instance),
            tags: Some(tags),
            created: one.created.map(|at| moment(at.as_millisecond(), now)),
            detail: one.description.as_ref().map(|text| clean_line(text.as_bytes(), 120)),
        };
        all.push(Disk { resource, attached: handle });
    }
    *api.resources.borrow_mut() = known;
    Ok(Disks { all, complete: answer.complete })
}

/// The instance that a resource was made for, and whether the resource proves it. `None`: it is not this pool's.
fn marks(pool: &PoolName, one: &ResourceAnswer) -> Option<(InstanceId, Tags, bool)> {
    let value = |name: &str| one.tags.get(name).map(String::as_str);
    let (instance, tags, proven) = if let Some((instance, tags)) = tags::read(value) {
        let shown = value(identity::TOKEN);
        let is_of = |attempt| Some(identity::token(&tags.owner, &instance.token(attempt)).as_str()) == shown;
        let proven = shown.is_some() && (1..=ATTEMPTS).any(is_of);
        (instance, tags, proven)
    } else {
        let (instance, tags) = identity::of_name(one.name.as_deref()?)?;
        (instance, tags, true)
    };
    (tags.pool == *pool).then_some((instance, tags, proven))
}

/// Greenroom's word for the program's.
fn kind(word: &str) -> ResourceKind {
    match word {
        "volume" | "disk" => ResourceKind::Volume,
        "address" => ResourceKind::Other("address"),
        "snapshot" => ResourceKind::Other("snapshot"),
        "network" => ResourceKind::Other("network"),
        _ => ResourceKind::Other("resource"),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::OwnerId;

    use super::*;
    use crate::external::protocol::answers;

    #[test]
    fn a_resource_is_the_pools_by_its_name_or_its_token() {
        let owner = OwnerId::new("0123456789abcdef");
        let token = identity::token(&owner, "linux-3f-1/2");
        let tags = |token: &str| {
            format!(
                r#""tags":{{"greenroom-pool":"linux","greenroom-owner":"{owner}","greenroom-generation":"3f",
                "greenroom-number":"1","greenroom-token":"{token}"}}"#
            )
        };
        for (fields, expected) in [
            (tags(&token), Some(true)),
            (tags("other"), Some(false)),
            (format!(r#""name":"linux-3f-1-{owner}""#), Some(true)),
            (format!(r#""name":"other-3f-1-{owner}""#), None),
            (r#""name":"backup""#.to_owned(), None),
        ] {
            let text = format!(r#"{{"complete":true,"resources":[{{"kind":"volume","id":"v1",{fields}}}]}}"#);
            let answer: ResourcesAnswer = answers::read(text.as_bytes()).unwrap();
            let found = marks(&PoolName::new("linux"), &answer.resources[0]);
            assert_eq!(found.map(|(_, _, proven)| proven), expected, "{fields}");
        }
    }
}
