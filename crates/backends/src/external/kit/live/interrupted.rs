//! Launches that are killed in their middle, and one whose answer is thrown away.

use std::time::{Duration, Instant};

use super::lists::not_identified;
use super::specimen::Specimen;
use super::{Live, Made, OWNERS, POOLS};
use crate::external::kit::reply::Reply;
use crate::external::kit::session::unusable;
use crate::program::kit::check::{Judged, Verdict, failed};

/// Between two lists that look for the machine of a launch that is under way.
const LOOK: Duration = Duration::from_millis(20);

/// When a launch is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// Half of the time that the longest launch took.
    HalfTime,
    /// As soon as a list has its machine.
    Listed,
}

impl Live<'_> {
    /// Makes both checks; `identified`: lists show which launch made a machine.
    pub(super) async fn check_interrupted(&self, identified: bool) {
        let begun = Instant::now();
        if !identified {
            self.session.outcomes.record("launch-killed", Err(not_identified()), begun);
            self.session.outcomes.record("launch-answer-lost", Err(not_identified()), begun);
            return;
        }
        let (half, listed, lost) =
            tokio::join!(self.killed(Moment::HalfTime), self.killed(Moment::Listed), self.answer_lost());
        self.session.outcomes.record("launch-killed", half.and(listed), begun);
        self.session.outcomes.record("launch-answer-lost", lost, begun);
    }

    async fn killed(&self, moment: Moment) -> Judged {
        let specimen = self.specimen(POOLS[0], OWNERS[0]).await?;
        let kill = async {
            match moment {
                Moment::HalfTime => tokio::time::sleep(self.launch_took.get() / 2).await,
                Moment::Listed => self.until_listed(&specimen).await,
            }
        };
        tokio::select! {
            // Dropped, and so killed, unless it ends first.
            _ = self.session.call("launch", &specimen.pool, &specimen.fields) => {}
            () = kill => {}
        }
        let machine = self.recovered(&specimen).await;
        let machine = machine.map_err(|verdict| with(verdict, "after a launch was killed, "))?;
        self.end_interrupted(Made { specimen, machine }).await
    }

    /// Ends when a list has the machine. A list that fails proves nothing.
    async fn until_listed(&self, specimen: &Specimen) {
        while !matches!(self.living(specimen).await, Ok(living) if !living.is_empty()) {
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn answer_lost(&self) -> Judged {
        let specimen = self.specimen(POOLS[0], OWNERS[0]).await?;
        let machine = match self.session.call("launch", &specimen.pool, &specimen.fields).await {
            // Not noted: lists alone show it.
            Reply::Answer(answer) => answer["machine"].as_str().unwrap_or_default().to_owned(),
            Reply::Refused(refusal) => return failed(format!("`launch` was refused with {refusal}")),
            Reply::Unusable(check, _) => return Err(unusable("launch", check)),
        };
        let Some(listed) = self.appears(&specimen).await? else {
            self.note(&machine, &specimen);
            return failed(format!("no list identifies `{machine}` as the machine of its launch"));
        };
        self.note(&listed.machine, &specimen);
        if listed.machine != machine {
            return failed(format!("`launch` answered `{machine}`, but the list has `{}`", listed.machine));
        }
        let found = self.recovered(&specimen).await?;
        if found != machine {
            return failed(format!("the launch created `{machine}`, and its repeat answered `{found}`"));
        }
        self.end_interrupted(Made { specimen, machine }).await
    }

    /// What Greenroom does with a launch that got no answer, until there is exactly one machine.
    async fn recovered(&self, specimen: &Specimen) -> Judged<String> {
        let machine = if self.known.idempotent_launch {
            self.launch(specimen).await?
        } else if let Some(listed) = self.appears(specimen).await? {
            self.note(&listed.machine, specimen);
            listed.machine
        } else {
            self.launch(specimen).await?
        };
        match self.appears(specimen).await? {
            None => failed(format!("no list has `{machine}`")),
            Some(listed) if listed.machine == machine => self.stays_single(specimen).await.map(|()| machine),
            Some(listed) => failed(format!("one launch created `{machine}` and `{}`", listed.machine)),
        }
    }

    /// Ends it at once: it has served.
    async fn end_interrupted(&self, made: Made) -> Judged {
        self.end(&made).await.map(drop)
    }
}

/// The verdict with the begin of a sentence.
fn with(verdict: Verdict, begin: &str) -> Verdict {
    match verdict {
        Verdict::Failed(came) => Verdict::Failed(format!("{begin}{came}")),
        other => other,
    }
}
