//! Lists of the kit's pools. Each one is compared with those before it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;
use serde_json::json;

use super::specimen::Specimen;
use super::{Live, Made, OWNERS, POOLS};
use crate::cloud::tags;
use crate::external::kit::session::read;
use crate::external::protocol::answers::{Identity, ListAnswer, MachineAnswer, State};
use crate::program::kit::check::{Judged, Verdict, failed, skipped};
use crate::program::kit::poll::poll;

/// Lists that are compared while nothing changes.
const COMPARED: u32 = 3;

pub(super) fn is_alive(machine: &MachineAnswer) -> bool {
    matches!(machine.state, State::Pending | State::Starting | State::Running)
}

impl Live<'_> {
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
    pub(super) async fn living(&self, specimen: &Specimen) -> Judged<Vec<MachineAnswer>> {
        let list = self.list(&specimen.pool).await?;
        let made = self.made.borrow();
        let is_made = |listed: &MachineAnswer| {
            made.iter()
                .any(|known| known.machine == listed.machine && known.instance == specimen.instance.as_str())
        };
        let of_launch = |listed: &MachineAnswer| is_alive(listed) && (specimen.is(listed) || is_made(listed));
        Ok(list.machines.into_iter().filter(of_launch).collect())
    }

    /// Waits until a machine of a launch is listed; `None`: not within `appears_within_s`.
    pub(super) async fn appears(&self, specimen: &Specimen) -> Judged<Option<MachineAnswer>> {
        poll(self.appears_within(), async || Ok(self.living(specimen).await?.into_iter().next())).await
    }

    /// Waits as long as a further machine of a launch may be hidden; fails if one appears.
    pub(super) async fn stays_single(&self, specimen: &Specimen) -> Judged {
        let second = poll(self.appears_within(), async || {
            let living = self.living(specimen).await?;
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
    pub(super) async fn check_identity(&self, first: &Made) -> bool {
        self.session
            .outcomes
            .check("identity-exact", async {
                let list = self.list(&first.specimen.pool).await?;
                let listed = list.machines.iter().find(|listed| listed.machine == first.machine);
                match listed {
                    Some(listed) => first.specimen.compare(listed),
                    None => skipped("the machine is not listed, see `launch-listed`"),
                }
            })
            .await
    }

    /// Compares the lists of both pools while machines of two pools and two owners exist; true if they were complete.
    pub(super) async fn check_lists(&self, first: &Made, others: &[Made], identified: bool) -> bool {
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
    async fn compare_lists(&self, first: &Made, others: &[Made]) -> Judged<Judged> {
        let mut all: Vec<&Made> = others.iter().collect();
        all.push(first);
        for one in &all {
            if self.appears(&one.specimen).await?.is_none() {
                let within = Pretty(self.appears_within());
                let machine = &one.machine;
                return failed(format!("no list within {within} has `{machine}`, though others are listed"));
            }
        }
        let pools: BTreeMap<&str, &str> =
            all.iter().map(|one| (one.machine.as_str(), one.specimen.pool.as_str())).collect();
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
                    apart = Err(Verdict::Warned(came));
                }
            }
        }
        let is_judgeable = pools.values().any(|pool| *pool != POOLS[0]);
        Ok(if is_judgeable { apart } else { skipped("no machine was launched in a second pool") })
    }

    async fn other_owner(&self, others: &[Made], identified: bool) -> Judged {
        if !identified {
            return Err(not_identified());
        }
        if self.known.identity == Identity::Names {
            return skipped("the program identifies machines by name");
        }
        let of_other = |one: &&Made| one.specimen.fields["tags"]["greenroom-owner"] == OWNERS[1];
        let Some(other) = others.iter().find(of_other) else {
            return skipped("no machine of a second owner was launched");
        };
        let list = self.list(&other.specimen.pool).await?;
        if list.machines.iter().any(|listed| other.specimen.is(listed)) {
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
pub(super) fn not_identified() -> Verdict {
    Verdict::Skipped(
        "lists do not show which launch created a machine, see `identity-exact` and `list-complete`"
            .to_owned(),
    )
}
