//! Launches: the first one, a repeated one, concurrent ones, and one that has to be refused.

use std::time::Instant;

use greenroom_core::time::Pretty;
use serde_json::json;

use super::specimen::Specimen;
use super::{Live, Made, OWNERS, POOLS};
use crate::external::kit::reply::Reply;
use crate::external::kit::session::refused;
use crate::external::protocol::exit::INVALID;
use crate::program::kit::check::{Judged, failed, skipped};

impl Live<'_> {
    /// The first machine; `None`: there is none, and no further check makes sense.
    pub(super) async fn check_launch(&self) -> Option<Made> {
        let begun = Instant::now();
        let made = async {
            let specimen = self.specimen(POOLS[0], OWNERS[0]).await?;
            let machine = self.launch(&specimen).await?;
            Ok(Made { specimen, machine })
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

    async fn listed(&self, made: &Made) -> Judged {
        match self.appears(&made.specimen).await? {
            Some(listed) if listed.machine == made.machine => Ok(()),
            Some(listed) => {
                failed(format!("`launch` answered `{}`, but the list has `{}`", made.machine, listed.machine))
            }
            None => {
                let within = Pretty(self.appears_within());
                failed(format!("no list within {within} has `{}`, which `launch` answered", made.machine))
            }
        }
    }

    /// The same launch once more.
    pub(super) async fn check_repeated(&self, first: &Made) {
        self.session.outcomes.check("launch-repeated", self.repeated(first)).await;
    }

    async fn repeated(&self, first: &Made) -> Judged {
        self.idempotent()?;
        let again = self.launch(&first.specimen).await?;
        if again != first.machine {
            return failed(format!("the first launch answered `{}`, the repeat `{again}`", first.machine));
        }
        self.stays_single(&first.specimen).await
    }

    /// Greenroom never repeats a launch of a program that cannot recognise it.
    pub(super) fn idempotent(&self) -> Judged {
        if self.known.idempotent_launch {
            return Ok(());
        }
        skipped(
            "the program answers `\"idempotent_launch\": false`: Greenroom repeats no launch that may have created a machine",
        )
    }

    /// Three launches concurrently: two with one token, and one of another pool. The machines that came of them.
    pub(super) async fn check_concurrent(&self) -> Vec<Made> {
        let begun = Instant::now();
        let specimens = async {
            Ok((self.specimen(POOLS[0], OWNERS[1]).await?, self.specimen(POOLS[1], OWNERS[0]).await?))
        };
        let (twin, other) = match specimens.await {
            Ok(both) => both,
            Err(verdict) => {
                self.session.outcomes.record("launch-concurrent", Err(verdict), begun);
                return Vec::new();
            }
        };
        let again = async {
            match self.idempotent() {
                Ok(()) => Some(self.launch(&twin).await),
                Err(_) => None,
            }
        };
        let (one, again, apart) = tokio::join!(self.launch(&twin), again, self.launch(&other));
        let judged = self.judge_concurrent(&twin, &one, again, &apart).await;
        self.session.outcomes.record("launch-concurrent", judged, begun);
        let made = |specimen: Specimen, machine: Judged<String>| {
            machine.ok().map(|machine| Made { specimen, machine })
        };
        [made(twin, one), made(other, apart)].into_iter().flatten().collect()
    }

    async fn judge_concurrent(
        &self,
        twin: &Specimen,
        one: &Judged<String>,
        again: Option<Judged<String>>,
        apart: &Judged<String>,
    ) -> Judged {
        let (one, apart) = (one.clone()?, apart.clone()?);
        if one == apart {
            return failed(format!("launches with two tokens answered the same ID `{one}`"));
        }
        let Some(again) = again.transpose()? else { return Ok(()) };
        if one != again {
            return failed(format!("two launches with one token answered `{one}` and `{again}`"));
        }
        self.stays_single(twin).await
    }

    /// A launch of an offering that the program does not have.
    pub(super) async fn check_refused_offering(&self) {
        self.session.outcomes.check("offering-unknown", self.refused_offering()).await;
    }

    async fn refused_offering(&self) -> Judged {
        if self.known.offerings.is_empty() {
            return skipped("the program has no offerings");
        }
        let mut specimen = self.specimen(POOLS[0], OWNERS[0]).await?;
        specimen.fields["offering"] = json!("greenroom-kit-no-such-offering");
        let reply = self.session.call("launch", &specimen.pool, &specimen.fields).await;
        if let Reply::Answer(answer) = &reply
            && let Some(machine) = answer["machine"].as_str()
        {
            self.note(machine, &specimen);
        }
        let refusal = refused("launch", reply)?;
        if refusal.code != INVALID {
            return failed(format!("`launch` ended with {refusal}"));
        }
        match self.appears(&specimen).await? {
            Some(listed) => {
                failed(format!("`launch` was refused, but the list has its machine `{}`", listed.machine))
            }
            None => Ok(()),
        }
    }
}
