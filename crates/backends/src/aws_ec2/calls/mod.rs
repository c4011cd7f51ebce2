//! EC2's calls, through the vendor's library.

use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Reservation};
use base64ct::{Base64, Encoding as _};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{Location, OwnerId, PoolName};
use greenroom_core::inventory::Resource;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, ProviderError};
use greenroom_providers::registration::{BuildContext, Built};
use tokio::sync::OnceCell;

use super::settings::Settings;
use crate::cloud::api::{Api, Created, Disks, Machines};
use crate::cloud::machine::Handle;
use crate::cloud::offerings::Offering;
use crate::cloud::{Cloud, tags};

mod client;
mod errors;
mod examine;
mod launch_spec;
mod machines;
mod notices;

use client::{AccountIdentity, Ec2Clients};
use launch_spec::{ImageDisks, LaunchSpec};
use notices::InstanceNotices;

/// Maximum length of a console, in bytes, from its end: the last lines show why a boot failed.
const CONSOLE: usize = 64 << 10;

pub(super) fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    // Pools of one account and region share their API back-off, as far as these keys identify the account.
    let place = [&settings.region, &settings.profile, &settings.common.endpoint];
    let account = place
        .iter()
        .fold("aws-ec2".to_owned(), |text, part| format!("{text} {}", part.as_deref().unwrap_or_default()));
    let common = settings.common.clone();
    let api = Ec2 {
        pool: context.pool.clone(),
        settings,
        clients: OnceCell::new(),
        images: ImageDisks::default(),
        identity: AccountIdentity::default(),
        notices: InstanceNotices::new(Rc::clone(&context.clock)),
    };
    Ok(Rc::new(Cloud::new(context, common, &account, api)))
}

/// The calls of one pool.
#[derive(Debug)]
struct Ec2 {
    pool: PoolName,
    settings: Settings,
    clients: OnceCell<Ec2Clients>,
    images: ImageDisks,
    identity: AccountIdentity,
    notices: InstanceNotices,
}

impl Ec2 {
    async fn clients(&self) -> &Ec2Clients {
        self.clients.get_or_init(|| client::open(&self.settings)).await
    }

    async fn client(&self) -> &Client {
        &self.clients().await.ec2
    }

    /// The filter for the pool's resources.
    fn pool_filter(&self) -> Filter {
        Filter::builder().name(format!("tag:{}", tags::POOL)).values(self.pool.as_str()).build()
    }

    /// All reservations with machines of the pool.
    async fn reservations(&self) -> Result<Vec<Reservation>, ProviderError> {
        let list = self.client().await.describe_instances().filters(self.pool_filter());
        let mut pages = list.into_paginator().send();
        let mut all = Vec::new();
        while let Some(page) = pages.next().await {
            all.extend(page.map_err(|error| errors::read(&error, ""))?.reservations.unwrap_or_default());
        }
        Ok(all)
    }

    /// The machine that a launch created, found by its token.
    async fn created_by(&self, token: &str) -> Result<Option<Handle>, ProviderError> {
        let by_token = Filter::builder().name("client-token").values(token).build();
        let answer = self.client().await.describe_instances().filters(by_token).send().await;
        let answer = answer.map_err(|error| errors::read(&error, ""))?;
        let mut found = answer.reservations().iter().flat_map(Reservation::instances);
        Ok(found.find_map(|instance| instance.instance_id()).map(handle))
    }
}

fn handle(id: &str) -> Handle {
    Handle { name: id.to_owned(), zone: String::new() }
}

#[async_trait(?Send)]
impl Api for Ec2 {
    type LaunchSpec = LaunchSpec;
    type MachineId = Handle;

    fn launch_spec(&self, request: &LaunchRequest, offering: &Offering) -> Result<LaunchSpec, ProviderError> {
        LaunchSpec::new(&self.settings, request, offering)
    }

    fn shown_token(&self, owner: &OwnerId, token: &str) -> String {
        launch_spec::token(owner, token)
    }

    /// EC2 announces the end of a spot instance two minutes before.
    fn notice_interval(&self) -> Duration {
        self.settings.common.notice_interval(notices::INTERVAL)
    }

    fn announced(&self, answers: &MetadataAnswers) -> Option<&'static str> {
        notices::announced(answers)
    }

    async fn create(&self, spec: &LaunchSpec) -> Result<Created, ProviderError> {
        let client = self.client().await;
        let disks = self.images.disks(client, &spec.image).await?;
        let answer = spec.call(client, &disks).send().await;
        let made = match answer {
            Ok(answer) => answer.instances().first().and_then(|instance| instance.instance_id()).map(handle),
            // The earlier call listed the image's disks differently, or came from an older version. It created the
            // machine.
            Err(error) if errors::code(&error) == Some(errors::MISMATCH) => {
                self.created_by(&spec.token).await?
            }
            Err(error) => return Err(errors::read(&error, &spec.scope())),
        };
        let handle = made.ok_or_else(|| {
            ProviderError::new(ErrorClass::Unknown, "EC2 accepted the launch but named no instance")
        })?;
        Ok(Created { handle, capacity_confirmed: true })
    }

    async fn machines(&self) -> Result<Machines, ProviderError> {
        let clients = self.clients().await;
        let mut reservations = self.reservations().await?;
        if reservations.is_empty() && self.identity.ask_before(&clients.sts).await {
            reservations = self.reservations().await?;
        }
        let owner = reservations.iter().find_map(Reservation::owner_id);
        let account = self.identity.of_list(owner, &clients.sts).await;
        let location = account
            .zip(clients.region.as_ref())
            .map(|(account, region)| Location::new(format!("aws-ec2 account {account} in {region}")));
        let instances = || reservations.iter().flat_map(Reservation::instances);
        let mut all: Vec<_> = instances().filter_map(machines::read).collect();
        let has_spot = instances().any(machines::is_living_spot);
        self.notices.add(&clients.ec2, self.pool_filter(), &mut all, has_spot).await;
        Ok(Machines { all, complete: true, location })
    }

    async fn delete(&self, machine: &Handle) -> Result<(), ProviderError> {
        let answer = self.client().await.terminate_instances().instance_ids(&machine.name).send().await;
        answer.map(drop).map_err(|error| errors::read(&error, ""))
    }

    async fn console(&self, machine: &Handle) -> Result<String, ProviderError> {
        let answer = self.client().await.get_console_output().instance_id(&machine.name).send().await;
        let answer = answer.map_err(|error| errors::read(&error, ""))?;
        let encoded: String = answer.output().unwrap_or_default().split_whitespace().collect();
        let text = Base64::decode_vec(&encoded).map_err(|_| {
            ProviderError::new(ErrorClass::Transient, "cannot decode the console that EC2 sent")
        })?;
        if text.is_empty() {
            return Err(ProviderError::new(
                ErrorClass::Transient,
                "EC2 has no console output of the instance yet",
            ));
        }
        let from = text.len().saturating_sub(CONSOLE);
        Ok(String::from_utf8_lossy(&text[from..]).into_owned())
    }

    async fn disks(&self, now: Stamp) -> Result<Disks, ProviderError> {
        let mut pages =
            self.client().await.describe_volumes().filters(self.pool_filter()).into_paginator().send();
        let mut all = Vec::new();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| errors::read(&error, ""))?;
            all.extend(page.volumes().iter().filter_map(|volume| machines::read_volume(volume, now)));
        }
        Ok(Disks { all, complete: true })
    }

    async fn delete_resource(&self, resource: &Resource) -> Result<(), ProviderError> {
        let answer = self.client().await.delete_volume().volume_id(&resource.name).send().await;
        answer.map(drop).map_err(|error| errors::read(&error, ""))
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        examine::examine(self.clients().await, &self.settings, &self.pool, demand).await
    }
}
