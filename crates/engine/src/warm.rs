//! Pulls images on idle instances, in the way that `prepare` pulls a job's.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, AbortRegistration, Either, select};
use greenroom_core::container::engine::EnginePlace;
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::spec::ContainerJob;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::InstanceId;
use greenroom_core::images::SeenImages;
use greenroom_core::instance::{Instance, Phase};
use greenroom_core::plan::{FailingCall, Pulls, backoff, warm};
use greenroom_core::policy::Timing;
use greenroom_core::pool::PoolState;
use greenroom_core::time::Stamp;
use greenroom_ports::connector::RemoteCommand;
use greenroom_ports::setup::{PoolSetup, Traces};

use super::container::ContainerError;
use super::container::progress::Watcher;
use super::container::script::pulling;
use super::effect::EffectResult;
use super::{Engine, EngineError};

/// The time that the script needs beside the pull.
pub const MARGIN: Duration = Duration::from_mins(1);

/// The script that pulls a job's image where no instance has it yet; `None`: it would have credentials in it. The same
/// text for the same job.
pub fn public_script(job: &ContainerJob) -> Option<String> {
    let has_login = job.containers().any(|container| container.login.is_some());
    let name = ContainerName::of_pull(Stamp::from((0, 0, 0, 0)), false);
    (!has_login).then(|| pulling(&name, job))
}

/// An image on an instance.
pub(super) type Place = (InstanceId, Arc<str>);

/// The pulls in advance of this process.
#[derive(Debug, Default)]
pub(super) struct Warming {
    under_way: BTreeMap<InstanceId, (Arc<str>, AbortHandle)>,
    failing: BTreeMap<Place, FailingCall>,
}

impl Warming {
    /// The pulls, for the next pass.
    pub(super) fn seen(&self) -> Pulls {
        let under_way = self.under_way.iter().map(|(id, (image, _))| (id.clone(), Arc::clone(image)));
        Pulls { under_way: under_way.collect(), failing: self.failing.clone() }
    }

    /// `None`: the instance pulls already.
    pub(super) fn begin(&mut self, instance: &InstanceId, image: &Arc<str>) -> Option<AbortRegistration> {
        if self.under_way.contains_key(instance) {
            return None;
        }
        let (handle, registration) = AbortHandle::new_pair();
        self.under_way.insert(instance.clone(), (Arc::clone(image), handle));
        Some(registration)
    }

    /// Stops the pulls whose instance is no longer idle, or whose image is no longer wanted.
    pub(super) fn stop_unfit(&self, state: &PoolState) {
        for (id, (image, handle)) in &self.under_way {
            if !warm::goes_on(state, id, image) {
                handle.abort();
            }
        }
    }

    pub(super) fn stop_all(&self) {
        for (_, handle) in self.under_way.values() {
            handle.abort();
        }
    }

    /// A pull has ended. One that was stopped says nothing.
    pub(super) fn note(&mut self, place: Place, outcome: EffectResult, now: Stamp, timing: &Timing) {
        self.under_way.remove(&place.0);
        match outcome {
            EffectResult::Failed(failure)
            | EffectResult::NoResponse(failure, _)
            | EffectResult::Unreached(failure, ..) => {
                let failures = self.failing.get(&place).map_or(0, |call| call.failures).saturating_add(1);
                let until = backoff::retry_at(&failure.class, failures, now, timing);
                self.failing.insert(place, FailingCall { failures, failure, until });
            }
            EffectResult::Fine => drop(self.failing.remove(&place)),
            EffectResult::Refused | EffectResult::Gone | EffectResult::Again | EffectResult::Unfit(_) => {}
        }
    }

    /// Pulls that failed are repeated at once.
    pub(super) fn forget_failures(&mut self) {
        self.failing.clear();
    }

    /// The instance no longer exists.
    pub(super) fn forget(&mut self, gone: &InstanceId) {
        self.failing.retain(|(id, _), _| id != gone);
    }
}

/// The traces that a job may have left on an instance. A static host in service was cleaned by root since its last job.
fn traces(instance: &Instance) -> Traces {
    let is_clean = if instance.is_static() { instance.phase == Phase::Ready } else { instance.uses == 0 };
    if is_clean && instance.holders.is_empty() { Traces::None } else { Traces::Possible }
}

impl Engine {
    /// Checks an instance that has just booted, and pulls what the first waiting job needs meanwhile. The check decides
    /// when the job gets the instance: then the pulls stop.
    pub(super) async fn beside_pulls(
        &self,
        id: &InstanceId,
        setup: &PoolSetup,
        check: impl Future<Output = Result<EffectResult, EngineError>>,
    ) -> Result<EffectResult, EngineError> {
        // Without a command, the job gets the instance before a pull could begin.
        if setup.pulls.is_none() || setup.ready_command.is_none() {
            return check.await;
        }
        match select(pin!(check), pin!(self.pull_ahead(id, setup))).await {
            Either::Left((checked, _)) => checked,
            Either::Right(((), check)) => check.await,
        }
    }

    /// Pulls the images of [`warm::ahead`] on an instance. A failed pull is repeated by the job, which reports it.
    async fn pull_ahead(&self, id: &InstanceId, setup: &PoolSetup) {
        let Ok(state) = self.store.load().await else { return };
        for image in warm::ahead(&state, id) {
            match self.warm(id, &image, setup).await {
                Ok(EffectResult::Failed(failure)) => {
                    tracing::debug!(pool = %self.pool, "pull {image} on {id}: {failure}");
                }
                Ok(_) => {}
                Err(problem) => tracing::debug!(pool = %self.pool, "pull {image} on {id}: {problem}"),
            }
        }
    }

    /// Pulls one image. A keeper that dies meanwhile leaves nothing behind: the script ends with its connection, and the
    /// next keeper pulls what is not recorded.
    pub(super) async fn warm(
        &self,
        id: &InstanceId,
        image: &Arc<str>,
        setup: &PoolSetup,
    ) -> Result<EffectResult, EngineError> {
        let failed = |class, message| Ok(EffectResult::Failed(Failure { class, message }));
        let Some(pulls) = &setup.pulls else { return Ok(EffectResult::Fine) };
        let state = self.store.load().await?;
        let Some(known) = state.instance(id) else { return Ok(EffectResult::Fine) };
        let job = match pulls.pull(image, traces(known)) {
            Ok(job) => job,
            Err(why) => return failed(ErrorClass::Invalid, why.to_string()),
        };
        if let Some(fact) =
            known.images.get(image).filter(|_| job.job.login_withheld && job.job.login.is_none())
        {
            // Without credentials, the registry would deny it: the image that is there stays, and counts as checked.
            let seen = SeenImages { found: vec![fact.image.clone()], removed: Vec::new() };
            self.commit(|state| warm::seen_by_keeper(state, id, &seen, self.now())).await?;
            return Ok(EffectResult::Fine);
        }
        let Some(endpoint) = known.endpoint.clone() else { return Ok(EffectResult::Fine) };
        let name = ContainerName::of_pull(self.now(), known.is_static());
        let script = pulling(&name, &job);
        let command = RemoteCommand {
            text: &EnginePlace::of(&name).reader(),
            input: &script,
            within: job.pull_timeout.saturating_add(MARGIN),
            start_within: setup.policy.timing.connect_timeout,
            // Of its own: dropping it ends the pull, and the connection of jobs stays free.
            shared: false,
        };
        let now = || self.now();
        let mut tell = |_| ();
        let mut watcher = Watcher::new(&job, &now, &mut tell);
        let end = match self.connector.command(id, &endpoint, command, &mut watcher).await {
            Ok(end) => end,
            Err(problem) => return failed(ErrorClass::Transient, problem.to_string()),
        };
        let seen = watcher.seen();
        if !seen.is_empty() {
            // CRASH: without this record, the next keeper asks the registry again.
            self.commit(|state| warm::seen_by_keeper(state, id, &seen, self.now())).await?;
        }
        match watcher.pulled(&end) {
            Ok(_) => Ok(EffectResult::Fine),
            Err(ContainerError::Impossible(why)) => failed(ErrorClass::Denied, why),
            Err(other) => failed(ErrorClass::Transient, other.to_string()),
        }
    }
}
