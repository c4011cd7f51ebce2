//! A plugin that is started when it is called, and again after it has exited.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::time::Pretty;
use tokio::sync::Mutex;

use crate::fleeting::group::{CallError, CallErrorKind, ConnectInfo, Group, GroupInfo, Seen};
use crate::fleeting::wire::messages::{
    ConnectInfoResponse, Empty, IncreaseRequest, IncreaseResponse, InstanceRequest, InstancesRequest,
    InstancesResponse,
};

mod answers;
mod backoff;
mod config_json;
mod failures;
mod handshake;
mod line;
mod lines;
mod log;
mod process;
mod rate;
mod running;
mod secrets;
mod settings;
mod socket_dir;

use backoff::Backoff;
use log::Log;
use running::{Failed, NotStarted, Running};
use secrets::Secrets;
pub use settings::{Connector, Deadlines, Pauses, PluginSettings};

/// A plugin's program, and its process while it runs.
pub struct Plugin {
    settings: PluginSettings,
    log: Arc<Log>,
    running: Mutex<Option<Rc<Running>>>,
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
    async fn running(&self) -> Result<Rc<Running>, CallError> {
        let mut running = self.running.lock().await;
        let pauses = &self.settings.pauses;
        if let Some(known) = &*running {
            let Some(end) = known.end() else { return Ok(Rc::clone(known)) };
            let why = self.log.explain(&format!("the plugin {end}"));
            tracing::warn!(pool = %self.settings.pool, "{why}");
            self.backoff.borrow_mut().exited(why, known.since.elapsed(), pauses, Instant::now());
            *running = None;
        }
        if let Some((kind, why, left)) = self.backoff.borrow().waits(Instant::now()) {
            let left = Pretty(left.max(Duration::from_secs(1)));
            return Err(CallError::new(kind, format!("{why}; it is started again in {left}")));
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
    async fn start(&self) -> Result<Running, CallError> {
        let NotStarted { error, by_init } = match Running::start(&self.settings, &self.log).await {
            Ok(started) => return Ok(started),
            Err(not_started) => not_started,
        };
        if !by_init || !self.settings.static_optional || !self.settings.connector.use_static_credentials {
            return Err(error);
        }
        let mut without = self.settings.clone();
        without.connector.use_static_credentials = false;
        // If that fails, too, the credentials are not the cause.
        let Ok(mut started) = Running::start(&without, &self.log).await else { return Err(error) };
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

    fn judge(&self, name: &str, limit: Duration, failed: Failed) -> CallError {
        match failed {
            Failed::Answered(status) => failures::answered(name, &status, limit, &self.log.secrets()),
            Failed::Lost(error) => error,
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
            Ok(answer) => Ok(answers::only_asked(answer.succeeded, ids)),
            Err(Failed::Answered(status)) => {
                let done = answers::only_asked(failures::done_in_part(name, &status), ids);
                let error = failures::answered(name, &status, limit, &self.log.secrets());
                if done.is_empty() {
                    return Err(error);
                }
                let (pool, part) = (&self.settings.pool, done.len());
                tracing::warn!(%pool, "{} ({part} of {} instances were accepted)", error.message, ids.len());
                Ok(done)
            }
            Err(Failed::Lost(error)) => Err(error),
        }
    }
}

#[async_trait(?Send)]
impl Group for Plugin {
    fn forget_failures(&self) {
        self.backoff.borrow_mut().forget();
    }

    async fn info(&self) -> Result<GroupInfo, CallError> {
        Ok(self.running().await?.info.clone())
    }

    async fn update(&self) -> Result<Vec<Seen>, CallError> {
        let running = self.running().await?;
        let limit = self.settings.deadlines.update;
        let answer = running.update(limit).await.map_err(|failed| self.judge("Update", limit, failed))?;
        answer.map_err(|why| CallError::new(CallErrorKind::Refused, why))
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
        Ok(answers::only_asked(answer.succeeded, ids))
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
        let info = answers::connect_info(answer);
        let info = info.map_err(|why| CallError::new(CallErrorKind::Refused, why))?;
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
