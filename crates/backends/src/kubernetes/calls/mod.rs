//! The API server's calls.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Forward;
use greenroom_core::ids::{Location, OwnerId, PoolName};
use greenroom_core::inventory::Resource;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use greenroom_providers::registration::{BuildContext, Built};

use super::settings::Settings;
use crate::cloud::Cloud;
use crate::cloud::api::{Access, Api, Created, Disks, Ended, LaunchStatus, Machines};
use crate::cloud::machine::{Machine, MachineState};
use crate::cloud::offerings::Offering;

mod client;
mod errors;
mod examine;
mod fault;
pub(super) mod forward;
mod launches;
mod lost;
mod machines;
mod ordered;
mod pod;
mod pod_state;
mod template;

use client::{ApiCall, Connection, encoded};
use launches::PendingLaunches;
use lost::LostPods;
use machines::PodId;
use pod::LaunchSpec;
use pod_state::PodState;

/// The interval at which a list has to look for the ends of idle pods. Kubernetes announces none.
const NOTICE_INTERVAL: Duration = Duration::from_mins(1);
/// The interval at which pods without a node are listed while a launch waits. A scheduler usually takes some hundredths of a
/// second.
const CAPACITY_INTERVAL: Duration = Duration::from_millis(200);
const LIST_LAG: Duration = Duration::from_secs(3);
/// The grace period of each deletion. With 0, Kubernetes would forget a pod whose processes still run.
const GRACE_S: u32 = 1;

/// A provider that makes its calls. All pools of a cluster share its API back-off.
pub(super) fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    let common = settings.common.clone();
    let clock = || -> Rc<dyn Clock> { Rc::clone(&context.clock) };
    let account = format!("kubernetes {:?} {:?}", settings.kubeconfig, settings.context);
    let api = Kubernetes {
        pool: context.pool.clone(),
        connection: Connection::new(settings.clone(), clock()),
        settings,
        launches: PendingLaunches::new(clock()),
        lost: LostPods::new(clock()),
        host_keys: RefCell::default(),
        forwarded: RefCell::default(),
    };
    Ok(Rc::new(Cloud::new(context, common, &account, api)))
}

/// The calls of one pool.
struct Kubernetes {
    pool: PoolName,
    settings: Settings,
    connection: Connection,
    launches: PendingLaunches,
    lost: LostPods,
    /// Host keys that logs have shown, by the pods' uids.
    host_keys: RefCell<HashMap<String, String>>,
    /// The uids of pods whose SSH server only a port-forward reaches.
    forwarded: RefCell<HashSet<String>>,
}

impl Kubernetes {
    /// The path of something in the namespace.
    fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", encoded(&self.settings.namespace))
    }

    fn location(&self) -> Option<Location> {
        let server = self.connection.server()?;
        Some(Location::new(format!("{server} {}", self.settings.namespace)))
    }

    /// Deletes the pod with this uid, and this version if one is named.
    async fn delete_pod(&self, handle: &PodId, version: Option<&str>) -> Result<Ended, ProviderError> {
        let mut options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S,
            "propagationPolicy": "Background", "preconditions": { "uid": handle.uid },
        });
        if let Some(version) = version {
            options["preconditions"]["resourceVersion"] = version.into();
        }
        let call = ApiCall::delete(self.path(&format!("pods/{}", encoded(&handle.name))), &options);
        match self.connection.call(&call).await {
            Ok(_) => Ok(Ended::Requested),
            // Another one has the name now.
            Err(failed) if failed.is_absent() || (version.is_none() && failed.is(409, "Conflict")) => {
                Ok(Ended::Gone)
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// Looks up the reasons why pods ended that lists no longer show.
    async fn explain_lost(&self, before: Option<String>, open: &std::collections::BTreeMap<String, String>) {
        let changes = async || {
            let selector = encoded(&format!("{}={}", crate::cloud::tags::POOL, self.pool));
            let version = encoded(&before?);
            let path =
                format!("pods?watch=1&timeoutSeconds=1&labelSelector={selector}&resourceVersion={version}");
            let call = ApiCall::get(self.path(&path)).within(Duration::from_secs(5));
            Some(lost::deleted(&self.connection.call(&call).await.ok()?.body))
        };
        let mut known: HashMap<String, Option<pod_state::PodEnd>> =
            changes().await.unwrap_or_default().into_iter().collect();
        for uid in open.keys() {
            let mut why = known.remove(uid).flatten();
            if why.is_none() {
                let events = machines::events(self, uid).await.unwrap_or_default();
                why = lost::by_events(&events);
            }
            self.lost.explain(uid, why);
        }
    }

    /// A listed pod as a machine. One whose launch still waits, or is given up, has no capacity: the launch decides.
    fn machine(&self, pod: &k8s_openapi::api::core::v1::Pod) -> Option<Machine<PodId>> {
        let condition = pod_state::of(pod);
        let mut machine = machines::machine(pod, &condition)?;
        if machines::is_forwarded(pod) {
            self.forwarded.borrow_mut().insert(machine.handle.uid.clone());
        }
        if let Some(token) = &machine.token {
            if matches!(condition, PodState::Unscheduled { .. }) {
                self.launches.note_waiting(token);
            }
            if self.launches.is_refused(token) {
                machine.state = MachineState::Accepted;
            }
        }
        // Once jobs have access, an end has other causes.
        if !self.host_keys.borrow().contains_key(&machine.handle.uid)
            && let Some(failure) = fault::of(pod)
        {
            // The launch continues until the refusal is reported.
            machine.state = MachineState::Starting;
            machine.what.clone_from(&failure.message);
            machine.refused = Some(failure);
        }
        if matches!(condition, PodState::Deleting { why: None })
            && !self.lost.is_requested(&machine.handle.uid)
        {
            machine.why = Some("is being deleted in the cluster, not by Greenroom".to_owned());
        }
        Some(machine)
    }
}

#[async_trait(?Send)]
impl Api for Kubernetes {
    type LaunchSpec = LaunchSpec;
    type MachineId = PodId;

    fn launch_spec(&self, request: &LaunchRequest, offering: &Offering) -> Result<LaunchSpec, ProviderError> {
        let placements = &self.settings.placements;
        let placement =
            placements.iter().find(|one| one.name == offering.name.as_str()).unwrap_or(&placements[0]);
        LaunchSpec::new(&self.settings, request, placement)
    }

    fn shown_token(&self, owner: &OwnerId, token: &str) -> String {
        pod::shown_token(owner, token)
    }

    fn makes_orders(&self) -> bool {
        self.settings.orders.is_some()
    }

    fn notice_interval(&self) -> Duration {
        NOTICE_INTERVAL
    }

    fn announced(&self, _answers: &MetadataAnswers) -> Option<&'static str> {
        None
    }

    /// A list shows a pod as soon as its creation is answered. One without an answer is carried out within moments, or a list
    /// finds the pod later: its name and its labels name its launch.
    fn list_lag(&self) -> Duration {
        LIST_LAG
    }

    fn account(&self) -> Option<String> {
        self.connection.server().map(|server| format!("kubernetes {server}"))
    }

    fn capacity_interval(&self) -> Duration {
        CAPACITY_INTERVAL
    }

    fn is_overdue(&self, machine: &Machine<PodId>) -> bool {
        let within = self.settings.schedule_within;
        machine.token.as_ref().is_some_and(|token| self.launches.is_due(token, within))
    }

    async fn create(&self, spec: &LaunchSpec) -> Result<Created<PodId>, ProviderError> {
        launches::create(self, spec).await
    }

    async fn machines(&self) -> Result<Machines<PodId>, ProviderError> {
        let pods = machines::list(self).await?;
        let mut all: Vec<Machine<PodId>> = pods.all.iter().filter_map(|pod| self.machine(pod)).collect();
        let (before, open) = self.lost.update(&all, pods.complete, pods.version);
        if !open.is_empty() {
            self.explain_lost(before, &open).await;
        }
        self.lost.add_gone(&mut all);
        let is_listed = |uid: &String| all.iter().any(|machine| machine.handle.uid == *uid);
        self.host_keys.borrow_mut().retain(|uid, _| is_listed(uid));
        self.forwarded.borrow_mut().retain(is_listed);
        Ok(Machines { all, complete: pods.complete, location: self.location() })
    }

    async fn launch_status(&self, spec: &LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        launches::launch_status(self, spec).await
    }

    async fn access(&self, machine: &Machine<PodId>) -> Result<Access, ProviderError> {
        let known = self.host_keys.borrow().get(&machine.handle.uid).cloned();
        let key = match known {
            Some(key) => key,
            None => machines::host_key(self, &machine.handle).await?,
        };
        self.host_keys.borrow_mut().insert(machine.handle.uid.clone(), key.clone());
        let PodId { name, uid } = &machine.handle;
        let forward = self.forwarded.borrow().contains(uid).then(|| Forward {
            kubeconfig: self.connection.files(),
            context: self.settings.context.clone(),
            namespace: self.settings.namespace.clone(),
            pod: name.clone(),
            uid: uid.clone(),
        });
        let address = forward.as_ref().map(|_| name.clone());
        Ok(Access { address, host_key: Some(key), forward, ..Access::default() })
    }

    async fn delete(&self, machine: &PodId) -> Result<(), ProviderError> {
        self.end(machine).await.map(drop)
    }

    async fn end(&self, machine: &PodId) -> Result<Ended, ProviderError> {
        self.lost.expect_end(&machine.uid);
        self.delete_pod(machine, None).await
    }

    async fn console(&self, machine: &PodId) -> Result<String, ProviderError> {
        machines::console(self, machine).await
    }

    /// A pod's volumes end with it.
    async fn disks(&self, _now: Stamp) -> Result<Disks<PodId>, ProviderError> {
        Ok(Disks { all: Vec::new(), complete: true })
    }

    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError> {
        let why = format!("`{}` is not a pod", resource.name);
        Err(ProviderError::new(greenroom_core::failure::ErrorClass::Invalid, why))
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        examine::examine(self, demand).await
    }
}
