//! The program's lists as machines and resources of the pool: which launch each of them belongs to, by its tags or by its name.

use std::collections::BTreeMap;

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::{Resource, ResourceKind, Tags};
use greenroom_core::text::{clean_line, hex};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

use super::External;
use crate::cloud::api::{Disk, Disks};
use crate::cloud::machine::{Addresses, CloudNotice, Handle, Machine, MachineState, moment};
use crate::cloud::tags;
use crate::external::protocol::answers::{
    ListedState, MachineAnswer, MachineIdentity, ResourceAnswer, ResourcesAnswer,
};
use crate::external::protocol::{NoFields, Verb};

/// The tag with the token of the launch.
const TOKEN_TAG: &str = "greenroom-token";
/// Longest description, reason and notice, in characters.
const SHOWN: usize = 120;
/// Attempts of a launch whose tokens are compared.
const ATTEMPTS: u32 = 1000;

/// A machine's name: that of its instance, and the owner.
pub(super) fn machine_name(instance: &InstanceId, owner: &OwnerId) -> String {
    format!("{instance}-{owner}")
}

/// The tags of a name; `None`: Greenroom did not make it.
fn launch_of_name(name: &str) -> Option<(InstanceId, Tags)> {
    let (rest, owner) = name.rsplit_once('-')?;
    let (rest, number) = rest.rsplit_once('-')?;
    let (pool, generation) = rest.rsplit_once('-')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // An owner is 16 digits: a name that people gave is hardly one.
    if owner.len() != 16 || !is_hex(owner) || !is_hex(generation) {
        return None;
    }
    let tags = Tags {
        pool: PoolName::parse(pool).ok()?,
        owner: OwnerId::new(owner),
        generation: Generation::new(generation),
        number: number.parse().ok()?,
    };
    Some((InstanceId::launched(&tags.pool, &tags.generation, tags.number), tags))
}

/// The token of a launch, as machines show it.
pub(super) fn shown_token(owner: &OwnerId, token: &str) -> String {
    hex(&tags::token_digest(owner, token)[..16])
}

/// The tags of a launch.
pub(super) fn launch_tags(of: &Tags, shown_token: &str) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        tags::written(of).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    all.insert(TOKEN_TAG.to_owned(), shown_token.to_owned());
    all
}

/// A machine's handle: its id, and its name, because a platform may use an id again.
pub(super) fn handle(id: &str, name: &str) -> Handle {
    Handle { name: id.to_owned(), zone: name.to_owned() }
}

/// The machines of a pool. Those of others are left out.
pub(super) fn machines_of_pool(
    pool: &PoolName,
    identity: MachineIdentity,
    listed: &[MachineAnswer],
) -> Vec<Machine> {
    let mut machines: Vec<Machine> =
        listed.iter().filter_map(|one| machine(identity, one)).filter(|one| one.tags.pool == *pool).collect();
    let mut of_instance: BTreeMap<InstanceId, u32> = BTreeMap::new();
    for machine in machines.iter().filter(|machine| machine.state != MachineState::Gone) {
        *of_instance.entry(machine.instance.clone()).or_default() += 1;
    }
    // Of several machines with the marks of one launch, at most the one that the launch's answer named is its machine.
    for machine in &mut machines {
        if of_instance.get(&machine.instance).is_some_and(|count| *count > 1) {
            machine.token = None;
        }
    }
    machines
}

fn machine(identity: MachineIdentity, listed: &MachineAnswer) -> Option<Machine> {
    let MachineMarks { instance, tags, token } = machine_marks(identity, listed)?;
    let line = |text: &String| clean_line(text.as_bytes(), SHOWN);
    Some(Machine {
        handle: handle(&listed.machine, &machine_name(&instance, &tags.owner)),
        instance,
        tags,
        token,
        disks: Vec::new(),
        state: match listed.state {
            ListedState::Pending => MachineState::Accepted,
            ListedState::Starting => MachineState::Starting,
            ListedState::Running => MachineState::Running,
            ListedState::Stopping => MachineState::Ending,
            ListedState::Stopped | ListedState::Refused => MachineState::Stopped,
            ListedState::Gone => MachineState::Gone,
        },
        created_ms: listed.created.map(jiff::Timestamp::as_millisecond),
        addresses: Addresses { private: listed.address.clone(), ..Addresses::default() },
        what: listed.description.as_ref().map_or_else(|| format!("machine {}", line(&listed.machine)), line),
        why: listed.reason.as_ref().map(line),
        by_job: false,
        refused: None,
        notice: listed.notice.as_ref().map(|notice| CloudNotice {
            text: line(&notice.text),
            at_ms: notice.at.map(jiff::Timestamp::as_millisecond),
        }),
        metadata: None,
    })
}

/// The launch that a machine shows.
struct MachineMarks {
    instance: InstanceId,
    tags: Tags,
    token: Option<String>,
}

fn machine_marks(identity: MachineIdentity, listed: &MachineAnswer) -> Option<MachineMarks> {
    match identity {
        MachineIdentity::Tags => {
            let value = |name: &str| listed.tags.get(name).map(String::as_str);
            let (instance, tags) = tags::read(value)?;
            Some(MachineMarks { instance, tags, token: listed.tags.get(TOKEN_TAG).cloned() })
        }
        MachineIdentity::Names => {
            let (instance, tags) = launch_of_name(listed.name.as_deref()?)?;
            // A name stands for its first launch, and thereby for the instance.
            let token = shown_token(&tags.owner, &instance.token(1));
            Some(MachineMarks { instance, tags, token: Some(token) })
        }
    }
}

/// The resources of the last answer, by their ids.
#[derive(Debug, Default)]
pub(super) struct KnownResources(BTreeMap<String, (String, bool)>);

impl KnownResources {
    /// The program's word for a resource's kind.
    pub(super) fn kind(&self, resource: &Resource) -> String {
        self.0.get(&resource.name).map_or_else(|| resource.kind.to_string(), |(kind, _)| kind.clone())
    }

    /// True if it shows that a launch made it.
    pub(super) fn is_proven(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|(_, proven)| *proven)
    }
}

/// Lists the resources of the pool; none if the program does not have the verb.
pub(super) async fn list_resources(api: &External, now: Stamp) -> Result<Disks, ProviderError> {
    if !api.capabilities().await?.has(Verb::Resources) {
        return Ok(Disks { all: Vec::new(), complete: true });
    }
    let answer: ResourcesAnswer = api.ask(Verb::Resources, NoFields {}).await?;
    let mut known = KnownResources::default();
    let mut all = Vec::new();
    for one in &answer.resources {
        let Some(ResourceMarks { instance, tags, is_proven }) = resource_marks(&api.pool, one) else {
            continue;
        };
        known.0.insert(one.id.clone(), (one.kind.clone(), is_proven));
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

/// The instance that a resource was made for.
struct ResourceMarks {
    instance: InstanceId,
    tags: Tags,
    /// True if the resource shows that a launch made it.
    is_proven: bool,
}

/// `None`: the resource is not this pool's.
fn resource_marks(pool: &PoolName, one: &ResourceAnswer) -> Option<ResourceMarks> {
    let value = |name: &str| one.tags.get(name).map(String::as_str);
    let marks = if let Some((instance, tags)) = tags::read(value) {
        let shown = value(TOKEN_TAG);
        let is_of = |attempt| Some(shown_token(&tags.owner, &instance.token(attempt)).as_str()) == shown;
        let is_proven = shown.is_some() && (1..=ATTEMPTS).any(is_of);
        ResourceMarks { instance, tags, is_proven }
    } else {
        let (instance, tags) = launch_of_name(one.name.as_deref()?)?;
        ResourceMarks { instance, tags, is_proven: true }
    };
    (marks.tags.pool == *pool).then_some(marks)
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
    use crate::external::protocol::answers::{self, ListAnswer};

    #[test]
    fn a_name_is_read_as_it_was_written_and_other_names_are_not_ours() {
        let owner = OwnerId::new("0123456789abcdef");
        let tags = Tags {
            pool: PoolName::new("linux-big"),
            owner: owner.clone(),
            generation: Generation::new("3f9a01"),
            number: 7,
        };
        let id = InstanceId::launched(&tags.pool, &tags.generation, tags.number);
        let written = machine_name(&id, &owner);
        assert_eq!(written, "linux-big-3f9a01-7-0123456789abcdef");
        assert_eq!(launch_of_name(&written), Some((id, tags)));
        for other in ["", "web-1", "linux-3f9a01-7", "linux-3f9a01-x-0123456789abcdef", "a-b-c-d-e"] {
            assert_eq!(launch_of_name(other), None, "{other}");
        }
    }

    fn list(identity: MachineIdentity, machines: &str) -> Vec<Machine> {
        let text = format!(r#"{{"complete":true,"machines":[{machines}]}}"#);
        let answer: ListAnswer = answers::read(text.as_bytes()).unwrap();
        machines_of_pool(&PoolName::new("linux"), identity, &answer.machines)
    }

    const NAMED: &str = r#"{"machine":"1","name":"linux-3f-1-0123456789abcdef","state":"running"}"#;
    const TWIN: &str = r#"{"machine":"2","name":"linux-3f-1-0123456789abcdef","state":"running"}"#;

    #[test]
    fn machines_of_others_are_left_out() {
        let other_pool = NAMED.replace("linux", "other");
        let bare = r#"{"machine":"3","state":"running"}"#;
        let all = list(
            MachineIdentity::Names,
            &format!("{NAMED},{other_pool},{bare}").replacen("\"1\"", "\"0\"", 1),
        );
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].instance, InstanceId::new("linux-3f-1"));
        assert!(all[0].token.is_some());
        assert_eq!(list(MachineIdentity::Tags, NAMED), [], "a name is no tag");
    }

    #[test]
    fn of_two_machines_of_one_launch_none_is_proven() {
        let all = list(MachineIdentity::Names, &format!("{NAMED},{TWIN}"));
        assert!(all.len() == 2 && all.iter().all(|one| one.token.is_none()));
        let gone = TWIN.replace("running", "gone");
        let all = list(MachineIdentity::Names, &format!("{NAMED},{gone}"));
        assert!(all.iter().all(|one| one.token.is_some()));
    }

    #[test]
    fn a_resource_is_the_pools_by_its_name_or_its_token() {
        let owner = OwnerId::new("0123456789abcdef");
        let token = shown_token(&owner, "linux-3f-1/2");
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
            let found = resource_marks(&PoolName::new("linux"), &answer.resources[0]);
            assert_eq!(found.map(|marks| marks.is_proven), expected, "{fields}");
        }
    }
}
