//! Removals, and the clean-up at the end.

use std::time::{Duration, Instant};

use greenroom_core::time::Pretty;

use super::{Kit, states};
use crate::fleeting::group::{CallErrorKind, Group as _, State};
use crate::program::kit::check::{Judged, Verdict, failed, skipped};
use crate::program::kit::poll::poll;

/// A removal that has no effect is requested once more after this time.
const REPEAT: Duration = Duration::from_secs(10);

/// The checks of removals.
pub(super) const ENDS: &[&str] = &["decrease", "decrease-ends", "decrease-spares-others", "decrease-gone"];

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
                Some(State::Deleting) => return failed(format!("`{}` is being deleted, too", one.id)),
                Some(_) => {}
                None => return failed(format!("`{}` is gone, too", one.id)),
            }
        }
        match self.logs_in(first).await {
            Err(verdict @ Verdict::Failed(_)) => Err(verdict),
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
            let open: Vec<String> =
                all.iter().filter(|seen| seen.state != State::Deleting).map(|seen| seen.id.clone()).collect();
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
                Err(Verdict::Warned(format!(
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
