//! The calls of the program, as those of a cloud: what it can do, launches, lists, addresses, host keys, terminations.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Location, OwnerId, PoolName};
use greenroom_core::inventory::Resource;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use greenroom_providers::registration::{BuildContext, Built};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};

use super::process::ProtocolProgram;
use super::protocol::answers::{
    CapabilitiesAnswer, ConsoleAnswer, DeleteAnswer, EndpointAnswer, HostKeySource, LaunchAnswer, ListAnswer,
    ListedState, ProtocolAnswer, TerminateAnswer, TerminateState,
};
use super::protocol::{
    AgreeFields, LaunchFields, MachineFields, NoFields, ProgramSettings, ProtocolRequest, ResourceFields,
    Verb,
};
use super::settings::Settings;
use crate::cloud::api::{self, Access, Api, Created, Disks, LaunchStatus, Machines};
use crate::cloud::machine::{Handle, Machine};
use crate::cloud::offerings::Offering;
use crate::cloud::{Cloud, user_data};
use crate::program;

mod examine;
mod inventory;

use inventory::{
    KnownResources, handle, launch_tags, list_resources, machine_name, machines_of_pool, shown_token,
};

/// The interval at which a list has to look for notices.
const NOTICE_INTERVAL: Duration = Duration::from_mins(1);
/// The interval of lists while the platform looks for capacity: each is a process, and often a login.
const CAPACITY_INTERVAL: Duration = Duration::from_secs(2);
/// The time for which a list may lack a new machine while the program has not said it.
const UNSAID_LAG: Duration = Duration::from_mins(1);
/// Lines of cloud-init around the public host keys on a machine's console.
const KEYS_BEGIN: &str = "-----BEGIN SSH HOST KEY KEYS-----";
const KEYS_END: &str = "-----END SSH HOST KEY KEYS-----";

/// A provider that calls the program. A pool has an API back-off of its own until the program has named its account.
pub(super) fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    let how = program::Program {
        guard: context.program.clone(),
        path: settings.program.clone(),
        arguments: settings.arguments.clone(),
        directory: settings.directory.clone(),
        environment: settings.environment.clone(),
        output_limit: settings.output_limit,
        concurrent: Rc::new(Semaphore::new(settings.concurrent_calls)),
    };
    let program = ProtocolProgram { how, time_limits: settings.timeouts.clone() };
    let common = settings.common.clone();
    let account = format!("external {}", context.pool);
    let api = External {
        pool: context.pool.clone(),
        clock: Rc::clone(&context.clock),
        settings,
        program,
        agreed: Agreed::default(),
        listed: RefCell::default(),
        account: RefCell::default(),
        host_keys: RefCell::default(),
        resources: RefCell::default(),
    };
    Ok(Rc::new(Cloud::new(context, common, &account, api)))
}

/// The calls of one pool.
struct External {
    pool: PoolName,
    clock: Rc<dyn Clock>,
    settings: Settings,
    program: ProtocolProgram,
    agreed: Agreed,
    /// The machines of the last list, by their ids.
    listed: RefCell<BTreeMap<String, ListedMachine>>,
    /// The account of the last list, if only lists show it.
    account: RefCell<Option<String>>,
    /// Host keys that consoles have shown.
    host_keys: RefCell<HashMap<Handle, String>>,
    resources: RefCell<KnownResources>,
}

/// A machine of the last list.
#[derive(Debug, Clone)]
struct ListedMachine {
    handle: Handle,
    port: Option<u16>,
    host_key: Option<String>,
    /// The reason the platform refused the launch after it had accepted it.
    refused: Option<String>,
}

/// A stored launch.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LaunchSpec {
    settings: ProgramSettings,
    launch: LaunchFields,
}

impl External {
    /// One call of a verb that every program has.
    async fn ask<T: ProtocolAnswer>(&self, verb: Verb, fields: impl Serialize) -> Result<T, ProviderError> {
        self.ask_with(verb, &self.settings.passed_on, fields).await
    }

    async fn ask_with<T: ProtocolAnswer>(
        &self,
        verb: Verb,
        settings: &ProgramSettings,
        fields: impl Serialize,
    ) -> Result<T, ProviderError> {
        let request = ProtocolRequest::new(self.pool.as_str(), settings, fields);
        let called = self.program.call(verb, &request).await;
        let answer = called.answer(self.clock.now());
        if !called.ended.log.is_empty() {
            tracing::debug!(pool = %self.pool, %verb, "the program's log: {}", called.ended.log.trim_end());
        }
        answer
    }

    /// The program's capabilities.
    async fn capabilities(&self) -> Result<Rc<CapabilitiesAnswer>, ProviderError> {
        let ask = async || self.ask(Verb::Capabilities, AgreeFields::default()).await;
        self.agreed.now(&self.settings.program, ask).await
    }

    /// The launch's name is stored in the handle.
    fn of_machine(handle: &Handle) -> MachineFields<'_> {
        let instance = handle.zone.rsplit_once('-').map_or("", |(instance, _)| instance);
        MachineFields { machine: &handle.name, instance, name: &handle.zone }
    }

    /// Refuses a machine that the last list shows as that of another launch: the platform has used its id again, or the
    /// program mixes machines up.
    fn check_owner(&self, handle: &Handle) -> Result<(), ProviderError> {
        match self.listed.borrow().get(&handle.name) {
            Some(seen) if seen.handle != *handle => {
                let why =
                    format!("machine `{}` is `{}`, not `{}`", handle.name, seen.handle.zone, handle.zone);
                Err(ProviderError::new(ErrorClass::NotFound, why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses the answer of a launch if its machine is that of another launch. The last list may be from before the id was used
    /// again.
    async fn check_launched(&self, handle: &Handle) -> Result<(), ProviderError> {
        if self.check_owner(handle).is_ok() {
            return Ok(());
        }
        self.machines().await?;
        self.check_owner(handle)
    }

    async fn host_key_in_console(&self, machine: &Handle) -> Result<String, ProviderError> {
        if let Some(known) = self.host_keys.borrow().get(machine) {
            return Ok(known.clone());
        }
        let key = key_in_console(&self.console(machine).await?)
            .ok_or_else(|| not_yet("the machine's console does not show its host key yet"))?;
        self.host_keys.borrow_mut().insert(machine.clone(), key.clone());
        Ok(key)
    }
}

fn not_yet(why: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, why)
}

fn without_verb(verb: Verb) -> ProviderError {
    ProviderError::new(ErrorClass::Invalid, format!("the program does not have the verb `{verb}`"))
}

#[async_trait(?Send)]
impl Api for External {
    type LaunchSpec = LaunchSpec;
    type MachineId = Handle;

    fn launch_spec(
        &self,
        request: &LaunchRequest,
        _offering: &Offering,
    ) -> Result<LaunchSpec, ProviderError> {
        let tags = &request.tags;
        let keys = &request.keys;
        let common = &self.settings.common;
        let token = shown_token(&tags.owner, &request.token);
        let launch = LaunchFields {
            instance: request.instance.to_string(),
            name: machine_name(&request.instance, &tags.owner),
            tags: launch_tags(tags, &token),
            token,
            offering: request.offering.as_ref().map(ToString::to_string),
            user: common.user.clone(),
            authorized_key: keys.authorized_key.trim().to_owned(),
            host_key: Some(keys.host_key.clone()),
            host_key_public: Some(keys.host_key_public.trim().to_owned()),
            user_data: user_data::text(common.user_data, request, &common.user, request.lifetime),
            lifetime_s: request.lifetime.map(|lifetime| lifetime.as_secs().max(1)),
        };
        Ok(LaunchSpec { settings: self.settings.passed_on.clone(), launch })
    }

    fn shown_token(&self, owner: &OwnerId, token: &str) -> String {
        shown_token(owner, token)
    }

    fn notice_interval(&self) -> Duration {
        NOTICE_INTERVAL
    }

    fn list_lag(&self) -> Duration {
        let said = || self.agreed.last().map(|known| Duration::from_secs(known.appears_within_s));
        self.settings.appears_within.or_else(said).unwrap_or(UNSAID_LAG)
    }

    fn account(&self) -> Option<String> {
        let known = self.agreed.last()?;
        let account = self.account.borrow().clone().or_else(|| known.account.clone())?;
        Some(format!("external {} {account}", known.name))
    }

    fn repeats_find_the_machine(&self) -> bool {
        self.agreed.last().is_some_and(|known| known.idempotent_launch)
    }

    fn announced(&self, _answers: &MetadataAnswers) -> Option<&'static str> {
        None
    }

    async fn create(&self, spec: &LaunchSpec) -> Result<Created, ProviderError> {
        // What fails before the launch proves that nothing was made.
        let known = self.capabilities().await?;
        if let Some(named) = &spec.launch.offering
            && !known.offerings.is_empty()
            && !known.offerings.iter().any(|offering| offering.name == *named)
        {
            let why = format!("the program `{}` does not have the offering `{named}`", known.name);
            return Err(ProviderError::new(ErrorClass::Invalid, why));
        }
        let made: LaunchAnswer = self.ask_with(Verb::Launch, &spec.settings, &spec.launch).await?;
        let handle = handle(&made.machine, &spec.launch.name);
        self.check_launched(&handle).await.map_err(|error| {
            let why =
                format!("the program's launch answered with another machine: {}", error.failure.message);
            ProviderError::new(ErrorClass::Unknown, why)
        })?;
        Ok(Created { handle, capacity_confirmed: !made.pending })
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let known = self.capabilities().await?;
        let list: ListAnswer = self.ask(Verb::List, NoFields {}).await?;
        let all = machines_of_pool(&self.pool, known.identity, &list.machines);
        let answers: BTreeMap<&str, _> =
            list.machines.iter().map(|one| (one.machine.as_str(), one)).collect();
        let seen = |machine: &Machine| {
            let answer = answers.get(machine.handle.name.as_str())?;
            let host_key = answer.host_key.as_deref().map(endpoint::without_comment);
            let why = || machine.why.clone().unwrap_or_else(|| "was refused by the platform".to_owned());
            let refused = (answer.state == ListedState::Refused).then(why);
            let handle = machine.handle.clone();
            Some((handle.name.clone(), ListedMachine { handle, port: answer.port, host_key, refused }))
        };
        *self.listed.borrow_mut() = all.iter().filter_map(seen).collect();
        self.host_keys.borrow_mut().retain(|handle, _| all.iter().any(|machine| machine.handle == *handle));
        self.account.borrow_mut().clone_from(&list.account);
        let account = list.account.as_ref().or(known.account.as_ref());
        let account = account.map_or_else(String::new, |account| format!(" {account}"));
        let location = Location::new(format!("{}{account}", known.name));
        Ok(Machines { all, complete: list.complete, location: Some(location) })
    }

    fn capacity_interval(&self) -> Duration {
        CAPACITY_INTERVAL
    }

    async fn launch_status(&self, spec: &LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        let listed = self.listed.borrow();
        let seen = listed.values().find(|seen| seen.handle.zone == spec.launch.name);
        let refused = seen.and_then(|seen| seen.refused.clone()).map(|why| {
            let scope = spec.launch.offering.clone().unwrap_or_else(|| "the provider".to_owned());
            let message = format!("the launch was accepted, and then the machine {why}");
            LaunchStatus::Refused(ProviderError::new(ErrorClass::NoCapacity { scope }, message))
        });
        Ok(refused.unwrap_or(LaunchStatus::Unknown))
    }

    async fn access(&self, machine: &Machine) -> Result<Access, ProviderError> {
        let known = self.capabilities().await?;
        let seen = self.listed.borrow().get(&machine.handle.name).cloned();
        let (port, reported) = seen.map_or((None, None), |seen| (seen.port, seen.host_key));
        let mut access =
            Access { address: machine.addresses.private.clone(), port, host_key: None, forward: None };
        let mut reported = reported;
        let lacks_key = known.host_key == HostKeySource::Report && reported.is_none();
        if known.has(Verb::Endpoint) && (access.address.is_none() || lacks_key) {
            let answer: EndpointAnswer = self.ask(Verb::Endpoint, Self::of_machine(&machine.handle)).await?;
            access.address = Some(answer.address);
            access.port = answer.port.or(access.port);
            reported = answer.host_key.as_deref().map(endpoint::without_comment).or(reported);
        }
        access.host_key = match known.host_key {
            HostKeySource::Launch => None,
            HostKeySource::Report => {
                Some(reported.ok_or_else(|| not_yet("the program does not report the host key yet"))?)
            }
            HostKeySource::Console => Some(self.host_key_in_console(&machine.handle).await?),
            HostKeySource::Operator => {
                Some(self.settings.host_key.as_deref().map(endpoint::without_comment).ok_or_else(|| {
                    let why = "the program expects the operator to state the host key: set `host_key`";
                    ProviderError::new(ErrorClass::Invalid, why)
                })?)
            }
            HostKeySource::Certificate => {
                let address = access.address.as_deref();
                Some(certified_key(&self.settings, address, &machine.handle)?)
            }
        };
        Ok(access)
    }

    async fn delete(&self, machine: &Handle) -> Result<(), ProviderError> {
        self.end(machine).await.map(drop)
    }

    async fn end(&self, machine: &Handle) -> Result<api::Ended, ProviderError> {
        self.check_owner(machine)?;
        let answer: TerminateAnswer = self.ask(Verb::Terminate, Self::of_machine(machine)).await?;
        Ok(match answer.state {
            TerminateState::Stopping => api::Ended::Requested,
            TerminateState::Gone => api::Ended::Gone,
        })
    }

    async fn console(&self, machine: &Handle) -> Result<String, ProviderError> {
        if !self.capabilities().await?.has(Verb::Console) {
            return Err(without_verb(Verb::Console));
        }
        let answer: ConsoleAnswer = self.ask(Verb::Console, Self::of_machine(machine)).await?;
        Ok(answer.text)
    }

    async fn disks(&self, now: Stamp) -> Result<Disks, ProviderError> {
        list_resources(self, now).await
    }

    fn is_of_launch(&self, resource: &Resource) -> bool {
        self.resources.borrow().is_proven(&resource.name)
    }

    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError> {
        if !self.capabilities().await?.has(Verb::Delete) {
            return Err(without_verb(Verb::Delete));
        }
        let kind = self.resources.borrow().kind(resource);
        let fields = ResourceFields { kind: &kind, id: &resource.name };
        self.ask::<DeleteAnswer>(Verb::Delete, fields).await.map(drop)
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        examine::examine(self, demand).await
    }
}

/// Tells versions of a file apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    changed: i64,
    changed_nsec: i64,
}

#[derive(Debug, Default)]
struct Agreed {
    asking: Mutex<()>,
    last: RefCell<Option<(FileVersion, Rc<CapabilitiesAnswer>)>>,
}

impl Agreed {
    /// The last answer; `None`: there is none yet.
    pub(super) fn last(&self) -> Option<Rc<CapabilitiesAnswer>> {
        self.last.borrow().as_ref().map(|(_, answer)| Rc::clone(answer))
    }

    /// The answer for the file as it is now. Concurrent callers ask once.
    pub(super) async fn now(
        &self,
        program: &Path,
        ask: impl AsyncFnOnce() -> Result<CapabilitiesAnswer, ProviderError>,
    ) -> Result<Rc<CapabilitiesAnswer>, ProviderError> {
        let _asking = self.asking.lock().await;
        let version = version(program);
        let known = self
            .last
            .borrow()
            .as_ref()
            .filter(|(of, _)| Some(*of) == version)
            .map(|(_, answer)| Rc::clone(answer));
        if let Some(known) = known {
            return Ok(known);
        }
        let answer = Rc::new(ask().await?);
        *self.last.borrow_mut() = version.map(|version| (version, Rc::clone(&answer)));
        Ok(answer)
    }
}

fn version(program: &Path) -> Option<FileVersion> {
    let known = std::fs::metadata(program).ok()?;
    Some(FileVersion {
        device: known.dev(),
        inode: known.ino(),
        changed: known.mtime(),
        changed_nsec: known.mtime_nsec(),
    })
}

/// The certificate that a machine must present: for its address or its name, signed by an authority of the table's.
fn certified_key(
    settings: &Settings,
    address: Option<&str>,
    machine: &Handle,
) -> Result<String, ProviderError> {
    if settings.host_key_ca.is_empty() {
        let why = "the program expects the operator to state who signs host keys: set `host_key_ca`";
        return Err(ProviderError::new(ErrorClass::Invalid, why));
    }
    let names = match &settings.host_key_name {
        Some(name) => vec![name.as_str()],
        None => address.into_iter().chain([machine.zone.as_str()]).collect(),
    };
    Ok(endpoint::certified(&names, &settings.host_key_ca))
}

/// The host key in a console, Ed25519 if there is one; of several boots, that of the last one. `None`: not printed yet.
fn key_in_console(text: &str) -> Option<String> {
    let begin = text.rfind(KEYS_BEGIN)? + KEYS_BEGIN.len();
    let block = &text[begin..];
    let block = &block[..block.find(KEYS_END)?];
    // Each line may begin with the console's own time.
    let key = |kind: &str| {
        block.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace().skip_while(|word| *word != kind);
            let kind = words.next()?;
            let key = words.next()?;
            key.starts_with("AAAA").then(|| format!("{kind} {key}"))
        })
    };
    key("ssh-ed25519").or_else(|| key("ecdsa-sha2-nistp256"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_last_boot_is_read_when_it_is_complete() {
        let block = |key: &str| {
            format!("{KEYS_BEGIN}\nssh-rsa AAAAr x\n[ 9.1] ssh-ed25519 {key} root@a\n{KEYS_END}\n")
        };
        let text = format!("boot\n{}login:\n{}", block("AAAAold"), block("AAAAnew"));
        assert_eq!(key_in_console(&text).as_deref(), Some("ssh-ed25519 AAAAnew"));
        assert_eq!(key_in_console(&text[..text.len() - 5]), None, "cut off");
        assert_eq!(key_in_console("nothing"), None);
    }
}
