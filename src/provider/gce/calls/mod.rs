//! What Compute Engine is asked.

use std::rc::Rc;

use async_trait::async_trait;
use google_cloud_compute_v1::Result as Answer;
use google_cloud_compute_v1::model::Operation;
use tokio::sync::OnceCell;

use super::settings::Settings;
use crate::core::ids::PoolName;
use crate::core::inventory::Resource;
use crate::core::time::Stamp;
use crate::port::finding::Finding;
use crate::port::provider::{Demand, LaunchRequest, ProviderError};
use crate::provider::cloud::api::{Api, Created, LaunchStatus, Machines, ResourceList};
use crate::provider::cloud::machine::Handle;
use crate::provider::cloud::offerings::Offering;
use crate::provider::cloud::{Cloud, tags};
use crate::provider::{BuildContext, Built};

mod client;
mod create;
mod disks;
mod endings;
mod errors;
mod examine;
mod inserts;
mod launch_spec;
mod machines;

use client::{Clients, answer};
use endings::Endings;
use errors::Asked;
use inserts::Inserts;
use launch_spec::LaunchSpec;

/// How much of a console is read, from its end: bytes.
const CONSOLE: i64 = 64 * 1024;

/// A provider that makes its calls. All pools of a project share the project's budget of calls.
pub(super) fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(table)?;
    let (common, account) = (settings.common.clone(), format!("gce {}", settings.project));
    let clock = || Rc::clone(&context.clock);
    let (endings, inserts) = (Endings::new(clock()), Inserts::new(clock()));
    let (pool, clients) = (context.pool.clone(), OnceCell::new());
    let api = ComputeEngine { pool, settings, clients, endings, inserts };
    Ok(Rc::new(Cloud::new(context, common, &account, api)))
}

/// One pool's.
#[derive(Debug)]
struct ComputeEngine {
    pool: PoolName,
    settings: Settings,
    clients: OnceCell<Clients>,
    endings: Endings,
    inserts: Inserts,
}

impl ComputeEngine {
    async fn clients(&self) -> Result<&Clients, ProviderError> {
        self.clients.get_or_try_init(|| client::open(&self.settings)).await
    }

    /// Everything of our pool, as a filter of lists.
    fn ours(&self) -> String {
        format!("labels.{} = \"{}\"", tags::POOL, self.pool)
    }

    /// The last operations of a zone that a filter lets through, the latest first.
    async fn operations(&self, zone: &str, filter: &str) -> Result<Vec<Operation>, ProviderError> {
        let list = self.clients().await?.operations.list().set_project(&self.settings.project).set_zone(zone);
        let list = list.set_filter(filter).set_order_by("creationTimestamp desc").set_max_results(500_u32);
        let last: Answer<_> = answer(list.send()).await;
        Ok(last.map_err(|error| errors::read(&error, Asked::Known, ""))?.items)
    }
}

#[async_trait(?Send)]
impl Api for ComputeEngine {
    type LaunchSpec = LaunchSpec;

    fn launch_spec(&self, request: &LaunchRequest, offering: &Offering) -> Result<LaunchSpec, ProviderError> {
        LaunchSpec::new(&self.settings, request, offering)
    }

    async fn create(&self, order: &LaunchSpec) -> Result<Created, ProviderError> {
        // Requests are large, and many may be under way.
        Box::pin(create::create(self, order)).await
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let offerings = &self.settings.common.offerings;
        let matters =
            |zone: &str| offerings.iter().any(|offering| offering.place == zone) || self.endings.saw(zone);
        let mut machines = machines::list(self, matters).await?;
        for zone in self.endings.note(&machines) {
            // A reason that nobody tells is no reason to know nothing.
            if let Ok(operations) = self.operations(&zone, endings::FILTER).await {
                self.endings.hear(&zone, &operations);
            }
        }
        self.endings.tell(&mut machines);
        Ok(machines)
    }

    async fn launch_status(&self, order: &LaunchSpec) -> Result<LaunchStatus, ProviderError> {
        self.inserts.fate(self, order).await
    }

    /// Without a request id: a machine has one end however often it is asked for, and an id would bring back the answer of
    /// an operation that has failed.
    async fn delete(&self, machine: &Handle) -> Result<(), ProviderError> {
        let delete = self.clients().await?.instances.delete().set_project(&self.settings.project);
        self.endings.expect(machine);
        let asked = answer(delete.set_zone(&machine.zone).set_instance(&machine.name).send()).await;
        asked.map(drop).map_err(|error| errors::read(&error, Asked::Known, ""))
    }

    async fn console(&self, machine: &Handle) -> Result<String, ProviderError> {
        let output =
            self.clients().await?.instances.get_serial_port_output().set_project(&self.settings.project);
        let output = output.set_zone(&machine.zone).set_instance(&machine.name).set_start(-CONSOLE);
        let output = answer(output.send()).await.map_err(|error| errors::read(&error, Asked::Known, ""))?;
        Ok(output.contents.unwrap_or_default())
    }

    async fn resources(&self, now: Stamp) -> Result<ResourceList, ProviderError> {
        disks::list(self, now).await
    }

    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError> {
        disks::delete(self, resource).await
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        examine::examine(self, demand).await
    }
}
