//! Lists of the kit's pools. Each one is compared with those before it, and with the machines that exist.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greenroom_core::ids::PoolName;
use greenroom_core::inventory::Status;
use greenroom_core::time::Pretty;
use greenroom_providers::conformance::subject::LIST_COMPLETE;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, skipped};
use serde_json::json;

use super::{LaunchedMachine, LiveRun, OWNERS, POOLS};
use crate::cloud::tags;
use crate::external::kit::program::ProgramReply;
use crate::external::kit::read;
use crate::external::protocol::answers::{ListAnswer, MachineIdentity};

/// Lists that are compared while nothing changes.
const COMPARED: u32 = 3;
/// How long after a login a list may still show an earlier state.
const STATE_WITHIN: Duration = Duration::from_secs(20);

impl LiveRun<'_> {
    /// One list as the program answers it, judged like each list of the run.
    pub(super) async fn list(&self, pool: &str) -> Judged<ListAnswer> {
        let (subject, pool, before) = (self.subject(), PoolName::new(pool), self.watch.expected());
        let list = subject.answer(self.port.answer_list(&pool).await)?;
        subject.seen(&pool, &before, &self.port.listing(&list))?;
        Ok(list)
    }

    /// How long a new machine may be hidden, with a margin for the call.
    pub(super) fn appears_within(&self) -> Duration {
        Duration::from_secs(self.port.known.appears_within_s).max(Duration::from_millis(500))
    }

    /// A launched machine is listed with what its launch gave it; true if it is.
    pub(super) async fn check_identity(&self, first: &LaunchedMachine) -> bool {
        self.session
            .outcomes
            .check("identity-exact", async {
                let list = self.list(first.pool().as_str()).await?;
                let listed = list.machines.iter().find(|listed| listed.machine == first.machine.as_str());
                match listed {
                    Some(listed) => self.port.compare(&first.launch, listed),
                    None => skipped("the machine is not listed, see `launch-listed`"),
                }
            })
            .await
    }

    /// Compares the lists of both pools while machines of two pools and two owners exist; true if they were complete.
    pub(super) async fn check_lists(
        &self,
        first: &LaunchedMachine,
        others: &[LaunchedMachine],
        identified: bool,
    ) -> bool {
        let begun = Instant::now();
        let judged = self.compare_lists(first, others).await;
        let (complete, pools) = match judged {
            Ok(pools) => (Ok(()), pools),
            Err(verdict) => (Err(verdict), skipped("a list is not complete, see `list-complete`")),
        };
        self.session.outcomes.record("list-other-pools", pools, begun);
        let is_complete = self.session.outcomes.record(LIST_COMPLETE, complete, begun);
        self.session
            .outcomes
            .check("list-other-owners", self.other_owner(others, identified && is_complete))
            .await;
        is_complete
    }

    /// The error concerns the lists themselves; the value is whether they keep pools apart.
    async fn compare_lists(&self, first: &LaunchedMachine, others: &[LaunchedMachine]) -> Judged<Judged> {
        let mut all: Vec<&LaunchedMachine> = others.iter().collect();
        all.push(first);
        for one in &all {
            if self.subject().appears(&one.launch).await?.is_none() {
                let within = Pretty(self.appears_within());
                let machine = &one.machine;
                return failed(format!("no list within {within} has `{machine}`, though others are listed"));
            }
        }
        let pools: BTreeMap<&str, &str> =
            all.iter().map(|one| (one.machine.as_str(), one.pool().as_str())).collect();
        let mut apart = Ok(());
        for _ in 0..COMPARED {
            for pool in POOLS {
                for listed in self.list(pool).await?.machines {
                    let of = pools.get(listed.machine.as_str());
                    let Some(of) = of.filter(|of| **of != pool) else { continue };
                    let came = format!("the list of `{pool}` has `{}` of `{of}`", listed.machine);
                    // Greenroom tells them apart by the tag.
                    if listed.tags.get(tags::POOL).is_some_and(|tag| tag == pool) {
                        return Ok(failed(format!("{came}, with the tag of `{pool}`")));
                    }
                    apart = Err(CheckVerdict::Warned(came));
                }
            }
        }
        let is_judgeable = pools.values().any(|pool| *pool != POOLS[0]);
        Ok(if is_judgeable { apart } else { skipped("no machine was launched in a second pool") })
    }

    async fn other_owner(&self, others: &[LaunchedMachine], identified: bool) -> Judged {
        if !identified {
            return Err(not_identified());
        }
        if self.port.known.identity == MachineIdentity::Names {
            return skipped("the program identifies machines by name");
        }
        let of_other = |one: &&LaunchedMachine| one.launch.tags.owner.as_str() == OWNERS[1];
        let Some(other) = others.iter().find(of_other) else {
            return skipped("no machine of a second owner was launched");
        };
        let list = self.list(other.pool().as_str()).await?;
        if list.machines.iter().any(|listed| self.port.is(&other.launch, listed)) {
            return Ok(());
        }
        let machine = &other.machine;
        failed(format!("the list lacks `{machine}`, which has another owner than the pool's first machine"))
    }
}

/// The reason to skip what needs machines that lists identify.
pub(super) fn not_identified() -> CheckVerdict {
    CheckVerdict::Skipped(
        "lists do not show which launch created a machine, see `identity-exact` and `list-complete`"
            .to_owned(),
    )
}

impl LiveRun<'_> {
    /// A list of a program that cannot reach its cloud.
    pub(super) async fn check_offline(&self, first: &LaunchedMachine) {
        self.session.outcomes.check("list-offline", self.offline(first)).await;
    }

    async fn offline(&self, first: &LaunchedMachine) -> Judged {
        let reply = self.session.call_offline("list", first.pool().as_str(), &json!({})).await;
        let Some(reply) = reply else {
            return skipped("this host cannot take the network from one program (`unshare --net`)");
        };
        let ProgramReply::Answer(answer) = reply else { return Ok(()) };
        let list: ListAnswer = read("list", &answer)?;
        if list.complete && !list.machines.iter().any(|listed| listed.machine == first.machine.as_str()) {
            let came = "without a network, `list` answered `\"complete\": true` without";
            return failed(format!("{came} `{}`, which exists", first.machine));
        }
        Ok(())
    }

    /// The state of the machine that has accepted a login.
    pub(super) async fn check_running(&self, first: &LaunchedMachine) {
        self.session.outcomes.check("running-listed", self.running(first)).await;
    }

    async fn running(&self, first: &LaunchedMachine) -> Judged {
        if self.endpoint_of_first.borrow().is_none() {
            return skipped("no login has worked, see `login`");
        }
        let within = STATE_WITHIN.max(self.appears_within());
        let subject = self.subject();
        subject.becomes(first.pool(), &first.machine, Status::Running, within).await.map(drop)
    }
}
