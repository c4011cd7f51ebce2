//! Instances of a run: requested, listed, suspended, removed; and the clean-up at the end.

use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;

use super::{Kit, KitInstance, states};
use crate::fleeting::group::{CallErrorKind, GroupInfo, InstanceGroup as _, InstanceState, SeenInstance};
use crate::program::kit::{CheckVerdict, Judged, failed, poll, skipped};

/// A removal that has no effect is requested once more after this time.
const REPEAT: Duration = Duration::from_secs(10);
/// The checks of removals.
pub(super) const ENDS: &[&str] = &["decrease", "decrease-ends", "decrease-spares-others", "decrease-gone"];

impl Kit {
    /// The first instance, once it runs.
    pub(super) async fn check_launch(&self) -> Option<String> {
        let begun = Instant::now();
        let accepted = self.increase(1).await.and_then(|accepted| match accepted {
            0 => failed("it accepted no instance"),
            _ => Ok(()),
        });
        if !self.outcomes.record("increase", accepted, begun) {
            return None;
        }
        let begun = Instant::now();
        let listed = self.appeared(1).await;
        if !self.outcomes.record("increase-listed", listed, begun) {
            return None;
        }
        let first = self.known.borrow().first()?.id.clone();
        self.outcomes.check("running", self.runs(&first)).await.then_some(first)
    }

    /// More instances in one call. Those that appear.
    pub(super) async fn check_count(&self, group: &GroupInfo) -> Vec<String> {
        let room = group.max_size.unwrap_or(super::MACHINES).min(super::MACHINES) - 1;
        let begun = Instant::now();
        let judged =
            if room == 0 { skipped("the group allows one instance only") } else { self.more(room).await };
        if judged.is_err() {
            self.outcomes.record("increase-count", judged, begun);
        }
        self.known.borrow().iter().skip(1).map(|known| known.id.clone()).collect()
    }

    async fn more(&self, count: u32) -> Judged {
        match self.increase(count).await? {
            0 => failed(format!("`Increase` of {count} accepted none")),
            _ => self.appeared(self.accepted.get()).await,
        }
    }

    /// No more instances have appeared than were accepted, and each list was complete.
    fn check_counts(&self) {
        let seen = self.known.borrow().len();
        let accepted = self.accepted.get();
        let judged = if seen > accepted as usize {
            failed(format!("`Increase` accepted {accepted}, and {seen} instances appeared"))
        } else {
            Ok(())
        };
        self.outcomes.record("increase-count", judged, Instant::now());
        self.outcomes.record("list-complete", Ok(()), Instant::now());
    }

    async fn increase(&self, count: u32) -> Judged<u32> {
        let accepted = self.answer("Increase", self.plugin().increase(count).await)?;
        self.accepted.set(self.accepted.get() + accepted);
        Ok(accepted)
    }

    /// Waits until so many instances have appeared since the run began.
    async fn appeared(&self, count: u32) -> Judged {
        let enough = poll(self.limits.boot, async || {
            self.listed().await?;
            Ok((self.known.borrow().len() >= count as usize).then_some(()))
        });
        if enough.await?.is_some() {
            return Ok(());
        }
        let within = Pretty(self.limits.boot);
        let seen = self.known.borrow().len();
        failed(format!("{seen} of {count} instances appeared within {within}"))
    }

    /// Waits until an instance runs.
    pub(super) async fn runs(&self, id: &str) -> Judged {
        let mut last = None;
        let running = poll(self.limits.boot, async || {
            last = states(&self.listed().await?).get(id).copied();
            match last {
                Some(InstanceState::Running) => Ok(Some(())),
                Some(InstanceState::Timeout) => failed(format!("the plugin has given up `{id}`")),
                _ => Ok(None),
            }
        });
        match (running.await?, last) {
            (Some(()), _) => Ok(()),
            (None, Some(state)) => failed(
                format!("after {}, `{id}` is still {state:?}", Pretty(self.limits.boot)).to_lowercase(),
            ),
            (None, None) => failed(format!("`{id}` is not listed")),
        }
    }

    /// The list, which has to have every instance that the kit has not removed.
    pub(super) async fn listed(&self) -> Judged<Vec<SeenInstance>> {
        let all = self.list().await?;
        let mut known = self.known.borrow_mut();
        if let Some(missing) = known.iter().find(|known| !known.ended && !has(&all, &known.id)) {
            let came = format!("a list lacks `{}`, which an earlier one had", missing.id);
            self.outcomes.record("list-complete", failed(came), Instant::now());
        }
        for seen in &all {
            if !known.iter().any(|known| known.id == seen.id) {
                known.push(KitInstance { id: seen.id.clone(), ended: false, host_key: None });
            }
        }
        Ok(all)
    }

    /// Kills the plugin, and lists its instances again; true if all of them are listed.
    pub(super) async fn check_restart(&self, first: &str) -> bool {
        self.kill();
        let is_listed = self.outcomes.check("restart-listed", self.listed_again()).await;
        let login = async {
            if !is_listed {
                return skipped(super::NOT_LISTED);
            }
            self.logs_in(first).await
        };
        let is_in = self.outcomes.check("restart-login", login).await;
        self.is_locked_out.set(!is_in);
        is_listed
    }

    async fn listed_again(&self) -> Judged {
        let mut missing: Vec<String> = self.known.borrow().iter().map(|known| known.id.clone()).collect();
        let all = self.list().await?;
        missing.retain(|id| !has(&all, id));
        let Some(first) = missing.first() else { return Ok(()) };
        let came = format!("the list of the new process lacks `{first}`");
        self.forgotten.replace(missing);
        failed(came)
    }

    /// The plugin's own check of an instance.
    pub(super) async fn heartbeat(&self, id: &str) -> Judged {
        self.answer("Heartbeat", self.plugin().heartbeat(id).await)
    }
}

fn has(all: &[SeenInstance], id: &str) -> bool {
    all.iter().any(|seen| seen.id == id)
}

impl Kit {
    /// Suspends an instance, and resumes it, if it is listed.
    pub(super) async fn check_tier(&self, first: &str, group: &GroupInfo, is_listed: bool) {
        if !group.suspends || !is_listed {
            let not_offered = "the plugin does not offer it: its capabilities lack `suspend_resume`";
            let why = if group.suspends { super::NOT_LISTED } else { not_offered };
            return self.skip(&["suspend", "resume"], why);
        }
        let is_suspended = self.outcomes.check("suspend", self.suspended(first)).await;
        let resumed = async {
            if !is_suspended {
                return skipped("no instance is suspended, see `suspend`");
            }
            self.resumed(first).await
        };
        self.outcomes.check("resume", resumed).await;
    }

    async fn suspended(&self, id: &str) -> Judged {
        let ids = [id.to_owned()];
        let accepted = self.answer("Suspend", self.plugin().suspend(&ids).await)?;
        if accepted.is_empty() {
            return failed("`Suspend` accepted no instance");
        }
        let mut last = None;
        let done = poll(self.limits.end, async || {
            last = states(&self.listed().await?).get(id).copied();
            Ok((last == Some(InstanceState::Suspended)).then_some(()))
        });
        if done.await?.is_some() {
            return Ok(());
        }
        let last = last.map_or_else(|| "not listed".to_owned(), |state| format!("{state:?}").to_lowercase());
        failed(format!("after {}, `{id}` is {last}", Pretty(self.limits.end)))
    }

    async fn resumed(&self, id: &str) -> Judged {
        let accepted = self.answer("Resume", self.plugin().resume(&[id.to_owned()]).await)?;
        if accepted.is_empty() {
            return failed("`Resume` accepted no instance");
        }
        self.runs(id).await?;
        self.logs_in(id).await
    }
}

impl Kit {
    /// Removes one instance, twice. The first one has to stay.
    pub(super) async fn check_ends(&self, first: &str, other: Option<&String>) {
        let Some(other) = other else {
            return self.skip(ENDS, "there is only one instance, see `increase-count`");
        };
        let is_accepted = self.outcomes.check("decrease", self.removed(other)).await;
        let ends = async {
            if !is_accepted {
                return skipped("the removal was not accepted, see `decrease`");
            }
            self.gone(other).await
        };
        let is_gone = self.outcomes.check("decrease-ends", ends).await;
        let spared = async {
            if !is_accepted {
                return skipped("the removal was not accepted, see `decrease`");
            }
            self.spared(first).await
        };
        let is_spared = self.outcomes.check("decrease-spares-others", spared).await;
        let repeated = async {
            if !(is_gone && is_spared) {
                return skipped("an earlier check of removals failed");
            }
            // Both answers are permitted: an error, and nothing removed.
            self.again(other).await?;
            self.spared(first).await
        };
        self.outcomes.check("decrease-gone", repeated).await;
    }

    async fn removed(&self, id: &str) -> Judged {
        self.mark_ended(id);
        let accepted = self.answer("Decrease", self.plugin().decrease(&[id.to_owned()]).await)?;
        if accepted.is_empty() { failed("it accepted no removal") } else { Ok(()) }
    }

    async fn again(&self, id: &str) -> Judged {
        match self.plugin().decrease(&[id.to_owned()]).await {
            Err(error) if error.kind == CallErrorKind::Refused => self.answer("Decrease", Ok(())),
            answer => self.answer("Decrease", answer).map(drop),
        }
    }

    /// Waits until no list has an instance.
    async fn gone(&self, id: &str) -> Judged {
        let gone =
            poll(self.limits.end, async || Ok((!states(&self.list().await?).contains_key(id)).then_some(())));
        match gone.await? {
            Some(()) => Ok(()),
            None => failed(format!("`{id}` is still listed after {}", Pretty(self.limits.end))),
        }
    }

    /// Every instance that was not removed still exists.
    async fn spared(&self, first: &str) -> Judged {
        let all = self.list().await?;
        let states = states(&all);
        let known = self.known.borrow().clone();
        for one in known.iter().filter(|one| !one.ended) {
            match states.get(one.id.as_str()) {
                Some(InstanceState::Deleting) => {
                    return failed(format!("`{}` is being deleted, too", one.id));
                }
                Some(_) => {}
                None => return failed(format!("`{}` is gone, too", one.id)),
            }
        }
        match self.logs_in(first).await {
            Err(verdict @ CheckVerdict::Failed(_)) => Err(verdict),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn mark_ended(&self, id: &str) {
        if let Some(known) = self.known.borrow_mut().iter_mut().find(|known| known.id == id) {
            known.ended = true;
        }
    }

    /// Ends every instance of the group. What is left, by ID.
    pub async fn clean_up(&self) -> Vec<String> {
        let begun = Instant::now();
        for known in self.known.borrow_mut().iter_mut() {
            known.ended = true;
        }
        let mut forgotten = self.remove_forgotten().await;
        let mut requested: Option<Instant> = None;
        let mut left = Vec::new();
        let empty = poll(self.limits.end, async || {
            // A list or a removal that fails now may work the next time.
            let Ok(all) = self.listed().await else { return Ok(None) };
            left = all.iter().map(|seen| seen.id.clone()).collect();
            forgotten.retain(|id| !left.contains(id));
            let open: Vec<String> = all
                .iter()
                .filter(|seen| seen.state != InstanceState::Deleting)
                .map(|seen| seen.id.clone())
                .collect();
            if all.is_empty() {
                return Ok(Some(()));
            }
            if !open.is_empty() && requested.is_none_or(|at| at.elapsed() >= REPEAT) {
                requested = Some(Instant::now());
                for id in &open {
                    self.mark_ended(id);
                }
                let _unheard = self.answer("Decrease", self.plugin().decrease(&open).await);
            }
            Ok(None)
        });
        let empty = empty.await;
        let judged = match empty {
            Ok(Some(())) if forgotten.is_empty() => Ok(()),
            Ok(Some(())) => {
                let all = forgotten.join(", ");
                Err(CheckVerdict::Warned(format!(
                    "the plugin has forgotten its instances, which may exist: {all}"
                )))
            }
            _ if left.is_empty() => failed("no list says what is left"),
            _ => failed(format!("left: {}", left.join(", "))),
        };
        self.outcomes.record("nothing-left", judged, begun);
        if self.accepted.get() > 0 {
            self.check_counts();
        }
        left.extend(forgotten);
        left
    }

    /// Requests the removal of instances that the plugin no longer lists. Those whose removal it did not accept, by ID.
    async fn remove_forgotten(&self) -> Vec<String> {
        let mut forgotten = self.forgotten.borrow().clone();
        if !forgotten.is_empty() {
            // An error is no surprise, and `restart-listed` has failed.
            let accepted = self.plugin().decrease(&forgotten).await.unwrap_or_default();
            forgotten.retain(|id| !accepted.contains(id));
        }
        forgotten
    }
}
