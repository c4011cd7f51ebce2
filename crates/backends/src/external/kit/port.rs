//! The plain port of a program under test: each call of the port is one call of the program, without a cache or a repeat.
//!
//! The conformance suite judges programs through it. An instance's ID is that of its machine; which launch it is of, lists show
//! by tags or names. The port remembers the machine that each launch was answered with, and nothing else.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OfferingName, OwnerId, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, Resource, Status};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, Provider, ProviderError, Termination};
use greenroom_providers::conformance::verdict::{Judged, failed};
use serde_json::{Value, json};

use super::program::ProgramReply;
use super::{KitSession, read, unusable};
use crate::cloud::settings::UserData;
use crate::cloud::{tags, user_data};
use crate::external::protocol::answers::{
    CapabilitiesAnswer, ConsoleAnswer, EndpointAnswer, HostKeySource, LaunchAnswer, ListAnswer, ListedState,
    MachineAnswer, MachineIdentity, ProtocolAnswer, TerminateAnswer, TerminateState,
};
use crate::external::protocol::{Reason, error_class};

/// SSH's own port.
pub(super) const SSH: u16 = 22;
/// Between two looks at the process table.
const SCAN_INTERVAL: Duration = Duration::from_millis(20);

/// A machine, and how the program's calls name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestMachine {
    pub(super) pool: String,
    pub(super) machine: String,
    pub(super) instance: String,
    pub(super) name: String,
}

impl TestMachine {
    /// The fields of `terminate`, `endpoint` and `console`.
    pub(super) fn fields(&self) -> Value {
        json!({ "machine": self.machine, "instance": self.instance, "name": self.name })
    }
}

/// The name of a launch's machine.
pub(super) fn full_name(instance: &str, owner: &OwnerId) -> String {
    format!("{instance}-{owner}")
}

/// The plain port of a program.
pub(super) struct ProgramPort<'a> {
    session: &'a KitSession<'a>,
    pub(super) known: CapabilitiesAnswer,
    /// The account that logs in.
    user: String,
    /// The pool of machines that no launch has created.
    pool: String,
    /// Every launch of the run.
    launches: RefCell<Vec<LaunchRequest>>,
    /// Every machine of the run.
    pub(super) made: RefCell<Vec<TestMachine>>,
    /// The longest time of a launch.
    pub(super) launch_took: Cell<Duration>,
}

impl<'a> ProgramPort<'a> {
    pub(super) fn new(
        session: &'a KitSession<'a>,
        known: CapabilitiesAnswer,
        user: &str,
        pool: &str,
    ) -> Self {
        Self {
            session,
            known,
            user: user.to_owned(),
            pool: pool.to_owned(),
            launches: RefCell::default(),
            made: RefCell::default(),
            launch_took: Cell::default(),
        }
    }

    /// Makes a launch known to lists, before it is called.
    pub(super) fn register(&self, request: &LaunchRequest) {
        let mut launches = self.launches.borrow_mut();
        if !launches.iter().any(|known| known.tags == request.tags) {
            launches.push(request.clone());
        }
    }

    /// Records the machine of a launch.
    pub(super) fn note(&self, machine: &str, request: &LaunchRequest) {
        self.adopt(TestMachine {
            pool: request.tags.pool.to_string(),
            machine: machine.to_owned(),
            instance: request.instance.to_string(),
            name: full_name(request.instance.as_str(), &request.tags.owner),
        });
    }

    /// Records a machine, also one of an earlier run.
    pub(super) fn adopt(&self, machine: TestMachine) {
        let mut all = self.made.borrow_mut();
        if !all.contains(&machine) {
            all.push(machine);
        }
    }

    /// The machines that answers to a launch have named, without repeats.
    pub(super) fn answers(&self, instance: &InstanceId) -> Vec<String> {
        let made = self.made.borrow();
        let of_launch = made.iter().filter(|known| known.instance == instance.as_str());
        of_launch.map(|known| known.machine.clone()).collect()
    }

    /// A machine by its ID. One that the run does not know has the same text in all fields.
    pub(super) fn machine(&self, id: &InstanceId) -> TestMachine {
        let made = self.made.borrow();
        made.iter().rfind(|known| known.machine == id.as_str()).cloned().unwrap_or_else(|| TestMachine {
            pool: self.pool.clone(),
            machine: id.to_string(),
            instance: id.to_string(),
            name: id.to_string(),
        })
    }

    /// The fields of a launch.
    pub(super) fn fields(&self, request: &LaunchRequest) -> Value {
        let keys = &request.keys;
        let mut fields = json!({
            "instance": request.instance.as_str(),
            "name": full_name(request.instance.as_str(), &request.tags.owner),
            "token": request.token,
            "tags": labels(request),
            "user": self.user,
            "authorized_key": keys.authorized_key.trim(),
            "user_data": user_data::text(UserData::CloudInit, request, &self.user, None),
        });
        if let Some(lifetime) = request.lifetime {
            fields["lifetime_s"] = json!(lifetime.as_secs());
        }
        if self.known.host_key == HostKeySource::Launch {
            fields["host_key"] = json!(keys.host_key);
            fields["host_key_public"] = json!(keys.host_key_public.trim());
        }
        if let Some(offering) = &request.offering {
            fields["offering"] = json!(offering.as_str());
        }
        fields
    }

    /// Compares what a machine shows with a launch.
    pub(super) fn compare(&self, request: &LaunchRequest, listed: &MachineAnswer) -> Judged {
        let machine = &listed.machine;
        if self.known.identity == MachineIdentity::Names {
            let wanted = full_name(request.instance.as_str(), &request.tags.owner);
            let name = listed.name.as_deref().unwrap_or("none");
            if name == wanted {
                return Ok(());
            }
            return failed(format!("the machine `{machine}` has the name `{name}`, not `{wanted}`"));
        }
        for (tag, wanted) in &labels(request) {
            let wanted = wanted.as_str().unwrap_or_default();
            match listed.tags.get(tag) {
                Some(value) if value == wanted => {}
                Some(value) => {
                    return failed(format!(
                        "the machine `{machine}` has the tag `{tag}` = `{value}`, not `{wanted}`"
                    ));
                }
                None => return failed(format!("the machine `{machine}` lacks the tag `{tag}`")),
            }
        }
        Ok(())
    }

    /// True if a machine is this launch's, by what it shows.
    pub(super) fn is(&self, request: &LaunchRequest, listed: &MachineAnswer) -> bool {
        self.compare(request, listed).is_ok()
    }

    /// One list, as the program answers it.
    pub(super) async fn answer_list(&self, pool: &PoolName) -> Result<ListAnswer, ProviderError> {
        self.answer("list", pool.as_str(), &json!({})).await
    }

    /// A list as one of the port. A machine has the tags of the launch that it shows, or else of the one whose answer named it.
    pub(super) fn listing(&self, list: &ListAnswer) -> Listing {
        let launches = self.launches.borrow();
        let made = self.made.borrow();
        let tags = |listed: &MachineAnswer| {
            let shown = launches.iter().find(|launch| self.is(launch, listed));
            let named = || {
                let known = made.iter().rfind(|known| known.machine == listed.machine)?;
                launches.iter().find(|launch| launch.instance.as_str() == known.instance)
            };
            shown.or_else(named).map(|launch| launch.tags.clone())
        };
        let instance = |listed: &MachineAnswer| Listed {
            id: InstanceId::new(&listed.machine),
            tags: tags(listed),
            status: match listed.state {
                ListedState::Pending | ListedState::Starting => Status::Starting,
                ListedState::Running => Status::Running,
                ListedState::Refused | ListedState::Stopping | ListedState::Stopped | ListedState::Gone => {
                    Status::Stopping
                }
            },
            created: None,
            detail: Some(format!("{:?}", listed.state).to_lowercase()),
            by_job: false,
            refused: None,
            static_host: None,
            notice: None,
        };
        let mut instances: Vec<Listed> = list.machines.iter().map(instance).collect();
        instances.sort_by(|one, other| one.id.cmp(&other.id));
        Listing { complete: list.complete, instances, ..Listing::empty(no_moment(), None) }
    }

    /// One call, and its answer as the protocol defines it.
    async fn answer<T: ProtocolAnswer>(
        &self,
        verb: &str,
        pool: &str,
        fields: &Value,
    ) -> Result<T, ProviderError> {
        document(verb, self.session.call(verb, pool, fields).await)
    }

    async fn answer_about<T: ProtocolAnswer>(&self, verb: &str, id: &InstanceId) -> Result<T, ProviderError> {
        let machine = self.machine(id);
        self.answer(verb, &machine.pool, &machine.fields()).await
    }
}

#[async_trait(?Send)]
impl Provider for ProgramPort<'_> {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        self.register(request);
        let begun = Instant::now();
        let fields = self.fields(request);
        let call = self.session.call("launch", request.tags.pool.as_str(), &fields);
        let reply = watched(self.session, &request.keys, call).await;
        self.launch_took.set(begun.elapsed().max(self.launch_took.get()));
        let LaunchAnswer { machine, .. } = document("launch", reply)?;
        self.note(&machine, request);
        Ok(())
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let answer: TerminateAnswer = self.answer_about("terminate", id).await?;
        Ok(match answer.state {
            TerminateState::Stopping => Termination::Requested,
            TerminateState::Gone => Termination::Gone,
        })
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        Ok(self.listing(&self.answer_list(pool).await?))
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let EndpointAnswer { address, port, host_key } = self.answer_about("endpoint", id).await?;
        Ok(Endpoint {
            address,
            port: port.unwrap_or(SSH),
            user: self.user.clone(),
            host_key: host_key.unwrap_or_default(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        })
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        Ok(self.answer_about::<ConsoleAnswer>("console", id).await?.text)
    }

    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        let fields = json!({ "kind": resource.kind.to_string(), "id": resource.name });
        answered("delete", self.session.call("delete", &self.pool, &fields).await).map(drop)
    }

    fn capabilities(&self) -> Capabilities {
        let offerings = self.known.offerings.iter().map(|offering| OfferingName::new(&offering.name));
        Capabilities {
            idempotent_launch: self.known.idempotent_launch,
            offerings: offerings.collect(),
            ..Capabilities::default()
        }
    }
}

/// The moment of what has no clock: the suite does not read it.
fn no_moment() -> Stamp {
    (0, 0, 0, 0).into()
}

/// The tags of a launch, with its token.
fn labels(request: &LaunchRequest) -> serde_json::Map<String, Value> {
    let own = tags::written(&request.tags).into_iter().map(|(name, value)| (name.to_owned(), json!(value)));
    own.chain([("greenroom-token".to_owned(), json!(request.token))]).collect()
}

/// The answer of a reply. One without a usable answer is judged by another check, which the message names.
fn answered(verb: &str, reply: ProgramReply) -> Result<Value, ProviderError> {
    match reply {
        ProgramReply::Answer(answer) => Ok(answer),
        ProgramReply::Refused(refusal) => {
            let class = error_class(refusal.code, &Reason::default(), no_moment());
            let message = format!("`{verb}` was refused with {refusal}");
            Err(ProviderError::new(class.unwrap_or(ErrorClass::Denied), message))
        }
        ProgramReply::Unusable(check, _) => {
            Err(ProviderError::new(ErrorClass::Unknown, unusable(verb, check).text()))
        }
    }
}

/// The answer as the protocol defines it. A wrong document gets a class that no check permits.
fn document<T: ProtocolAnswer>(verb: &str, reply: ProgramReply) -> Result<T, ProviderError> {
    let answer = answered(verb, reply)?;
    read(verb, &answer).map_err(|verdict| ProviderError::new(ErrorClass::Denied, verdict.text()))
}

/// Runs a launch, and looks for its private key in the arguments of processes meanwhile.
async fn watched<T>(session: &KitSession<'_>, keys: &InstanceKeys, launch: impl Future<Output = T>) -> T {
    let secret = keys.secret_lines().next().unwrap_or_default().to_owned();
    let look = async {
        loop {
            if is_in_arguments(&secret) {
                session.violate(
                    "call-keeps-secrets",
                    "launch",
                    "the host key is in the arguments of a process",
                );
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    };
    tokio::select! {
        answer = launch => answer,
        () = look => unreachable!("it looks for ever"),
    }
}

fn is_in_arguments(secret: &str) -> bool {
    if secret.is_empty() {
        return false;
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|arguments| arguments.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_seen_as_long_as_its_process_runs() {
        let secret = format!("greenroom-kit-secret-{}", std::process::id());
        assert!(!is_in_arguments(&secret));
        let mut process = std::process::Command::new("sh")
            .args(["-c", "echo; read line", &secret])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Until it runs, the process table may show no arguments.
        std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(is_in_arguments(&secret));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
