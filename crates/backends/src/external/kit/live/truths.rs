//! What the program claims, compared with what is: refusals, states, a lifetime, and lists without a network.

use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;
use serde_json::json;

use super::specimen::Specimen;
use super::{Live, Made, OWNERS, POOLS};
use crate::external::kit::reply::{Refusal, Reply};
use crate::external::kit::session::read;
use crate::external::protocol::answers::{ListAnswer, State};
use crate::external::protocol::exit::{NO_CAPACITY, QUOTA};
use crate::program::kit::check::{Judged, failed, skipped};
use crate::program::kit::poll::poll;

/// The lifetime of the machine that has to end by itself.
const LIFETIME: Duration = Duration::from_secs(30);
/// How long after a login a list may still show an earlier state.
const STATE_WITHIN: Duration = Duration::from_secs(20);

impl Live<'_> {
    /// A refused launch ends the check that needed it. Greenroom believes that 11 and 12 made nothing, also as the answer
    /// to a repeat.
    pub(super) async fn judge_refusal(&self, specimen: &Specimen, refusal: &Refusal) -> Judged<String> {
        let refused = format!("`launch` was refused with {refusal}");
        if !matches!(refusal.code, NO_CAPACITY | QUOTA) {
            return failed(refused);
        }
        let begun = Instant::now();
        match self.appears(specimen).await? {
            None => failed(refused),
            Some(listed) => {
                let came = format!("{refused}, but the list has its machine `{}`", listed.machine);
                self.session.outcomes.record("launch-refusal", failed(came), begun);
                skipped("a launch was refused although it had created a machine, see `launch-refusal`")
            }
        }
    }

    /// No launch has been refused wrongly, of those that were repeated.
    pub(super) fn check_refusals(&self) {
        self.session.outcomes.record("launch-refusal", self.idempotent(), Instant::now());
    }

    /// A list of a program that cannot reach its cloud.
    pub(super) async fn check_offline(&self, first: &Made) {
        self.session.outcomes.check("list-offline", self.offline(first)).await;
    }

    async fn offline(&self, first: &Made) -> Judged {
        let reply = self.session.call_offline("list", &first.specimen.pool, &json!({})).await;
        let Some(reply) = reply else {
            return skipped("this host cannot take the network from one program (`unshare --net`)");
        };
        let Reply::Answer(answer) = reply else { return Ok(()) };
        let list: ListAnswer = read("list", &answer)?;
        if list.complete && !list.machines.iter().any(|listed| listed.machine == first.machine) {
            let came = "without a network, `list` answered `\"complete\": true` without";
            return failed(format!("{came} `{}`, which exists", first.machine));
        }
        Ok(())
    }

    /// The state of the machine that has accepted a login.
    pub(super) async fn check_running(&self, first: &Made) {
        self.session.outcomes.check("running-listed", self.running(first)).await;
    }

    async fn running(&self, first: &Made) -> Judged {
        if self.endpoint_of_first.borrow().is_none() {
            return skipped("no login has worked, see `login`");
        }
        let mut last = "not at all".to_owned();
        let running = poll(STATE_WITHIN.max(self.appears_within()), async || {
            let list = self.list(&first.specimen.pool).await?;
            let state = list.machines.iter().find(|listed| listed.machine == first.machine);
            let Some(state) = state.map(|listed| listed.state) else { return Ok(None) };
            last = format!("as `{}`", format!("{state:?}").to_lowercase());
            Ok((state == State::Running).then_some(()))
        });
        let running = running.await?;
        match running {
            Some(()) => Ok(()),
            None => failed(format!("`{}` accepts logins, and is listed {last}", first.machine)),
        }
    }

    /// Launches the machine that has to end by itself, if the program says so.
    pub(super) async fn check_lifetime_begun(&self) -> Judged<(Made, Instant)> {
        if !self.known.lifetime {
            return skipped("the program answers `\"lifetime\": false`");
        }
        let mut specimen = self.specimen(POOLS[0], OWNERS[0]).await?;
        specimen.fields["lifetime_s"] = json!(LIFETIME.as_secs());
        let machine = self.launch(&specimen).await?;
        // Lists may lack it at any moment from now on.
        self.forget(&machine);
        Ok((Made { specimen, machine }, Instant::now()))
    }

    /// Waits for its end.
    pub(super) async fn check_lifetime(&self, mortal: Judged<(Made, Instant)>) {
        self.session.outcomes.check("lifetime", self.lifetime(mortal)).await;
    }

    async fn lifetime(&self, mortal: Judged<(Made, Instant)>) -> Judged {
        let (made, since) = mortal?;
        let left = (LIFETIME + self.options.end_timeout).saturating_sub(since.elapsed());
        let ended = poll(left, async || {
            let lives = !self.living(&made.specimen).await?.is_empty();
            Ok((!lives).then_some(()))
        });
        match ended.await? {
            Some(()) => Ok(()),
            None => failed(format!(
                "`{}` still ran {} after its launch with `\"lifetime_s\": {}`",
                made.machine,
                Pretty(since.elapsed()),
                LIFETIME.as_secs()
            )),
        }
    }
}
