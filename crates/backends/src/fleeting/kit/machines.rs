//! Requested instances, and what lists show of them.

use std::time::Instant;

use greenroom_core::time::Pretty;

use super::{Kit, Known, states};
use crate::fleeting::group::{Group as _, GroupInfo, Seen, State};
use crate::program::kit::check::{Judged, failed, skipped};
use crate::program::kit::poll::poll;

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
    pub(super) fn check_counts(&self) {
        let (seen, accepted) = (self.known.borrow().len(), self.accepted.get());
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
        let (within, seen) = (Pretty(self.limits.boot), self.known.borrow().len());
        failed(format!("{seen} of {count} instances appeared within {within}"))
    }

    /// Waits until an instance runs.
    pub(super) async fn runs(&self, id: &str) -> Judged {
        let mut last = None;
        let running = poll(self.limits.boot, async || {
            last = states(&self.listed().await?).get(id).copied();
            match last {
                Some(State::Running) => Ok(Some(())),
                Some(State::Timeout) => failed(format!("the plugin has given up `{id}`")),
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
    pub(super) async fn listed(&self) -> Judged<Vec<Seen>> {
        let all = self.list().await?;
        let mut known = self.known.borrow_mut();
        if let Some(missing) = known.iter().find(|known| !known.ended && !has(&all, &known.id)) {
            let came = format!("a list lacks `{}`, which an earlier one had", missing.id);
            self.outcomes.record("list-complete", failed(came), Instant::now());
        }
        for seen in &all {
            if !known.iter().any(|known| known.id == seen.id) {
                known.push(Known { id: seen.id.clone(), ended: false, host_key: None });
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

fn has(all: &[Seen], id: &str) -> bool {
    all.iter().any(|seen| seen.id == id)
}
