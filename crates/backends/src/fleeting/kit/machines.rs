//! Instances of a run: requested, listed, suspended, removed; and the clean-up at the end.

use std::time::{Duration, Instant};

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Listing, Status};
use greenroom_core::time::Pretty;
use greenroom_ports::provider::Provider as _;
use greenroom_providers::conformance::subject::LIST_COMPLETE;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, poll, skipped};

use super::port::is_being_removed;
use super::{Kit, POOL};
use crate::fleeting::group::{CallErrorKind, GroupInfo, InstanceGroup as _};

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
        let first = self.port.seen().first()?.clone();
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
        self.port.seen().into_iter().skip(1).collect()
    }

    async fn more(&self, count: u32) -> Judged {
        match self.increase(count).await? {
            0 => failed(format!("`Increase` of {count} accepted none")),
            _ => self.appeared(self.accepted.get()).await,
        }
    }

    /// No more instances have appeared than were accepted, and each list was complete.
    fn check_counts(&self) {
        let seen = self.port.seen().len();
        let accepted = self.accepted.get();
        let judged = if seen > accepted as usize {
            failed(format!("`Increase` accepted {accepted}, and {seen} instances appeared"))
        } else {
            Ok(())
        };
        self.outcomes.record("increase-count", judged, Instant::now());
        self.outcomes.record(LIST_COMPLETE, Ok(()), Instant::now());
    }

    async fn increase(&self, count: u32) -> Judged<u32> {
        let accepted = self.port.answer("Increase", self.port.plugin().increase(count).await)?;
        self.accepted.set(self.accepted.get() + accepted);
        Ok(accepted)
    }

    /// Waits until so many instances have appeared since the run began.
    async fn appeared(&self, count: u32) -> Judged {
        let enough = poll(self.limits.boot, async || {
            self.listed().await?;
            Ok((self.port.seen().len() >= count as usize).then_some(()))
        });
        if enough.await?.is_some() {
            return Ok(());
        }
        let within = Pretty(self.limits.boot);
        let seen = self.port.seen().len();
        failed(format!("{seen} of {count} instances appeared within {within}"))
    }

    /// Waits until an instance runs.
    pub(super) async fn runs(&self, id: &str) -> Judged {
        self.becomes(id, Status::Running, self.limits.boot).await
    }

    async fn becomes(&self, id: &str, status: Status, within: Duration) -> Judged {
        let (pool, id) = (PoolName::new(POOL), InstanceId::new(id));
        self.subject().becomes(&pool, &id, status, within).await.map(drop)
    }

    /// The list, which has to have every instance that the kit has not removed.
    async fn listed(&self) -> Judged<Listing> {
        self.subject().list(&PoolName::new(POOL)).await
    }

    /// Kills the plugin, and lists its instances again; true if all of them are listed.
    pub(super) async fn check_restart(&self, first: &str) -> bool {
        self.port.kill();
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
        let mut missing = self.port.seen();
        let all = self.list().await?;
        missing.retain(|id| !all.contains(id));
        let Some(first) = missing.first() else { return Ok(()) };
        let came = format!("the list of the new process lacks `{first}`");
        self.forgotten.replace(missing);
        failed(came)
    }

    /// The plugin's own check of an instance.
    pub(super) async fn heartbeat(&self, id: &str) -> Judged {
        self.port.answer("Heartbeat", self.port.plugin().heartbeat(id).await)
    }
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
        self.subject().answer(self.port.suspend(&InstanceId::new(id)).await)?;
        self.becomes(id, Status::Suspended, self.limits.end).await
    }

    async fn resumed(&self, id: &str) -> Judged {
        self.subject().answer(self.port.resume(&InstanceId::new(id)).await)?;
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
        self.subject().terminate(&InstanceId::new(id)).await.map(drop)
    }

    async fn again(&self, id: &str) -> Judged {
        match self.port.plugin().decrease(&[id.to_owned()]).await {
            Err(error) if error.kind == CallErrorKind::Refused => self.port.answer("Decrease", Ok(())),
            answer => self.port.answer("Decrease", answer).map(drop),
        }
    }

    /// Waits until no list has an instance.
    async fn gone(&self, id: &str) -> Judged {
        self.subject().is_unlisted(&PoolName::new(POOL), &InstanceId::new(id)).await
    }

    /// Every instance that was not removed still exists.
    async fn spared(&self, first: &str) -> Judged {
        let pool = PoolName::new(POOL);
        let mut others: Vec<InstanceId> = self.port.seen().iter().map(InstanceId::new).collect();
        others.retain(|id| !self.watch.is_ended(id));
        self.subject().spares(others.iter().map(|id| (&pool, id))).await?;
        match self.logs_in(first).await {
            Err(verdict @ CheckVerdict::Failed(_)) => Err(verdict),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Ends every instance of the group. What is left, by ID.
    pub async fn clean_up(&self) -> Vec<String> {
        let begun = Instant::now();
        for id in self.port.seen() {
            self.watch.forget(&InstanceId::new(id));
        }
        let mut forgotten = self.remove_forgotten().await;
        let mut requested: Option<Instant> = None;
        let mut left = Vec::new();
        let empty = poll(self.limits.end, async || {
            // A list or a removal that fails now may work the next time.
            let Ok(all) = self.listed().await else { return Ok(None) };
            left = all.instances.iter().map(|listed| listed.id.to_string()).collect();
            forgotten.retain(|id| !left.contains(id));
            let open = all.instances.iter().filter(|listed| !is_being_removed(listed));
            let open: Vec<&InstanceId> = open.map(|listed| &listed.id).collect();
            if left.is_empty() {
                return Ok(Some(()));
            }
            if !open.is_empty() && requested.is_none_or(|at| at.elapsed() >= REPEAT) {
                requested = Some(Instant::now());
                for id in &open {
                    self.watch.forget(id);
                }
                let open: Vec<String> = open.iter().map(ToString::to_string).collect();
                let _unheard = self.port.answer("Decrease", self.port.plugin().decrease(&open).await);
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
            let accepted = self.port.plugin().decrease(&forgotten).await.unwrap_or_default();
            forgotten.retain(|id| !accepted.contains(id));
        }
        forgotten
    }
}
