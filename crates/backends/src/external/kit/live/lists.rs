//! Lists of the kit's pools. Each one is compared with those before it, and with the machines that exist.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;
use serde_json::json;

use super::launches::TestLaunch;
use super::{LaunchedMachine, LiveRun, OWNERS, POOLS};
use crate::cloud::tags;
use crate::external::kit::program::ProgramReply;
use crate::external::kit::read;
use crate::external::protocol::answers::{ListAnswer, ListedState, MachineAnswer, MachineIdentity};
use crate::program::kit::{CheckVerdict, Judged, failed, poll, skipped};

/// Lists that are compared while nothing changes.
const COMPARED: u32 = 3;
/// How long after a login a list may still show an earlier state.
const STATE_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn is_alive(machine: &MachineAnswer) -> bool {
    matches!(machine.state, ListedState::Pending | ListedState::Starting | ListedState::Running)
}

impl LiveRun<'_> {
    /// One list. A complete one that lacks an expected machine violates `list-complete`.
    pub(super) async fn list(&self, pool: &str) -> Judged<ListAnswer> {
        // Machines that are ended during the call may be missing.
        let before = self.expected.borrow().clone();
        let begun = Instant::now();
        let answer = self.session.answer("list", pool, &json!({})).await?;
        let list: ListAnswer = read("list", &answer)?;
        let has = |machine: &str| list.machines.iter().any(|listed| listed.machine == machine);
        let expected = self.expected.borrow().clone();
        let missing = before
            .iter()
            .find(|(machine, of)| *of == pool && expected.contains_key(*machine) && !has(machine));
        if let (true, Some((machine, _))) = (list.complete, missing) {
            let came =
                format!("a complete list of the pool `{pool}` lacks `{machine}`, which an earlier list had");
            self.session.outcomes.record("list-complete", failed(came), begun);
        }
        let made = self.made.borrow();
        for listed in list.machines.iter().filter(|listed| is_alive(listed)) {
            if made.iter().any(|known| known.machine == listed.machine) && !self.is_ended(&listed.machine) {
                self.expected.borrow_mut().insert(listed.machine.clone(), pool.to_owned());
            }
        }
        Ok(list)
    }

    /// The living machines of a launch, by what they show or by the ID that its answer gave.
    pub(super) async fn living(&self, launch: &TestLaunch) -> Judged<Vec<MachineAnswer>> {
        let list = self.list(&launch.pool).await?;
        let made = self.made.borrow();
        let is_made = |listed: &MachineAnswer| {
            made.iter()
                .any(|known| known.machine == listed.machine && known.instance == launch.instance.as_str())
        };
        let of_launch = |listed: &MachineAnswer| is_alive(listed) && (launch.is(listed) || is_made(listed));
        Ok(list.machines.into_iter().filter(of_launch).collect())
    }

    /// Waits until a machine of a launch is listed; `None`: not within `appears_within_s`.
    pub(super) async fn appears(&self, launch: &TestLaunch) -> Judged<Option<MachineAnswer>> {
        poll(self.appears_within(), async || Ok(self.living(launch).await?.into_iter().next())).await
    }

    /// Waits as long as a further machine of a launch may be hidden; fails if one appears.
    pub(super) async fn stays_single(&self, launch: &TestLaunch) -> Judged {
        let second = poll(self.appears_within(), async || {
            let living = self.living(launch).await?;
            let ids: Vec<String> = living.into_iter().map(|listed| format!("`{}`", listed.machine)).collect();
            Ok((ids.len() > 1).then(|| ids.join(" and ")))
        });
        match second.await? {
            Some(ids) => failed(format!("one launch created {ids}")),
            None => Ok(()),
        }
    }

    /// How long a new machine may be hidden, with a margin for the call.
    pub(super) fn appears_within(&self) -> Duration {
        Duration::from_secs(self.known.appears_within_s).max(Duration::from_millis(500))
    }

    /// A launched machine is listed with what its launch gave it; true if it is.
    pub(super) async fn check_identity(&self, first: &LaunchedMachine) -> bool {
        self.session
            .outcomes
            .check("identity-exact", async {
                let list = self.list(&first.launch.pool).await?;
                let listed = list.machines.iter().find(|listed| listed.machine == first.machine);
                match listed {
                    Some(listed) => first.launch.compare(listed),
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
        let is_complete = self.session.outcomes.record("list-complete", complete, begun);
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
            if self.appears(&one.launch).await?.is_none() {
                let within = Pretty(self.appears_within());
                let machine = &one.machine;
                return failed(format!("no list within {within} has `{machine}`, though others are listed"));
            }
        }
        let pools: BTreeMap<&str, &str> =
            all.iter().map(|one| (one.machine.as_str(), one.launch.pool.as_str())).collect();
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
        if self.known.identity == MachineIdentity::Names {
            return skipped("the program identifies machines by name");
        }
        let of_other = |one: &&LaunchedMachine| one.launch.fields["tags"]["greenroom-owner"] == OWNERS[1];
        let Some(other) = others.iter().find(of_other) else {
            return skipped("no machine of a second owner was launched");
        };
        let list = self.list(&other.launch.pool).await?;
        if list.machines.iter().any(|listed| other.launch.is(listed)) {
            return Ok(());
        }
        let machine = &other.machine;
        failed(format!("the list lacks `{machine}`, which has another owner than the pool's first machine"))
    }

    /// Records that the kit ends a machine: lists may lack it from now on.
    pub(super) fn forget(&self, machine: &str) {
        self.expected.borrow_mut().remove(machine);
        self.ended.borrow_mut().insert(machine.to_owned());
    }

    fn is_ended(&self, machine: &str) -> bool {
        self.ended.borrow().contains(machine)
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
        let reply = self.session.call_offline("list", &first.launch.pool, &json!({})).await;
        let Some(reply) = reply else {
            return skipped("this host cannot take the network from one program (`unshare --net`)");
        };
        let ProgramReply::Answer(answer) = reply else { return Ok(()) };
        let list: ListAnswer = read("list", &answer)?;
        if list.complete && !list.machines.iter().any(|listed| listed.machine == first.machine) {
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
        let mut last = "not at all".to_owned();
        let running = poll(STATE_WITHIN.max(self.appears_within()), async || {
            let list = self.list(&first.launch.pool).await?;
            let state = list.machines.iter().find(|listed| listed.machine == first.machine);
            let Some(state) = state.map(|listed| listed.state) else { return Ok(None) };
            last = format!("as `{}`", format!("{state:?}").to_lowercase());
            Ok((state == ListedState::Running).then_some(()))
        });
        let running = running.await?;
        match running {
            Some(()) => Ok(()),
            None => failed(format!("`{}` accepts logins, and is listed {last}", first.machine)),
        }
    }
}
