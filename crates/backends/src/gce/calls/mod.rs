//! Compute Engine's calls, through the vendor's library.

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::Operation;
use greenroom_core::ids::{OwnerId, PoolName};
use greenroom_core::inventory::Resource;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use greenroom_providers::registration::{BuildContext, Built};
use tokio::sync::OnceCell;

use super::settings::Settings;
use crate::cloud::api::{Api, CallKind, Created, Disks, LaunchStatus, Machines};
use crate::cloud::machine::Handle;
use crate::cloud::offerings::Offering;
use crate::cloud::{Cloud, tags};

mod client;
mod endings;
mod errors;
mod examine;
mod launches;
mod machines;

use client::{ComputeEngineClients, answer};
use endings::Endings;
use launches::{Inserts, LaunchSpec};

/// Maximum length of a console, in bytes, from its end.
const CONSOLE: i64 = 64 * 1024;
/// The interval at which spot instances are listed: a reclaimed one is visible for at most 30 s before its end.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(10);

/// A provider that makes its calls. All pools of a project share its API back-off.
pub(super) fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    let common = settings.common.clone();
    let account = format!("gce {}", settings.project);
    let clock = || Rc::clone(&context.clock);
    let endings = Endings::new(clock());
    let inserts = Inserts::new(clock());
    let pool = context.pool.clone();
    let clients = OnceCell::new();
    let api = ComputeEngine { pool, settings, clients, endings, inserts };
    Ok(Rc::new(Cloud::new(context, common, &account, api)))
}

/// The calls of one pool.
#[derive(Debug)]
struct ComputeEngine {
    pool: PoolName,
    settings: Settings,
    clients: OnceCell<ComputeEngineClients>,
    endings: Endings,
    inserts: Inserts,
}

impl ComputeEngine {
    async fn clients(&self) -> Result<&ComputeEngineClients, ProviderError> {
        self.clients.get_or_try_init(|| client::open(&self.settings)).await
    }

    /// The filter for the pool's resources.
    fn pool_filter(&self) -> String {
        format!("labels.{} = \"{}\"", tags::POOL, self.pool)
    }

    /// The operations of a zone that match a filter, the latest first.
    async fn operations(&self, zone: &str, filter: &str) -> Result<Vec<Operation>, ProviderError> {
        let list = self.clients().await?.operations.list().set_project(&self.settings.project).set_zone(zone);
        let list = list.set_filter(filter).set_order_by("creationTimestamp desc").set_max_results(500_u32);
        let last: Answer<_> = answer(list.send()).await;
        Ok(last.map_err(|error| errors::read(&error, CallKind::Existing, ""))?.items)
    }
}

#[async_trait(?Send)]
impl Api for ComputeEngine {
    type LaunchSpec = LaunchSpec;
    type MachineId = Handle;

    fn launch_spec(&self, request: &LaunchRequest, offering: &Offering) -> Result<LaunchSpec, ProviderError> {
        LaunchSpec::new(&self.settings, request, offering)
    }

    fn shown_token(&self, owner: &OwnerId, token: &str) -> String {
        launches::request_id(owner, token)
    }

    /// Compute Engine shuts a spot instance down within 30 s.
    fn notice_interval(&self) -> Duration {
        self.settings.common.notice_interval(RECLAIM_INTERVAL)
    }

    fn announced(&self, answers: &MetadataAnswers) -> Option<&'static str> {
        endings::announced(answers)
    }

    async fn create(&self, spec: &LaunchSpec) -> Result<Created, ProviderError> {
        // Boxed, because requests are large and many may be concurrent.
        Box::pin(launches::create(self, spec)).await
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let offerings = &self.settings.common.offerings;
        let matters = |zone: &str| {
            offerings.iter().any(|offering| offering.place == zone) || self.endings.has_machines(zone)
        };
        let mut machines = machines::list(self, matters).await?;
        for zone in self.endings.update(&machines) {
            // Without the reasons, the list is still useful.
            if let Ok(operations) = self.operations(&zone, endings::FILTER).await {
                self.endings.read_reasons(&zone, &operations);
            }
        }
        self.endings.add_reasons(&mut machines);
        Ok(machines)
    }

    async fn launch_status(&self, spec: &LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        self.inserts.launch_status(self, spec).await
    }

    /// Requests a termination without a request id: a repeat does no harm, and an id would return the answer of an earlier
    /// operation that has failed.
    async fn delete(&self, machine: &Handle) -> Result<(), ProviderError> {
        let delete = self.clients().await?.instances.delete().set_project(&self.settings.project);
        self.endings.expect_end(machine);
        let reply = answer(delete.set_zone(&machine.zone).set_instance(&machine.name).send()).await;
        reply.map(drop).map_err(|error| errors::read(&error, CallKind::Existing, ""))
    }

    async fn console(&self, machine: &Handle) -> Result<String, ProviderError> {
        let output =
            self.clients().await?.instances.get_serial_port_output().set_project(&self.settings.project);
        let output = output.set_zone(&machine.zone).set_instance(&machine.name).set_start(-CONSOLE);
        let output =
            answer(output.send()).await.map_err(|error| errors::read(&error, CallKind::Existing, ""))?;
        Ok(output.contents.unwrap_or_default())
    }

    async fn disks(&self, now: Stamp) -> Result<Disks, ProviderError> {
        machines::list_disks(self, now).await
    }

    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError> {
        machines::delete_disk(self, resource).await
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        examine::examine(self, demand).await
    }
}
