//! The program's list as machines of the pool.

use std::collections::BTreeMap;

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::text::clean_line;

use super::identity;
use crate::cloud::machine::{Addresses, CloudNotice, Handle, Machine, MachineState};
use crate::cloud::tags;
use crate::external::protocol::answers::{Identity, MachineAnswer, State};

/// Longest description, reason and notice, in characters.
const SHOWN: usize = 120;

/// A machine's handle: its id, and its name, because a platform may use an id again.
pub(super) fn handle(id: &str, name: &str) -> Handle {
    Handle { name: id.to_owned(), zone: name.to_owned() }
}

/// The machines of a pool. Those of others are left out.
pub(super) fn of_pool(pool: &PoolName, identity: Identity, listed: &[MachineAnswer]) -> Vec<Machine> {
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

fn machine(identity: Identity, listed: &MachineAnswer) -> Option<Machine> {
    let (instance, tags, token) = marks(identity, listed)?;
    let line = |text: &String| clean_line(text.as_bytes(), SHOWN);
    Some(Machine {
        handle: handle(&listed.machine, &identity::name(&instance, &tags.owner)),
        instance,
        tags,
        token,
        disks: Vec::new(),
        state: match listed.state {
            State::Pending => MachineState::Accepted,
            State::Starting => MachineState::Starting,
            State::Running => MachineState::Running,
            State::Stopping => MachineState::Ending,
            State::Stopped | State::Refused => MachineState::Stopped,
            State::Gone => MachineState::Gone,
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

/// The instance, its tags, and the token of its launch.
fn marks(identity: Identity, listed: &MachineAnswer) -> Option<(InstanceId, Tags, Option<String>)> {
    match identity {
        Identity::Tags => {
            let value = |name: &str| listed.tags.get(name).map(String::as_str);
            let (instance, tags) = tags::read(value)?;
            Some((instance, tags, listed.tags.get(identity::TOKEN).cloned()))
        }
        Identity::Names => {
            let (instance, tags) = identity::of_name(listed.name.as_deref()?)?;
            // A name stands for its first launch, and thereby for the instance.
            let token = identity::token(&tags.owner, &instance.token(1));
            Some((instance, tags, Some(token)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external::protocol::answers::{self, ListAnswer};

    fn list(identity: Identity, machines: &str) -> Vec<Machine> {
        let text = format!(r#"{{"complete":true,"machines":[{machines}]}}"#);
        let answer: ListAnswer = answers::read(text.as_bytes()).unwrap();
        of_pool(&PoolName::new("linux"), identity, &answer.machines)
    }

    const NAMED: &str = r#"{"machine":"1","name":"linux-3f-1-0123456789abcdef","state":"running"}"#;
    const TWIN: &str = r#"{"machine":"2","name":"linux-3f-1-0123456789abcdef","state":"running"}"#;

    #[test]
    fn machines_of_others_are_left_out() {
        let other_pool = NAMED.replace("linux", "other");
        let bare = r#"{"machine":"3","state":"running"}"#;
        let all =
            list(Identity::Names, &format!("{NAMED},{other_pool},{bare}").replacen("\"1\"", "\"0\"", 1));
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].instance, InstanceId::new("linux-3f-1"));
        assert!(all[0].token.is_some());
        assert_eq!(list(Identity::Tags, NAMED), [], "a name is no tag");
    }

    #[test]
    fn of_two_machines_of_one_launch_none_is_proven() {
        let all = list(Identity::Names, &format!("{NAMED},{TWIN}"));
        assert!(all.len() == 2 && all.iter().all(|one| one.token.is_none()));
        let gone = TWIN.replace("running", "gone");
        let all = list(Identity::Names, &format!("{NAMED},{gone}"));
        assert!(all.iter().all(|one| one.token.is_some()));
    }
}
