//! A [`Plugin`] that is started when it is called, and again after it has exited.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::time::Pretty;
use tokio::sync::Mutex;

use super::group::{CallError, CallErrorKind, ConnectInfo, GroupInfo, InstanceGroup, SeenInstance};
use super::wire::{
    ConnectInfoResponse, Empty, IncreaseRequest, IncreaseResponse, InstanceRequest, InstancesRequest,
    InstancesResponse,
};

mod answers;
mod log;
mod process;
mod running;
mod secrets;
mod settings;

use answers::{answered_failure, connect_info, done_in_part, only_asked};
use log::Log;
use running::{CallFailure, RunningPlugin, StartFailure};
use secrets::Secrets;

pub use settings::{ConnectorSettings, Deadlines, Pauses, PluginSettings};

/// Pause after a configuration that the plugin refuses: only the operator ends that.
const REFUSED: Duration = Duration::from_mins(10);

/// A plugin's program, and its process while it runs.
pub struct Plugin {
    settings: PluginSettings,
    log: Arc<Log>,
    running: Mutex<Option<Rc<RunningPlugin>>>,
    backoff: RefCell<Backoff>,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Plugin {
    /// Starts nothing yet.
    pub fn new(settings: PluginSettings) -> Self {
        let mut secrets = Secrets::default();
        secrets.add_table(&settings.config);
        secrets.add(&settings.connector.password);
        secrets.add(&String::from_utf8_lossy(&settings.connector.key));
        let log = Log::new(settings.pool.clone(), secrets);
        Self { settings, log, running: Mutex::new(None), backoff: RefCell::default() }
    }

    /// The running plugin, started if need be.
    async fn running(&self) -> Result<Rc<RunningPlugin>, CallError> {
        let mut running = self.running.lock().await;
        let pauses = &self.settings.pauses;
        if let Some(known) = &*running {
            let Some(end) = known.end() else { return Ok(Rc::clone(known)) };
            let why = self.log.explain(&format!("the plugin {end}"));
            tracing::warn!(pool = %self.settings.pool, "{why}");
            self.backoff.borrow_mut().exited(why, known.since.elapsed(), pauses, Instant::now());
            *running = None;
        }
        if let Some((pause, left)) = self.backoff.borrow().waits(Instant::now()) {
            let left = Pretty(left.max(Duration::from_secs(1)));
            let why = format!("{}; it is started again in {left}", pause.why);
            return Err(CallError::new(pause.kind, why));
        }
        // What the files of secrets contain now.
        for value in self.settings.environment.secret_values() {
            self.log.add_secret(&value);
        }
        match self.start().await {
            Ok(started) => Ok(Rc::clone(running.insert(Rc::new(started)))),
            Err(error) => {
                let mut backoff = self.backoff.borrow_mut();
                backoff.not_started(error.kind, error.message.clone(), pauses, Instant::now());
                Err(error)
            }
        }
    }

    /// A new process. If it refuses static credentials, and may do without them, one without them.
    async fn start(&self) -> Result<RunningPlugin, CallError> {
        let StartFailure { error, by_init } = match RunningPlugin::start(&self.settings, &self.log).await {
            Ok(started) => return Ok(started),
            Err(not_started) => not_started,
        };
        if !by_init || !self.settings.static_optional || !self.settings.connector.use_static_credentials {
            return Err(error);
        }
        let mut without = self.settings.clone();
        without.connector.use_static_credentials = false;
        // If that fails, too, the credentials are not the cause.
        let Ok(mut started) = RunningPlugin::start(&without, &self.log).await else { return Err(error) };
        tracing::warn!(pool = %self.settings.pool, "started without static credentials: {}", error.message);
        started.info.refusal = Some(error.message);
        Ok(started)
    }

    /// Ends the plugin's process, in order. A later call starts it again. False if it had to be killed.
    pub async fn close(&self) -> bool {
        match self.running.lock().await.take() {
            Some(running) => running.close().await,
            None => true,
        }
    }

    fn judge(&self, name: &str, limit: Duration, failed: CallFailure) -> CallError {
        match failed {
            CallFailure::Answered(status) => answered_failure(name, &status, limit, &self.log.secrets()),
            CallFailure::Unusable(error) => CallError::new(CallErrorKind::Refused, error.to_string()),
            CallFailure::Lost(error) => error,
        }
    }

    /// `Suspend` and `Resume`, which may be done in part.
    async fn change(
        &self,
        name: &'static str,
        path: &'static str,
        ids: &[String],
    ) -> Result<Vec<String>, CallError> {
        let running = self.running().await?;
        if !running.info.suspends {
            let why = "the plugin cannot suspend and resume instances";
            return Err(CallError::new(CallErrorKind::Unsupported, why));
        }
        let limit = self.settings.deadlines.suspend;
        let request = InstancesRequest { instances: ids.to_vec() };
        let call = running.client.unary::<_, InstancesResponse>(path, request, limit);
        match running.call(name, limit, call).await {
            Ok(answer) => Ok(only_asked(answer.succeeded, ids)),
            Err(CallFailure::Answered(status)) => {
                let done = only_asked(done_in_part(name, &status), ids);
                let error = answered_failure(name, &status, limit, &self.log.secrets());
                if done.is_empty() {
                    return Err(error);
                }
                let pool = &self.settings.pool;
                let part = done.len();
                tracing::warn!(%pool, "{} ({part} of {} instances were accepted)", error.message, ids.len());
                Ok(done)
            }
            Err(failed) => Err(self.judge(name, limit, failed)),
        }
    }
}

#[async_trait(?Send)]
impl InstanceGroup for Plugin {
    fn forget_failures(&self) {
        self.backoff.borrow_mut().forget();
    }

    async fn info(&self) -> Result<GroupInfo, CallError> {
        Ok(self.running().await?.info.clone())
    }

    async fn update(&self) -> Result<Vec<SeenInstance>, CallError> {
        let running = self.running().await?;
        let limit = self.settings.deadlines.update;
        running.update(limit).await.map_err(|failed| self.judge("Update", limit, failed))
    }

    async fn increase(&self, count: u32) -> Result<u32, CallError> {
        let running = self.running().await?;
        let limit = self.settings.deadlines.increase;
        let path = "/proto.InstanceGroup/Increase";
        let call = running.client.unary::<_, IncreaseResponse>(path, IncreaseRequest { n: count }, limit);
        let answer = running.call("Increase", limit, call).await;
        let accepted = answer.map_err(|failed| self.judge("Increase", limit, failed))?.succeeded;
        if accepted > count {
            let pool = &self.settings.pool;
            tracing::warn!(%pool, "the plugin accepted {accepted} instances, more than the {count} requested");
        }
        Ok(accepted.min(count))
    }

    async fn decrease(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        let running = self.running().await?;
        let limit = self.settings.deadlines.decrease;
        let path = "/proto.InstanceGroup/Decrease";
        let request = InstancesRequest { instances: ids.to_vec() };
        let call = running.client.unary::<_, InstancesResponse>(path, request, limit);
        let answer = running.call("Decrease", limit, call).await;
        let answer = answer.map_err(|failed| self.judge("Decrease", limit, failed))?;
        Ok(only_asked(answer.succeeded, ids))
    }

    async fn connect_info(&self, id: &str) -> Result<ConnectInfo, CallError> {
        let running = self.running().await?;
        if !running.listed.borrow().contains(id) {
            let why = format!("the plugin's last list does not have the instance `{id}`");
            return Err(CallError::new(CallErrorKind::Refused, why));
        }
        let limit = self.settings.deadlines.connect_info;
        let path = "/proto.InstanceGroup/ConnectInfo";
        let request = InstanceRequest { instance: id.to_owned() };
        let call = running.client.unary::<_, ConnectInfoResponse>(path, request, limit);
        let answer = running.call("ConnectInfo", limit, call).await;
        let answer = answer.map_err(|failed| self.judge("ConnectInfo", limit, failed))?;
        let unusable = |error| self.judge("ConnectInfo", limit, CallFailure::Unusable(error));
        let info = connect_info(answer).map_err(unusable)?;
        self.log.add_secret(&info.password);
        self.log.add_secret(&String::from_utf8_lossy(&info.key));
        Ok(info)
    }

    async fn heartbeat(&self, id: &str) -> Result<(), CallError> {
        let running = self.running().await?;
        let limit = self.settings.deadlines.heartbeat;
        let path = "/proto.InstanceGroup/Heartbeat";
        let request = InstanceRequest { instance: id.to_owned() };
        let call = running.client.unary::<_, Empty>(path, request, limit);
        let answer = running.call("Heartbeat", limit, call).await;
        match answer.map_err(|failed| self.judge("Heartbeat", limit, failed)) {
            // Older plugins have no check of their own.
            Err(error) if error.kind == CallErrorKind::Unsupported => Ok(()),
            answer => answer.map(drop),
        }
    }

    async fn suspend(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        self.change("Suspend", "/proto.InstanceGroup/Suspend", ids).await
    }

    async fn resume(&self, ids: &[String]) -> Result<Vec<String>, CallError> {
        self.change("Resume", "/proto.InstanceGroup/Resume", ids).await
    }
}

/// Ends of the plugin's last runs, and the pause after them.
#[derive(Debug, Clone, Default)]
struct Backoff {
    /// Ends in a row.
    failures: u32,
    pause: Option<StartPause>,
}

/// The reason a plugin does not run, and until when it is not started.
#[derive(Debug, Clone)]
struct StartPause {
    kind: CallErrorKind,
    why: String,
    until: Instant,
}

impl Backoff {
    /// A run ended by itself after `ran`. The first such end is followed by a start without a pause.
    pub(super) fn exited(&mut self, why: String, ran: Duration, pauses: &Pauses, now: Instant) {
        if ran >= pauses.forgiven_after {
            self.failures = 0;
        }
        let pause = if self.failures == 0 { Duration::ZERO } else { self.next_pause(pauses) };
        self.failures += 1;
        self.pause = Some(StartPause { kind: CallErrorKind::NotStarted, why, until: now + pause });
    }

    /// A start failed.
    pub(super) fn not_started(&mut self, kind: CallErrorKind, why: String, pauses: &Pauses, now: Instant) {
        self.failures += 1;
        let pause = if kind == CallErrorKind::Configuration { REFUSED } else { self.next_pause(pauses) };
        self.pause = Some(StartPause { kind, why, until: now + pause });
    }

    fn next_pause(&self, pauses: &Pauses) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures.saturating_sub(1)).unwrap_or(u32::MAX);
        pauses.first.saturating_mul(doubled).min(pauses.longest)
    }

    /// The operator has removed the cause: it may be started at once.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns why the plugin may not be started now, and how long that lasts.
    fn waits(&self, now: Instant) -> Option<(&StartPause, Duration)> {
        let pause = self.pause.as_ref()?;
        let left = pause.until.saturating_duration_since(now);
        (!left.is_zero()).then_some((pause, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(10),
        forgiven_after: Duration::from_mins(1),
    };

    fn left(backoff: &Backoff, now: Instant) -> u64 {
        backoff.waits(now).map_or(0, |(_, left)| left.as_secs())
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            backoff.not_started(CallErrorKind::NotStarted, "no".into(), &PAUSES, now);
            pauses.push(left(&backoff, now));
        }
        assert_eq!(pauses[..6], [1, 2, 4, 8, 10, 10]);
        assert_eq!(pauses[39], 10);
        assert_eq!(left(&backoff, now + Duration::from_secs(10)), 0, "it may be started then");
    }

    #[test]
    fn one_crash_is_followed_by_a_start_and_a_series_by_pauses() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let short = Duration::from_secs(5);
        let pauses = [(); 4].map(|()| {
            backoff.exited("crash".into(), short, &PAUSES, now);
            left(&backoff, now)
        });
        assert_eq!(pauses, [0, 1, 2, 4]);
        backoff.exited("crash".into(), Duration::from_mins(2), &PAUSES, now);
        assert_eq!(left(&backoff, now), 0, "a long run begins anew");
    }

    #[test]
    fn a_refused_configuration_waits_for_the_operator() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        backoff.not_started(CallErrorKind::Configuration, "no zone".into(), &PAUSES, now);
        let (pause, left) = backoff.waits(now).unwrap();
        assert_eq!(
            (pause.kind, pause.why.as_str(), left),
            (CallErrorKind::Configuration, "no zone", REFUSED)
        );
        backoff.forget();
        assert!(backoff.waits(now).is_none());
    }
}
