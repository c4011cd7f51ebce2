//! Launches of the kit: the first one, repeated, concurrent, refused and interrupted ones.

use std::time::{Duration, Instant};

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OfferingName};
use greenroom_core::time::Pretty;
use greenroom_ports::provider::{LaunchRequest, Provider as _};
use greenroom_providers::conformance::subject::LAUNCH_REFUSAL;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, skipped};

use super::lists::not_identified;
use super::{LaunchedMachine, LiveRun, OWNERS, POOLS};
use crate::external::kit::program::ProgramReply;
use crate::external::kit::unusable;

/// Between two lists that look for the machine of a launch that is under way.
const LIST_INTERVAL: Duration = Duration::from_millis(20);

impl LiveRun<'_> {
    /// The first machine; `None`: there is none, and no further check makes sense.
    pub(super) async fn check_launch(&self) -> Option<LaunchedMachine> {
        let begun = Instant::now();
        let made = async {
            let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
            self.launch(launch).await
        };
        let made = match made.await {
            Ok(made) => made,
            Err(verdict) => {
                self.session.outcomes.record("launch", Err(verdict), begun);
                return None;
            }
        };
        self.session.outcomes.record("launch", Ok(()), begun);
        self.session.outcomes.check("launch-listed", self.listed(&made)).await;
        Some(made)
    }

    async fn listed(&self, made: &LaunchedMachine) -> Judged {
        match self.subject().appears(&made.launch).await? {
            Some(listed) if listed.id == made.machine => Ok(()),
            Some(listed) => {
                failed(format!("`launch` answered `{}`, but the list has `{}`", made.machine, listed.id))
            }
            None => {
                let within = Pretty(self.appears_within());
                failed(format!("no list within {within} has `{}`, which `launch` answered", made.machine))
            }
        }
    }

    /// Repeats the first launch.
    pub(super) async fn check_repeated(&self, first: &LaunchedMachine) {
        self.session.outcomes.check("launch-repeated", self.repeated(first)).await;
    }

    async fn repeated(&self, first: &LaunchedMachine) -> Judged {
        self.idempotent()?;
        self.subject().is_repeatable(&first.launch).await?;
        self.one_machine(&first.launch).map(drop)
    }

    /// Greenroom never repeats a launch of a program that cannot recognise it.
    fn idempotent(&self) -> Judged {
        if self.port.known.idempotent_launch {
            return Ok(());
        }
        skipped(
            "the program answers `\"idempotent_launch\": false`: Greenroom repeats no launch that may have created a machine",
        )
    }

    /// Three launches concurrently: two with one token, and one of another pool. The machines that came of them.
    pub(super) async fn check_concurrent(&self) -> Vec<LaunchedMachine> {
        let begun = Instant::now();
        let launches = async {
            Ok((self.new_launch(POOLS[0], OWNERS[1]).await?, self.new_launch(POOLS[1], OWNERS[0]).await?))
        };
        let (twin, other) = match launches.await {
            Ok(both) => both,
            Err(verdict) => {
                self.session.outcomes.record("launch-concurrent", Err(verdict), begun);
                return Vec::new();
            }
        };
        // Greenroom repeats no launch of a program that cannot recognise it.
        let mut launches = vec![&twin, &other];
        if self.idempotent().is_ok() {
            launches.push(&twin);
        }
        let judged = self.subject().launch_all(&launches).await.and_then(|()| self.differ(&twin, &other));
        self.session.outcomes.record("launch-concurrent", judged, begun);
        let made = |launch: LaunchRequest| {
            let machine = InstanceId::new(self.port.answers(&launch.instance).first()?);
            Some(LaunchedMachine { launch, machine })
        };
        [twin, other].into_iter().filter_map(made).collect()
    }

    /// Launches with two tokens have two machines, the same ones in each answer.
    fn differ(&self, one: &LaunchRequest, other: &LaunchRequest) -> Judged {
        let machine = self.one_machine(one)?;
        if machine == self.one_machine(other)? {
            return failed(format!("launches with two tokens answered the same ID `{machine}`"));
        }
        Ok(())
    }

    /// A launch of an offering that the program does not have.
    pub(super) async fn check_refused_offering(&self) {
        self.session.outcomes.check("offering-unknown", self.refused_offering()).await;
    }

    async fn refused_offering(&self) -> Judged {
        if self.port.known.offerings.is_empty() {
            return skipped("the program has no offerings");
        }
        let mut launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        launch.offering = Some(OfferingName::new("greenroom-kit-no-such-offering"));
        match self.port.launch(&launch).await {
            Ok(()) => failed(format!("`launch` created `{}`", self.one_machine(&launch)?)),
            Err(error) if *error.class() == ErrorClass::Invalid => {
                self.subject().created_nothing(&launch).await
            }
            Err(error) => self.subject().refused(&error),
        }
    }

    /// No launch has been refused wrongly, of those that were repeated.
    pub(super) fn check_refusals(&self) {
        self.session.outcomes.record(LAUNCH_REFUSAL, self.idempotent(), Instant::now());
    }
}

/// When a launch is killed.
#[derive(Debug, Clone, Copy)]
enum KillTime {
    /// Half of the time that the longest launch took.
    HalfTime,
    /// As soon as a list has its machine.
    Listed,
}

impl LiveRun<'_> {
    /// Makes both checks; `identified`: lists show which launch made a machine.
    pub(super) async fn check_interrupted(&self, identified: bool) {
        let begun = Instant::now();
        if !identified {
            self.session.outcomes.record("launch-killed", Err(not_identified()), begun);
            self.session.outcomes.record("launch-answer-lost", Err(not_identified()), begun);
            return;
        }
        let (half, listed, lost) =
            tokio::join!(self.killed(KillTime::HalfTime), self.killed(KillTime::Listed), self.answer_lost());
        self.session.outcomes.record("launch-killed", half.and(listed), begun);
        self.session.outcomes.record("launch-answer-lost", lost, begun);
    }

    async fn killed(&self, moment: KillTime) -> Judged {
        let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        let kill = async {
            match moment {
                KillTime::HalfTime => tokio::time::sleep(self.port.launch_took.get() / 2).await,
                KillTime::Listed => self.until_listed(&launch).await,
            }
        };
        tokio::select! {
            // Dropped, and so killed, unless it ends first.
            _ = self.call_launch(&launch) => {}
            () = kill => {}
        }
        let machine = self.recovered(&launch).await;
        let machine = machine.map_err(|verdict| with(verdict, "after a launch was killed, "))?;
        self.end_interrupted(LaunchedMachine { launch, machine }).await
    }

    /// A launch whose answer the port does not get.
    async fn call_launch(&self, launch: &LaunchRequest) -> ProgramReply {
        self.session.call("launch", launch.tags.pool.as_str(), &self.port.fields(launch)).await
    }

    /// Ends when a list has the machine. A list that fails proves nothing.
    async fn until_listed(&self, launch: &LaunchRequest) {
        while !matches!(self.subject().living(launch).await, Ok(living) if !living.is_empty()) {
            tokio::time::sleep(LIST_INTERVAL).await;
        }
    }

    async fn answer_lost(&self) -> Judged {
        let launch = self.new_launch(POOLS[0], OWNERS[0]).await?;
        let machine = match self.call_launch(&launch).await {
            // Not noted: lists alone show it.
            ProgramReply::Answer(answer) => answer["machine"].as_str().unwrap_or_default().to_owned(),
            ProgramReply::Refused(refusal) => return failed(format!("`launch` was refused with {refusal}")),
            ProgramReply::Unusable(check, _) => return Err(unusable("launch", check)),
        };
        let Some(listed) = self.subject().appears(&launch).await? else {
            self.port.note(&machine, &launch);
            return failed(format!("no list identifies `{machine}` as the machine of its launch"));
        };
        self.port.note(listed.id.as_str(), &launch);
        if listed.id.as_str() != machine {
            return failed(format!("`launch` answered `{machine}`, but the list has `{}`", listed.id));
        }
        let machine = self.recovered(&launch).await?;
        self.end_interrupted(LaunchedMachine { launch, machine }).await
    }

    /// Recovers a launch that got no answer: its one machine, by lists and by answers.
    async fn recovered(&self, launch: &LaunchRequest) -> Judged<InstanceId> {
        let machine = self.subject().recovers(launch).await?.id;
        self.port.note(machine.as_str(), launch);
        self.one_machine(launch).map(|_| machine)
    }

    /// Ends it at once: it has served.
    async fn end_interrupted(&self, made: LaunchedMachine) -> Judged {
        self.subject().ends(&made.machine).await
    }
}

/// The verdict with the begin of a sentence.
fn with(verdict: CheckVerdict, begin: &str) -> CheckVerdict {
    match verdict {
        CheckVerdict::Failed(came) => CheckVerdict::Failed(format!("{begin}{came}")),
        other => other,
    }
}
