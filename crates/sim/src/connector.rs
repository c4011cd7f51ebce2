//! Reaches an instance exactly when it would respond.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, pending, select};
use greenroom_core::container::engine::EnginePlace;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::{AttemptName, InstanceId};
use greenroom_engine::recheck;
use greenroom_ports::connector::{
    ConnectError, Connector, Mark, Output, RemoteCommand, Stage, StageEnd, Stop, Stream,
};
use greenroom_ports::provider::InstanceKeys;

use super::fault::Fault;
use super::images::{self, Pull};
use super::process::Proc;
use super::scenario::IMPOSSIBLE;
use super::truth::Session;
use super::world::World;
use super::{check, early, fate, second, sick, stages, stopped};
use crate::exec::Channel;

/// The course of a process's script on the instance, which [`SimConnector`] plays.
#[derive(Debug, Clone)]
pub struct StagePlan {
    pub attempt: AttemptName,
    pub takes: u64,
    pub exit: u32,
    /// True if the script ignores being stopped: the runner abandons this call.
    pub stubborn: bool,
    /// True if the stage prepares the job's own script.
    pub first: bool,
}

/// The connection from one process to the instances.
#[derive(Debug, Clone)]
pub struct SimConnector {
    pub proc: Proc,
    /// The course of the stage, for `run` only.
    pub stage: Option<StagePlan>,
}

fn unreachable(at: &Endpoint) -> ConnectError {
    ConnectError::Unreachable { at: at.address.clone(), problem: "connection refused".to_owned() }
}

fn lost(at: &Endpoint, sent: bool) -> ConnectError {
    ConnectError::Lost { at: at.address.clone(), problem: "connection reset".to_owned(), sent }
}

impl SimConnector {
    /// One handshake: the instance must respond, with the recorded key.
    async fn handshake(
        &self,
        call: &'static str,
        id: &InstanceId,
        at: &Endpoint,
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.proc.step(call).await;
        let took = self.proc.world.borrow_mut().streams.latency.within(10..300);
        let limit = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        self.proc.pause(took.min(limit)).await;
        let answer = {
            let mut world = self.proc.world.borrow_mut();
            let cut = world.strikes(Fault::NetworkCut);
            if cut {
                let jobs: Vec<u64> = world.truth.jobs_on(id).map(|live| live.job).collect();
                for job in jobs {
                    world.truth.excuse(job, "the network of its manager failed");
                }
            }
            match world.cloud.machines.get(id).filter(|_| !cut) {
                // The address of before a resume reaches nothing.
                Some(m) if m.address() != at.address => Err(unreachable(at)),
                Some(m) if m.answers(world.now) && m.host_key == at.host_key => Ok(()),
                Some(m) if m.answers(world.now) => Err(ConnectError::HostKey {
                    at: at.address.clone(),
                    expected: at.host_key.clone(),
                    found: m.host_key.clone(),
                }),
                _ => Err(unreachable(at)),
            }
        };
        match &answer {
            Ok(()) => {
                stopped::reached(&mut self.proc.world.borrow_mut(), id);
                self.proc.log(format_args!("{call} {id}: ok"));
            }
            Err(problem) => self.proc.log(format_args!("{call} {id}: {problem}")),
        }
        answer
    }

    fn begins_none(&self, id: &InstanceId) -> bool {
        self.proc.world.borrow().cloud.machines.get(id).is_some_and(|m| m.begins_no_stage)
    }

    fn engine_broken(&self, id: &InstanceId) -> bool {
        self.proc.world.borrow().cloud.machines.get(id).is_some_and(|m| m.engine_broken)
    }

    /// A job's containers that cannot be prepared: what its script reports; `None`: they can.
    fn not_prepared(&self, id: &InstanceId) -> Option<&'static str> {
        let broken = self.engine_broken(id);
        let world = &mut *self.proc.world.borrow_mut();
        if !broken && let Some(report) = early::unreached(world, id) {
            return Some(report);
        }
        let (fault, report) = if broken {
            (Fault::EngineBroken, "unsound host `podman run` failed: no crun\n")
        } else if world.streams.images.chance(40) {
            (Fault::NotPrepared, "broken engine `database`: no space left on device\n")
        } else {
            return None;
        };
        world.cover.fault(fault);
        fate::excuse_jobs(world, id, "its containers are not prepared");
        Some(report)
    }

    /// The duration of the stage, and its exit status.
    fn course(&self, id: &InstanceId, plan: &StagePlan) -> (u64, u32) {
        let world = &mut *self.proc.world.borrow_mut();
        let fails =
            if plan.first && !plan.stubborn { early::strikes(world, id, &plan.attempt) } else { None };
        fails.map_or((plan.takes, plan.exit), |takes| (takes, 1))
    }

    /// A stage that the instance does not begin.
    async fn not_begun(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        let ms = {
            let mut world = self.proc.world.borrow_mut();
            world.cover.fault(Fault::BeginsNoStage);
            let jobs: Vec<u64> = world.truth.jobs_on(id).map(|live| live.job).collect();
            for job in jobs {
                world.truth.excuse(job, "its instance begins no stages");
            }
            world.streams.latency.within(10..5_000)
        };
        let answer = match select(Box::pin(self.work(id, ms)), stop).await {
            Either::Left((true, _)) => {
                let why = "the session ended with exit status 97 before the script began".to_owned();
                Err(ConnectError::NotBegun { at: at.address.clone(), why })
            }
            Either::Left((false, _)) => Err(lost(at, false)),
            Either::Right(_) => Ok(StageEnd::Stopped),
        };
        self.proc.log(format_args!("connector {id}: no stage begins: {answer:?}"));
        answer
    }

    /// A pull in advance, on a connection of its own.
    async fn pull(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        image: &Arc<str>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let (takes, fails) = images::course(&mut self.proc.world.borrow_mut());
        let pull = Pull::begin(&self.proc, id);
        self.proc.log(format_args!("pull {image} on {id}"));
        if !self.work(id, takes).await {
            return Err(lost(at, true));
        }
        let report = pull.end(image, fails);
        self.proc.log(format_args!("pulled {image} on {id}: {}", !fails));
        let written = output.write(Stream::Stdout, format!("pulling 0 always 1\n{report}").as_bytes()).await;
        Ok(StageEnd::Exited(u32::from(fails || written.is_err())))
    }

    /// The keeper's check of an engine.
    async fn engine_check(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let takes = self.proc.world.borrow_mut().streams.images.within(100..9_000);
        if !self.work(id, takes).await {
            return Err(lost(at, true));
        }
        let broken = self.engine_broken(id);
        self.proc.log(format_args!("the engine of {id} is checked: broken {broken}"));
        let found: &[u8] = if broken { b"unsound `podman run` failed: no crun\n" } else { b"sound\n" };
        let written = output.write(Stream::Stdout, found).await;
        Ok(StageEnd::Exited(u32::from(written.is_err())))
    }

    /// A job's containers.
    async fn prepare(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        images: &[Arc<str>],
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let takes = self.proc.world.borrow_mut().streams.images.within(100..9_000);
        if !self.work(id, takes).await {
            return Err(lost(at, true));
        }
        if let Some(report) = self.not_prepared(id) {
            self.proc.log(format_args!("no containers of {} on {id}: {report}", images.join(" ")));
            let _told = output.write(Stream::Stdout, report.as_bytes()).await;
            return Ok(StageEnd::Exited(1));
        }
        let report = images::prepared(&mut self.proc.world.borrow_mut(), id, images);
        self.proc.log(format_args!("containers of {} on {id}", images.join(" ")));
        let written = output.write(Stream::Stdout, report.as_bytes()).await;
        Ok(StageEnd::Exited(u32::from(written.is_err())))
    }

    /// Time passes on the instance; ends early when it dies.
    async fn work(&self, id: &InstanceId, ms: u64) -> bool {
        let until = self.proc.now_ms().saturating_add(ms);
        let channels = [Channel::Instance(id.clone())];
        let dead = |world: &mut World| {
            let now = world.now;
            let answers = world.cloud.machines.get(id).is_some_and(|m| m.answers(now));
            (!answers).then_some(())
        };
        self.proc.until(&channels, Some(until), dead).await.is_none()
    }
}

#[async_trait(?Send)]
impl Connector for SimConnector {
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError> {
        let manager = self.proc.manager;
        let keys = self
            .proc
            .call("connector.keys", |world| {
                let number = world.streams.ids.word();
                let fresh = || InstanceKeys {
                    authorized_key: format!("ssh-ed25519 client-{id}"),
                    host_key: "private".to_owned(),
                    host_key_public: format!("ssh-ed25519 host-{id}-{number:x}"),
                };
                world.ledger_mut(manager).keys.entry(id.clone()).or_insert_with(fresh).clone()
            })
            .await;
        self.proc.log(format_args!("connector.keys {id}"));
        Ok(keys)
    }

    async fn discard_keys(&self, id: &InstanceId) {
        let manager = self.proc.manager;
        self.proc.call("connector.discard_keys", |world| world.ledger_mut(manager).keys.remove(id)).await;
        self.proc.log(format_args!("connector.discard_keys {id}"));
    }

    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
        self.handshake("connector.check", id, at, within).await
    }

    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        _stage: Stage,
        output: &mut dyn Output,
        stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        self.handshake("connector.run", id, at, Duration::from_secs(10)).await?;
        let Some(plan) = &self.stage else {
            return Err(ConnectError::Local { what: "no script".to_owned() });
        };
        if plan.exit == IMPOSSIBLE {
            return Ok(StageEnd::Impossible("there is no such image".to_owned()));
        }
        if self.begins_none(id) {
            return self.not_begun(id, at, stop).await;
        }
        stages::begun(&mut self.proc.world.borrow_mut(), id);
        let session = Session { instance: id.clone(), attempt: Some(plan.attempt.clone()) };
        let _session = Open::new(&self.proc, session);
        let (takes, exit) = self.course(id, plan);
        let began = self.proc.now_ms();
        let half = takes / 2;
        let all = async {
            let alive = self.work(id, half).await;
            let written = output.write(Stream::Stdout, b"half way\n").await;
            (alive && self.work(id, takes - half).await, written.is_ok())
        };
        // A stubborn script ignores `stop`: only its own end counts.
        let ended = if plan.stubborn {
            Some(all.await)
        } else {
            match select(Box::pin(all), stop).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(_) => None,
            }
        };
        let answer = match ended {
            Some((true, true)) => {
                if plan.first && exit != 0 && self.proc.now_ms() - began <= 10_000 {
                    early::failed(&mut self.proc.world.borrow_mut(), &plan.attempt);
                }
                Ok(StageEnd::Exited(exit))
            }
            Some((true, false)) => Err(ConnectError::Local { what: "cannot write".to_owned() }),
            Some((false, _)) => Err(lost(at, true)),
            None => {
                let ms = self.proc.world.borrow_mut().streams.latency.within(10..2_000);
                if self.work(id, ms).await { Ok(StageEnd::Stopped) } else { Err(lost(at, true)) }
            }
        };
        self.proc.log(format_args!("connector.run {id}: {answer:?}"));
        answer
    }

    async fn begins_stage(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        _begins: (StageShell, Option<&Mark>),
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.handshake("connector.begins_stage", id, at, within).await?;
        if self.begins_none(id) {
            return self.not_begun(id, at, Box::pin(pending())).await.map(drop);
        }
        stages::begun(&mut self.proc.world.borrow_mut(), id);
        Ok(())
    }

    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        RemoteCommand { text: command, input, within, .. }: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        self.handshake("connector.command", id, at, within).await?;
        if [EnginePlace::Root, EnginePlace::Account].iter().any(|place| place.reader() == command) {
            return match images::pulled_by(input) {
                (images, _) if images.is_empty() => self.engine_check(id, at, output).await,
                (images, true) => self.pull(id, at, &images[0], output).await,
                (images, false) => self.prepare(id, at, &images, output).await,
            };
        }
        if command == "clean" && second::cleans_too_late(&self.proc.world.borrow(), self.proc.manager, id) {
            return Err(lost(at, false));
        }
        let _session = Open::new(&self.proc, Session { instance: id.clone(), attempt: None });
        check::command_begun(&mut self.proc.world.borrow_mut(), id, command);
        let (takes, passes) = {
            let mut world = self.proc.world.borrow_mut();
            if input == recheck::SCRIPT {
                sick::check(&mut world, id)
            } else {
                let passes = match command {
                    "ready" => world.cloud.machines.get(id).is_some_and(|m| m.plan.passes),
                    _ => !world.strikes(Fault::CleanFails),
                };
                (world.streams.latency.within(200..4_000), passes)
            }
        };
        let answer = match (self.work(id, takes).await, passes) {
            (false, _) => Err(lost(at, true)),
            (true, true) => Ok(StageEnd::Exited(0)),
            (true, false) => {
                // What reads a command's output keeps it in memory: that does not fail.
                let _kept = output.write(Stream::Stderr, b"it does not want to").await;
                Ok(StageEnd::Exited(1))
            }
        };
        if matches!(answer, Ok(StageEnd::Exited(0))) && command == "clean" {
            check::cleaned(&mut self.proc.world.borrow_mut(), id);
        }
        self.proc.log(format_args!(
            "connector.command {id} `{command}`: {}",
            if answer.is_ok() { "done" } else { "lost" }
        ));
        answer
    }
}

/// A session on an instance: gone with the process that holds it.
struct Open {
    proc: Proc,
}

impl Open {
    fn new(proc: &Proc, session: Session) -> Self {
        check::session_begun(&mut proc.world.borrow_mut(), proc.pid, session);
        Self { proc: proc.clone() }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.proc.world.borrow_mut().truth.sessions.remove(&self.proc.pid);
    }
}
