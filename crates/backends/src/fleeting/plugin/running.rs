//! A started plugin and its calls.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_providers::launch::random;
use tonic::Status;

use super::answers::{self, List};
use super::log::Log;
use super::process::PluginProcess;
use super::settings::PluginSettings;
use super::{config_json, failures};
use crate::fleeting::group::{CallError, CallErrorKind, GroupInfo, Seen, Start};
use crate::fleeting::wire::client::Client;
use crate::fleeting::wire::messages::{self, InitRequest, InitResponse, UpdateResponse};
use crate::fleeting::wire::services::{self, HealthCheckRequest, HealthCheckResponse, StdioData};

const INIT: &str = "/proto.InstanceGroup/Init";
const UPDATE: &str = "/proto.InstanceGroup/Update";
/// How long a plugin may take to exit after its connection has failed, or after it was asked to exit.
const EXITING: Duration = Duration::from_secs(2);
/// How long the holder may take to end it.
const KILLING: Duration = Duration::from_secs(10);

/// A process that has accepted its configuration.
pub(super) struct Running {
    pub(super) client: Client,
    /// `None`: it was given up, and its holder ends it.
    process: RefCell<Option<Rc<PluginProcess>>>,
    pub(super) log: Arc<Log>,
    pub(super) info: GroupInfo,
    pub(super) since: Instant,
    /// The ids of the last update.
    pub(super) listed: RefCell<HashSet<String>>,
    health_limit: Duration,
}

/// Why a call has no answer.
pub(super) enum Failed {
    /// The plugin answered with an error.
    Answered(Status),
    /// It exited, or did not answer.
    Lost(CallError),
}

/// Why no process has accepted its configuration.
pub(super) struct NotStarted {
    pub(super) error: CallError,
    /// True if the plugin's `Init` answered with an error.
    pub(super) by_init: bool,
}

impl From<CallError> for NotStarted {
    fn from(error: CallError) -> Self {
        Self { error, by_init: false }
    }
}

impl Running {
    pub(super) async fn start(settings: &PluginSettings, log: &Arc<Log>) -> Result<Self, NotStarted> {
        if let Some(mistake) = settings.connector.mistake() {
            return Err(CallError::new(CallErrorKind::Configuration, mistake).into());
        }
        log.begin();
        let path = (settings.program)().map_err(|why| CallError::new(CallErrorKind::NotStarted, why))?;
        let not_started = |why: String| {
            let why = format!("the plugin `{}` cannot be started: {why}", path.display());
            CallError::new(CallErrorKind::NotStarted, why)
        };
        let process = PluginProcess::start(settings, &path, log).await.map_err(not_started)?;
        let client = Client::new(&process.socket);
        // Before `Init`: a plugin that prints much would wait for a reader.
        tokio::spawn(stream_stdio(client.clone(), Arc::clone(log)));
        let limit = settings.deadlines.init;
        let request = InitRequest {
            config: config_json::bytes(&settings.config),
            settings: Some(messages::Settings { connector_config: Some(settings.connector.message()) }),
        };
        let answer = tokio::select! {
            answer = tokio::time::timeout(limit, client.unary(INIT, request, limit)) => answer,
            end = process.ended() => return Err(not_started(log.explain(&format!("it {end} during Init"))).into()),
        };
        let answer: InitResponse = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(status)) if failures::is_transport(&status) => {
                let end = tokio::time::timeout(EXITING, process.ended()).await;
                let end = end.unwrap_or_else(|_| "closed its connection".to_owned());
                return Err(not_started(log.explain(&format!("it {end} during Init"))).into());
            }
            Ok(Err(status)) => {
                let error = failures::init(&status, limit, &log.secrets());
                return Err(NotStarted { error, by_init: !failures::is_late(&status) });
            }
            Err(_) => return Err(not_started(failures::late("Init", limit).message).into()),
        };
        let mut info =
            answers::group(&answer).map_err(|why| CallError::new(CallErrorKind::Configuration, why))?;
        let id = random().map_err(|error| not_started(error.to_string()))?;
        info.start = Start { id, is_static: settings.connector.use_static_credentials };
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

    /// How the process ended; `None`: it runs.
    pub(super) fn end(&self) -> Option<String> {
        let process = self.process.borrow().clone();
        process.map_or_else(|| Some("did not answer and was killed".to_owned()), |process| process.end())
    }

    /// Waits for an answer within the limit. The end of the process ends the wait.
    pub(super) async fn call<R>(
        &self,
        name: &str,
        limit: Duration,
        call: impl Future<Output = Result<R, Status>>,
    ) -> Result<R, Failed> {
        let Some(process) = self.process.borrow().clone() else { return Err(Failed::Lost(gone(name))) };
        let answer = tokio::select! {
            biased;
            answer = tokio::time::timeout(limit, call) => answer,
            end = process.ended() => return Err(Failed::Lost(self.exited(name, &end))),
        };
        let status = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => status,
            Err(_) => {
                self.check_health().await;
                return Err(Failed::Lost(failures::late(name, limit)));
            }
        };
        if !failures::is_transport(&status) && !failures::is_late(&status) {
            return Err(Failed::Answered(status));
        }
        // The connection breaks before the holder has reported the end.
        match tokio::time::timeout(EXITING, process.ended()).await {
            Ok(end) => Err(Failed::Lost(self.exited(name, &end))),
            Err(_) if failures::is_late(&status) => Err(Failed::Lost(failures::late(name, limit))),
            Err(_) => {
                self.check_health().await;
                let why = format!("the connection to the plugin broke during {name}");
                Err(Failed::Lost(CallError::new(CallErrorKind::Unknown, self.log.explain(&why))))
            }
        }
    }

    fn exited(&self, name: &str, end: &str) -> CallError {
        let why = self.log.explain(&format!("the plugin {end} during {name}"));
        CallError::new(CallErrorKind::Unknown, why)
    }

    /// Gives the process up if it does not answer at all.
    async fn check_health(&self) {
        let request = HealthCheckRequest::default();
        let check = self.client.unary(services::HEALTH, request, self.health_limit);
        let check: Result<Result<HealthCheckResponse, Status>, _> =
            tokio::time::timeout(self.health_limit, check).await;
        // An error is an answer, too: some plugins do not have this service.
        let is_dead = match check {
            Ok(Ok(_)) => false,
            Ok(Err(status)) => failures::is_transport(&status) || failures::is_late(&status),
            Err(_) => true,
        };
        if is_dead {
            self.process.take();
        }
    }

    /// All instances; an error is the plugin's answer.
    pub(super) async fn update(&self, limit: Duration) -> Result<Result<Vec<Seen>, String>, Failed> {
        let call = async {
            let mut stream = self.client.streaming(UPDATE, messages::Empty {}, Some(limit)).await?;
            let mut list = List::default();
            while let Some(answer) = stream.message().await? {
                let answer: UpdateResponse = answer;
                if let Err(why) = list.add(answer) {
                    return Ok(Err(why));
                }
            }
            Ok(Ok(list.all()))
        };
        let answer = self.call("Update", limit, call).await?;
        if let Ok(all) = &answer {
            *self.listed.borrow_mut() = all.iter().map(|seen| seen.id.clone()).collect();
        }
        Ok(answer)
    }

    /// Asks the plugin to exit, and has it killed if it does not: then, false.
    pub(super) async fn close(&self) -> bool {
        let Some(process) = self.process.take() else { return true };
        let call = self.client.unary::<_, messages::Empty>(services::SHUTDOWN, messages::Empty {}, EXITING);
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

async fn stream_stdio(client: Client, log: Arc<Log>) {
    // An error: the plugin does not have this service, or has exited.
    if let Ok(stream) =
        client.streaming::<_, StdioData>(services::STREAM_STDIO, messages::Empty {}, None).await
    {
        log.drain_stream(stream).await;
    }
}
