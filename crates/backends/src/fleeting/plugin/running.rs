//! A started plugin and its calls: [`RunningPlugin`].

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_providers::launch::random;
use tonic::Status;

use super::answers::{
    List, PluginAnswerError, group_info, init_failure, is_late, is_transport, late_failure,
};
use super::log::Log;
use super::process::{PluginEnd, PluginProcess};
use super::settings::{PluginSettings, config_bytes};
use crate::fleeting::group::{CallError, CallErrorKind, GroupInfo, PluginStart, SeenInstance};
use crate::fleeting::wire::{
    self, HealthCheckRequest, HealthCheckResponse, InitRequest, InitResponse, PluginClient, StdioData,
    UpdateResponse,
};
use greenroom_core::text::with_causes;

const INIT: &str = "/proto.InstanceGroup/Init";
const UPDATE: &str = "/proto.InstanceGroup/Update";
/// The time limit for a plugin to exit after its connection has failed, or after it was asked to exit.
const EXITING: Duration = Duration::from_secs(2);
/// The time limit for the guard process ([`plugin_guard`](crate::fleeting::plugin_guard)) to end the plugin.
const KILLING: Duration = Duration::from_secs(10);

/// A process that has accepted its configuration.
pub(super) struct RunningPlugin {
    pub(super) client: PluginClient,
    /// `None`: it was given up, and its guard process ends it.
    process: RefCell<Option<Rc<PluginProcess>>>,
    pub(super) log: Arc<Log>,
    pub(super) info: GroupInfo,
    pub(super) since: Instant,
    /// The ids of the last update.
    pub(super) listed: RefCell<HashSet<String>>,
    health_limit: Duration,
}

/// The reason a call of a [`RunningPlugin`] has no answer.
pub(super) enum CallFailure {
    /// The plugin answered with an error.
    Answered(Status),
    /// The plugin answered with what Greenroom cannot use.
    Unusable(PluginAnswerError),
    /// The plugin exited, or did not answer.
    Lost(CallError),
}

/// The reason no process has accepted its configuration.
pub(super) struct StartFailure {
    pub(super) error: CallError,
    /// True if the plugin's `Init` answered with an error.
    pub(super) by_init: bool,
}

impl From<CallError> for StartFailure {
    fn from(error: CallError) -> Self {
        Self { error, by_init: false }
    }
}

impl RunningPlugin {
    pub(super) async fn start(settings: &PluginSettings, log: &Arc<Log>) -> Result<Self, StartFailure> {
        if let Err(error) = settings.connector.check() {
            return Err(CallError::new(CallErrorKind::Configuration, error.to_string()).into());
        }
        log.begin();
        let path = (settings.program)().map_err(|missing| {
            CallError::new(CallErrorKind::NotStarted, format!("{missing}: {}", missing.help()))
        })?;
        let not_started = |why: String| {
            let why = format!("the plugin `{}` cannot be started: {why}", path.display());
            CallError::new(CallErrorKind::NotStarted, why)
        };
        let process = PluginProcess::start(settings, &path, log).await;
        let process = process.map_err(|error| not_started(with_causes(&error)))?;
        let client = PluginClient::new(&process.socket);
        // Before `Init`: a plugin that prints much would wait for a reader.
        tokio::spawn(stream_stdio(client.clone(), Arc::clone(log)));
        let limit = settings.deadlines.init;
        let request = InitRequest {
            config: config_bytes(&settings.config),
            settings: Some(wire::Settings { connector_config: Some(settings.connector.message()) }),
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, client.unary(INIT, request, limit)) => answer,
            end = process.ended() => return Err(not_started(log.explain(&format!("it {end} during Init"))).into()),
        };
        let answer: InitResponse = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) if is_transport(&status) => {
                let end = tokio::time::timeout(EXITING, process.ended()).await;
                let end = end.unwrap_or(PluginEnd::Disconnected);
                return Err(not_started(log.explain(&format!("it {end} during Init"))).into());
            }
            Ok(Err(status)) => {
                let error = init_failure(&status, limit, &log.secrets());
                return Err(StartFailure { error, by_init: !is_late(&status) });
            }
            Err(_) => return Err(not_started(late_failure("Init", limit).message).into()),
        };
        let mut info = group_info(&answer)
            .map_err(|error| CallError::new(CallErrorKind::Configuration, error.to_string()))?;
        let id = random().map_err(|error| not_started(error.to_string()))?;
        info.start = PluginStart { id, is_static: settings.connector.use_static_credentials };
        tracing::info!(pool = %settings.pool, version = %info.version, group = %info.id, "the plugin has started");
        Ok(Self {
            client,
            process: RefCell::new(Some(Rc::new(process))),
            log: Arc::clone(log),
            info,
            since: Instant::now(),
            listed: RefCell::default(),
            health_limit: settings.deadlines.health,
        })
    }

    /// The end of the process; `None`: it runs.
    pub(super) fn end(&self) -> Option<PluginEnd> {
        let process = self.process.borrow().clone();
        process.map_or(Some(PluginEnd::Unresponsive), |process| process.end())
    }

    /// Waits for an answer within the limit. The end of the process ends the wait.
    pub(super) async fn call<R>(
        &self,
        name: &str,
        limit: Duration,
        call: impl Future<Output = Result<R, Status>>,
    ) -> Result<R, CallFailure> {
        let Some(process) = self.process.borrow().clone() else { return Err(CallFailure::Lost(gone(name))) };
        let answer = tokio::select! {
            biased;
            answer = tokio::time::timeout(limit, call) => answer,
            end = process.ended() => return Err(CallFailure::Lost(self.exited(name, &end))),
        };
        let status = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => status,
            Err(_) => {
                self.check_health().await;
                return Err(CallFailure::Lost(late_failure(name, limit)));
            }
        };
        if !is_transport(&status) && !is_late(&status) {
            return Err(CallFailure::Answered(status));
        }
        // The connection breaks before the guard process has reported the end.
        match tokio::time::timeout(EXITING, process.ended()).await {
            Ok(end) => Err(CallFailure::Lost(self.exited(name, &end))),
            Err(_) if is_late(&status) => Err(CallFailure::Lost(late_failure(name, limit))),
            Err(_) => {
                self.check_health().await;
                let why = format!("the connection to the plugin broke during {name}");
                Err(CallFailure::Lost(CallError::new(CallErrorKind::Unknown, self.log.explain(&why))))
            }
        }
    }

    fn exited(&self, name: &str, end: &PluginEnd) -> CallError {
        let why = self.log.explain(&format!("the plugin {end} during {name}"));
        CallError::new(CallErrorKind::Unknown, why)
    }

    /// Gives the process up if it does not answer at all.
    async fn check_health(&self) {
        let request = HealthCheckRequest::default();
        let check = self.client.unary(wire::HEALTH, request, self.health_limit);
        let check: Result<Result<HealthCheckResponse, Status>, _> =
            tokio::time::timeout(self.health_limit, check).await;
        // An error is an answer, too: some plugins do not have this service.
        let is_dead = match check {
            Ok(Ok(_)) => false,
            Ok(Err(status)) => is_transport(&status) || is_late(&status),
            Err(_) => true,
        };
        if is_dead {
            self.process.take();
        }
    }

    /// All instances.
    pub(super) async fn update(&self, limit: Duration) -> Result<Vec<SeenInstance>, CallFailure> {
        let call = async {
            let mut stream = self.client.streaming(UPDATE, wire::Empty {}, Some(limit)).await?;
            let mut list = List::default();
            while let Some(answer) = stream.message().await? {
                let answer: UpdateResponse = answer;
                if let Err(unusable) = list.add(answer) {
                    return Ok(Err(unusable));
                }
            }
            Ok(Ok(list.all()))
        };
        let all = self.call("Update", limit, call).await?.map_err(CallFailure::Unusable)?;
        *self.listed.borrow_mut() = all.iter().map(|seen| seen.id.clone()).collect();
        Ok(all)
    }

    /// Asks the plugin to exit, and has it killed if it does not: then, false.
    pub(super) async fn close(&self) -> bool {
        let Some(process) = self.process.take() else { return true };
        let call = self.client.unary::<_, wire::Empty>(wire::SHUTDOWN, wire::Empty {}, EXITING);
        // The answer is usually a broken connection.
        let ended = async { tokio::join!(call, process.ended()).1 };
        if tokio::time::timeout(EXITING, ended).await.is_ok() {
            return true;
        }
        let ended = process.ended();
        drop(process);
        let _killed = tokio::time::timeout(KILLING, ended).await;
        false
    }
}

fn gone(name: &str) -> CallError {
    CallError::new(CallErrorKind::Unknown, format!("the plugin was killed before {name} was made"))
}

async fn stream_stdio(client: PluginClient, log: Arc<Log>) {
    // An error: the plugin does not have this service, or has exited.
    if let Ok(stream) = client.streaming::<_, StdioData>(wire::STREAM_STDIO, wire::Empty {}, None).await {
        log.drain_stream(stream).await;
    }
}
