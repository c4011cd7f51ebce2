//! `prepare`'s part for jobs that name images: containers on their instance, or an instance that is made of the images.

use std::io;
use std::path::PathBuf;

use greenroom_core::container::account::{
    ContainerAccount, FailureAccount, FailureClass, ImageSource, ServiceStart,
};
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::image::runs_docker;
use greenroom_core::container::judge::{JobContext, judge};
use greenroom_core::container::ordering::{JobOrder, OrderSettings};
use greenroom_core::container::request::{ContainerRequest, ImageRequest};
use greenroom_core::container::settings::{ContainerSettings, PullPolicy};
use greenroom_core::container::spec::{ContainerJob, ServiceSpec};
use greenroom_core::ids::PoolName;
use greenroom_core::images::Images;
use greenroom_core::text::Secret;
use greenroom_engine::Engine;
use greenroom_engine::acquire::Acquired;
use greenroom_engine::container::{ContainerError, ContainerProgress};
use greenroom_engine::warm::{MARGIN, public_script};
use greenroom_manager::gitlab::env::added_by_runner;
use greenroom_manager::gitlab::response::JobResponse;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::setup::{PublicPull, PullError, Pulls, Traces};
use greenroom_providers::registration::Registration;

use super::error::CliError;
use super::job::{DriverCall, JobDirs};
use super::messages::{self, NoServices, container_progress};
use super::setup::objection;
use super::ui;
use crate::config::{Config, PoolConfig};
use crate::provider;

/// The containers of a job, or `None` if it runs on the instance itself. Judged before the job takes an instance.
///
/// `configured`: the pool in the configuration, unless that cannot be read.
pub(super) fn wanted(
    call: &DriverCall,
    pool: &PoolName,
    configured: Option<&PoolConfig>,
    response: &JobResponse,
) -> Result<Option<ContainerJob>, CliError> {
    let request = &response.containers;
    let configured = match configured {
        Some(configured) => configured,
        // On the instance itself, a job that names an image would run, and perhaps succeed, in the wrong place.
        None if request.image.is_some() => call.in_config(pool)?,
        None => return Ok(None),
    };
    let settings = configured.containers.as_ref();
    let found = settings.map(|settings| judged(call.context.config()?, configured, settings, request, false));
    let job = found.transpose()?.flatten();
    if job.is_none() && !request.services.is_empty() {
        let known = provider::find(&configured.provider.kind)?;
        let lacking = match (&configured.containers, known.orders) {
            (Some(_), _) => NoServices::NamesNoImage,
            (None, None) => NoServices::RunsNoContainers,
            // The job gets an instance with them.
            (None, Some(_)) if order_settings(configured)?.is_some() => return Ok(job),
            (None, Some(_)) => NoServices::MakesNoOrders,
        };
        ui::tell(&messages::services_ignored(pool, request.services.len(), lacking));
    }
    if job.is_some()
        && let Some(why) = call.context.host.refusal(pool, &response.facts.key)?
    {
        // The runner repeats what has just failed: no machine is taken for that.
        return Err(CliError::say(why));
    }
    Ok(job)
}

/// The containers of a job in a pool that runs jobs in containers. `pool` is one of `config`; `meets_others`: the job's
/// instance is known, and other jobs may be there.
fn judged(
    config: &Config,
    pool: &PoolConfig,
    settings: &ContainerSettings,
    request: &ContainerRequest,
    meets_others: bool,
) -> Result<Option<ContainerJob>, CliError> {
    let known = provider::find(&pool.provider.kind)?;
    if let Some(objection) = objection(config, pool, known) {
        return Err(CliError::config(objection.into()));
    }
    let meets_others = meets_others || jobs_meet(pool, known);
    let about = JobContext {
        single_use: known.launches() && !meets_others,
        meets_others,
        runner_variables: added_by_runner(|name| std::env::var_os(name)),
        ..operators(settings)?
    };
    judge(settings, request, &about).map_err(|refusal| CliError::impossible(refusal.to_string()))
}

/// True if another job may run beside a job of the pool, or have left a process on its instance. Static hosts that run
/// containers are cleaned by root between jobs.
pub(super) fn jobs_meet(pool: &PoolConfig, known: &Registration) -> bool {
    let Some(hosts) = known.static_hosts else { return pool.policy.max_use_count != Some(1) };
    let most = (hosts.most_slots)(&pool.provider.table);
    pool.policy.capacity_per_instance > 1 || most.is_some_and(|most| most > 1)
}

/// The pools that run a job in containers, and its Docker daemons in privileged ones.
fn privileged_pools(config: &Config, request: &ContainerRequest) -> Vec<PoolName> {
    let runs = |pool: &&PoolConfig| {
        let settings = pool.containers.as_ref();
        let job = settings.and_then(|settings| judged(config, pool, settings, request, false).ok().flatten());
        let is_run = |one: &ServiceSpec| one.container.privileged || !runs_docker(&one.container.called);
        job.is_some_and(|job| job.services.iter().all(is_run))
    };
    config.pools.values().filter(runs).map(|pool| pool.name.clone()).collect()
}

/// Pulls in advance, with the operator's files as they are at that moment.
#[derive(Debug)]
pub(super) struct PoolPulls(pub(super) ContainerSettings);

impl Pulls for PoolPulls {
    fn engine(&self) -> ContainerEngine {
        self.0.engine
    }

    fn pull(&self, image: &str, traces: Traces) -> Result<ContainerJob, PullError> {
        let about = operators(&self.0)?;
        let about = JobContext { meets_others: traces == Traces::Possible, ..about };
        let image = ImageRequest { name: image.to_owned(), ..ImageRequest::default() };
        let request = ContainerRequest { image: Some(image), ..ContainerRequest::default() };
        // The operator's own choice, whatever jobs may name. The registry is asked in any case.
        let settings =
            ContainerSettings { images: None, pull_policy: vec![PullPolicy::Always], ..self.0.clone() };
        judge(&settings, &request, &about)?.ok_or(PullError::NotPulled)
    }

    fn public(&self) -> Vec<PublicPull> {
        let public = self.0.images_warm.iter().filter_map(|image| {
            let image = image.to_string();
            let job = self.pull(&image, Traces::None).ok()?;
            let script = public_script(&job)?;
            let within = job.pull_timeout.saturating_add(MARGIN);
            Some(PublicPull { image: image.into(), script, within })
        });
        public.collect()
    }
}

/// Creates a job's containers on its instance.
pub(super) async fn create(
    call: &DriverCall,
    engine: &Engine,
    response: &JobResponse,
    acquired: &Acquired,
    (job, dirs): (&ContainerJob, &JobDirs),
) -> Result<(), CliError> {
    let shared = if acquired.meets_others { beside_others(call, engine, response)? } else { None };
    let job = shared.as_ref().unwrap_or(job);
    let key = response.facts.key.clone();
    let now = call.context.host.now();
    let mut account = ContainerAccount::new(key, engine.pool.clone(), now, job);
    note(call, &account);
    let mut tell = |progress| {
        let progress = had(progress, &acquired.images, job);
        count(&mut account, &progress);
        ui::tell(&container_progress(&progress));
    };
    let dirs = [dirs.builds.as_str(), dirs.cache.as_str()];
    let created = engine.prepare_container(&call.attempt, acquired, job, &dirs, &mut tell).await;
    account.failure = created.as_ref().err().and_then(failure);
    note(call, &account);
    match created {
        Ok(_) => Ok(()),
        Err(ContainerError::Impossible(sentence)) => Err(CliError::impossible(sentence)),
        Err(ContainerError::Unavailable(why) | ContainerError::Unreached(why)) => {
            if let Err(problem) = call.context.host.note_refusal(&engine.pool, &response.facts.key, &why) {
                tracing::warn!(pool = %engine.pool, "cannot note why the job was refused: {problem}");
            }
            Err(CliError::say(why))
        }
        Err(error) => Err(CliError::system(error)),
    }
}

/// Ends pulls with passwords that no job may read, before a job on the machine itself begins there.
pub(super) async fn end_pulls(
    call: &DriverCall,
    engine: &Engine,
    configured: Option<&PoolConfig>,
    acquired: &Acquired,
) -> Result<(), CliError> {
    let settings = configured.and_then(|pool| pool.containers.as_ref());
    if !settings.is_some_and(|settings| settings.registry_auth.is_some() && !settings.registry_auth_shared) {
        return Ok(());
    }
    engine.end_pulls(&call.attempt, acquired).await.map_err(CliError::system)
}

/// The job's containers on an instance that other jobs use: without the operator's passwords and without privileges, even
/// where new instances of the pool serve one job. `None`: the pool has always been so.
fn beside_others(
    call: &DriverCall,
    engine: &Engine,
    response: &JobResponse,
) -> Result<Option<ContainerJob>, CliError> {
    let configured = call.in_config(&engine.pool)?;
    let Some(settings) = &configured.containers else { return Ok(None) };
    if jobs_meet(configured, provider::find(&configured.provider.kind)?) {
        return Ok(None);
    }
    judged(call.context.config()?, configured, settings, &response.containers, true)
}

/// A pull that brought only what the keeper had pulled in advance: the instance had the image.
fn had(progress: ContainerProgress, images: &Images, job: &ContainerJob) -> ContainerProgress {
    let ContainerProgress::Pulled { image, digest: Some(digest), .. } = &progress else { return progress };
    let known = job.complete_name(image).and_then(|name| images.get(name));
    let is_same = known.is_some_and(|fact| fact.image.digest.as_deref() == Some(digest));
    if !is_same {
        return progress;
    }
    ContainerProgress::Present { image: image.clone(), digest: Some(digest.clone()) }
}

/// Keeps the account for `explain` and `pool status`. The job does not depend on it.
fn note(call: &DriverCall, account: &ContainerAccount) {
    if let Err(problem) = call.context.host.note_containers(&call.attempt, account) {
        tracing::warn!(pool = %account.pool, "cannot note what becomes of the job's containers: {problem}");
    }
}

/// The failure that an error means for the account; `None`: the job was stopped, which says nothing about its
/// containers.
fn failure(error: &ContainerError) -> Option<FailureAccount> {
    let class = match error {
        ContainerError::Impossible(_) => FailureClass::Job,
        ContainerError::Unavailable(_)
        | ContainerError::Unreached(_)
        | ContainerError::Lost(_)
        | ContainerError::Doubtful { .. }
        | ContainerError::Trouble(_) => FailureClass::System,
        ContainerError::Stopped | ContainerError::RunnerGone | ContainerError::Closed(_) => return None,
    };
    Some(FailureAccount { class, message: error.to_string() })
}

/// Adds a step of progress to the account.
fn count(account: &mut ContainerAccount, progress: &ContainerProgress) {
    let (image, digest, source) = match progress {
        ContainerProgress::Present { image, digest } => (image, digest, ImageSource::Present),
        ContainerProgress::Pulled { image, digest, after, bytes } => {
            (image, digest, ImageSource::Pulled { after: *after, bytes: Some(*bytes) })
        }
        ContainerProgress::Removed { image, .. } => return account.removed.push(image.clone()),
        other => return count_service(account, other),
    };
    // A job and its service may have the same image, which is reported once.
    for found in account.images(image).filter(|image| image.source.is_none()) {
        (found.digest, found.source) = (digest.clone(), Some(source));
    }
}

fn count_service(account: &mut ContainerAccount, progress: &ContainerProgress) {
    let (service, start) = match progress {
        ContainerProgress::ServiceUp { service, after } => {
            (service, ServiceStart::Answered { after: *after })
        }
        ContainerProgress::ServiceExited { service, status, after } => {
            (service, ServiceStart::Exited { after: *after, status: status.clone() })
        }
        ContainerProgress::ServiceSilent { service, waited } => {
            (service, ServiceStart::Silent { waited: *waited })
        }
        ContainerProgress::ServiceUnstarted { service, .. } => (service, ServiceStart::Unstarted),
        _ => return,
    };
    if let Some(found) = account.services.iter_mut().find(|known| known.name == *service) {
        found.start = Some(start);
    }
}

/// The credentials and certificates that the operator's files add to each pull.
fn operators(settings: &ContainerSettings) -> io::Result<JobContext> {
    let text = |file: &Option<PathBuf>| file.as_ref().map(fs_err::read_to_string).transpose();
    let auth = text(&settings.registry_auth);
    let ca = text(&settings.ca);
    Ok(JobContext { registry_auth: auth?.map(Secret::new), ca: ca?, ..JobContext::default() })
}

/// The limits of what jobs may order in a pool; `None`: nothing.
fn order_settings(pool: &PoolConfig) -> Result<Option<OrderSettings>, CliError> {
    let known = provider::find(&pool.provider.kind)?;
    Ok(known.orders.and_then(|orders| orders(&pool.name, &pool.provider.table)))
}

/// The order of a job, or `None` if the pool's own instances serve it. Judged before the job takes an instance.
pub(super) fn ordered(
    call: &DriverCall,
    pool: &PoolConfig,
    response: &JobResponse,
    dirs: Option<&JobDirs>,
) -> Result<Option<JobOrder>, CliError> {
    let Some(settings) = order_settings(pool)? else { return Ok(None) };
    if let Some(service) = settings.unprivileged(&response.containers) {
        let others = privileged_pools(call.context.config()?, &response.containers);
        return Err(CliError::impossible(messages::needs_privileges(&service, &pool.name, &others)));
    }
    let about = JobContext {
        runner_variables: added_by_runner(|name| std::env::var_os(name)),
        ..JobContext::default()
    };
    let dirs: Vec<&str> = dirs.iter().flat_map(|dirs| [dirs.builds.as_str(), dirs.cache.as_str()]).collect();
    let order = settings
        .judge(&response.containers, &about, &dirs)
        .map_err(|refusal| CliError::impossible(refusal.to_string()))?;
    for remark in order.iter().flat_map(|order| &order.remarks) {
        ui::tell(remark);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use greenroom_core::container::request::ServiceRequest;

    use super::*;
    use crate::cli::setup::tests::refused;

    #[test]
    fn prepare_refuses_what_a_provider_cannot_do() {
        let image = ImageRequest { name: "ruby:3.3".to_owned(), ..ImageRequest::default() };
        let request = ContainerRequest { image: Some(image), ..ContainerRequest::default() };
        for (text, wrong) in refused() {
            let config = Config::parse(&text, "greenroom.toml").unwrap();
            let pool = config.pools.values().next().unwrap();
            let error =
                judged(&config, pool, pool.containers.as_ref().unwrap(), &request, false).unwrap_err();
            assert!(error.in_a_line().contains(wrong), "{error:?}");
        }
    }

    #[test]
    fn jobs_meet_where_an_instance_serves_several_of_them() {
        for (kind, pool, host, expected) in [
            ("qemu", "", "", false),
            ("qemu", "max_use_count = 2", "", true),
            ("qemu", "max_use_count = 0", "", true),
            ("qemu", "max_use_count = 2\ncapacity_per_instance = 2", "", true),
            // Root cleans each host between two jobs.
            ("static", "", "", false),
            ("static", "capacity_per_instance = 2", "", true),
            ("static", "", "capacity = 2", true),
        ] {
            let registration = provider::find(kind).unwrap();
            let mut provider: toml::Table = registration.example.parse().unwrap();
            provider.insert("kind".to_owned(), kind.into());
            let hosts = provider.get_mut("host").and_then(toml::Value::as_array_mut);
            for known in hosts.into_iter().flatten() {
                let more: toml::Table = host.parse().unwrap();
                known.as_table_mut().unwrap().extend(more);
            }
            let mut pool: toml::Table = format!("max_instances = 2\n{pool}").parse().unwrap();
            pool.insert("provider".to_owned(), provider.into());
            let pools = toml::Table::from_iter([("a".to_owned(), pool.into())]);
            let text = toml::to_string(&toml::Table::from_iter([("pool".to_owned(), pools.into())])).unwrap();
            let config = Config::parse(&text, "greenroom.toml").unwrap();
            let meet = jobs_meet(config.pools.values().next().unwrap(), registration);
            assert_eq!(meet, expected, "{text}");
        }
    }

    #[test]
    fn docker_in_docker_runs_in_pools_with_privileged_services() {
        let mut provider: toml::Table = provider::find("qemu").unwrap().example.parse().unwrap();
        provider.insert("kind".to_owned(), "qemu".into());
        let pools = [
            ("any", ""),
            ("closed", "privileged = false"),
            ("docker", "privileged = [\"docker:*\"]"),
            ("other", "services = [\"postgres:*\"]"),
            ("several", "max_use_count = 3"),
        ];
        let pools = pools.map(|(name, keys)| {
            let mut pool: toml::Table = "max_instances = 2".parse().unwrap();
            let mut containers: toml::Table = keys.parse().unwrap();
            pool.extend(containers.remove("max_use_count").map(|count| ("max_use_count".to_owned(), count)));
            pool.insert("containers".to_owned(), containers.into());
            pool.insert("provider".to_owned(), provider.clone().into());
            (name.to_owned(), pool.into())
        });
        let text = toml::Table::from_iter([
            ("default_pool".to_owned(), "any".into()),
            ("pool".to_owned(), toml::Table::from_iter(pools).into()),
        ]);
        let config = Config::parse(&toml::to_string(&text).unwrap(), "greenroom.toml").unwrap();
        let named = |name: &str| ImageRequest { name: name.to_owned(), ..ImageRequest::default() };
        let service = |name: &str| ServiceRequest { image: named(name), ..ServiceRequest::default() };
        let request = |services: &[&str]| ContainerRequest {
            image: Some(named("docker:27")),
            services: services.iter().map(|name| service(name)).collect(),
            ..ContainerRequest::default()
        };
        for (services, expected) in [
            (&["docker:dind"][..], vec!["any", "docker"]),
            (&["docker:dind", "postgres:17"], vec!["any", "docker"]),
        ] {
            let pools = privileged_pools(&config, &request(services));
            assert_eq!(pools.iter().map(PoolName::as_str).collect::<Vec<_>>(), expected, "{services:?}");
        }
    }
}
