//! A provider under test, and what every list of it is held to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Listed, Listing, Status, Tags};
use greenroom_core::time::Pretty;
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError};

use super::report::Outcomes;
use super::verdict::{CheckVerdict, Judged, failed, poll, poll_every, skipped};

/// The check that each complete list has what an earlier one had. Every list of a run is judged by it.
pub const LIST_COMPLETE: &str = "list-complete";
/// The check that a launch without capacity or quota has created nothing. Every launch of a run is judged by it.
pub const LAUNCH_REFUSAL: &str = "launch-refusal";

/// Between two looks at an adapter, whose calls cost little.
const LOOK: Duration = Duration::from_millis(10);
/// The most that Greenroom reads of a console, in bytes.
const CONSOLE: usize = 64 * 1024;

/// What is under test, and so what is no violation.
#[derive(Debug, Clone, Copy)]
pub enum SubjectKind<'a> {
    /// A provider of Greenroom's own. It shows a launched instance immediately, and answers each call.
    Adapter,
    /// The plain port of a program. It may hide new instances for a while. A refusal that may pass is repeated, and an ID may be
    /// impossible, and so invalid. A call without an answer is another check's to judge.
    Program(&'a Outcomes),
    /// The plain port of a plugin. The same, but its instances have no tags: all of them are the run's.
    Group(&'a Outcomes),
}

/// The longest times.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Until a new instance is listed.
    pub appears: Duration,
    /// Until a new instance runs.
    pub boot: Duration,
    /// From the request of a termination until the instance is gone.
    pub end: Duration,
}

/// The memory of a run: which instances lists have to show.
#[derive(Debug, Default)]
pub struct Watch {
    /// The tags of launches that were accepted.
    launched: RefCell<Vec<Tags>>,
    /// Instances that were listed, with their pools, and that the run has not begun to end.
    expected: RefCell<BTreeMap<InstanceId, PoolName>>,
    /// Instances that the run has begun to end.
    ended: RefCell<BTreeSet<InstanceId>>,
}

impl Watch {
    /// Records that the run ends an instance: lists may lack it from now on.
    pub fn forget(&self, id: &InstanceId) {
        self.expected.borrow_mut().remove(id);
        self.ended.borrow_mut().insert(id.clone());
    }

    pub fn is_ended(&self, id: &InstanceId) -> bool {
        self.ended.borrow().contains(id)
    }

    /// The instances that a list has to show now, with their pools.
    pub fn expected(&self) -> BTreeMap<InstanceId, PoolName> {
        self.expected.borrow().clone()
    }

    /// Records that a launch was accepted.
    pub(super) fn launched(&self, request: &LaunchRequest) {
        let mut launched = self.launched.borrow_mut();
        if !launched.contains(&request.tags) {
            launched.push(request.tags.clone());
        }
    }

    fn is_launched(&self, tags: &Tags) -> bool {
        self.launched.borrow().contains(tags)
    }
}

/// A provider under test.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub provider: &'a dyn Provider,
    pub kind: SubjectKind<'a>,
    pub limits: Limits,
    pub watch: &'a Watch,
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject")
            .field("limits", &self.limits)
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}

/// True for an instance that is launched and neither ends nor stops.
pub fn is_alive(listed: &Listed) -> bool {
    matches!(listed.status, Status::Starting | Status::Running)
}

impl Subject<'_> {
    pub(super) fn is_adapter(&self) -> bool {
        matches!(self.kind, SubjectKind::Adapter)
    }

    /// The verdict on a failed call.
    pub fn refused<T>(&self, error: &ProviderError) -> Judged<T> {
        match self.kind {
            SubjectKind::Adapter => failed(error.to_string()),
            SubjectKind::Program(_) | SubjectKind::Group(_) => match error.class() {
                ErrorClass::Unknown => skipped(error.failure.message.clone()),
                _ => failed(error.failure.message.clone()),
            },
        }
    }

    /// The answer of a call that has to succeed.
    pub fn answer<T>(&self, answer: Result<T, ProviderError>) -> Judged<T> {
        answer.or_else(|error| self.refused(&error))
    }

    /// True if a repeat of a refused call may succeed.
    pub(super) fn may_pass(&self, error: &ProviderError) -> bool {
        !self.is_adapter() && matches!(error.class(), ErrorClass::Throttled { .. } | ErrorClass::Transient)
    }

    /// Records a violation of what every call is judged by. A test ends with it.
    pub(super) fn violated(&self, check: &str, came: String) -> Judged {
        match self.kind {
            SubjectKind::Adapter => failed(came),
            SubjectKind::Program(outcomes) | SubjectKind::Group(outcomes) => {
                outcomes.record(check, failed(came), Instant::now());
                Ok(())
            }
        }
    }

    /// Polls until a look finds something, or the time has passed.
    pub async fn poll<T>(
        &self,
        within: Duration,
        look: impl AsyncFnMut() -> Judged<Option<T>>,
    ) -> Judged<Option<T>> {
        if self.is_adapter() { poll_every(LOOK, within, look).await } else { poll(within, look).await }
    }

    /// One list, judged by [`seen`](Self::seen).
    pub async fn list(&self, pool: &PoolName) -> Judged<Listing> {
        let before = self.watch.expected();
        let listing = self.unjudged(pool).await?;
        self.seen(pool, &before, &listing)?;
        Ok(listing)
    }

    /// One list that is not compared with earlier ones.
    async fn unjudged(&self, pool: &PoolName) -> Judged<Listing> {
        let listing = self.answer(self.provider.list(pool).await)?;
        if self.is_adapter() && !listing.complete {
            return failed(format!("a list of the pool `{pool}` is not complete"));
        }
        Ok(listing)
    }

    /// Judges a list: a complete one has every instance that an earlier one had. `before`: what [`Watch::expected`] said
    /// before the call, because instances that are ended during the call may be missing.
    pub fn seen(
        &self,
        pool: &PoolName,
        before: &BTreeMap<InstanceId, PoolName>,
        listing: &Listing,
    ) -> Judged {
        let lacks = |id: &InstanceId| !listing.instances.iter().any(|listed| listed.id == *id);
        let expected = self.watch.expected();
        let missing = before.iter().find(|(id, of)| *of == pool && expected.contains_key(*id) && lacks(id));
        if let (true, Some((id, _))) = (listing.complete, missing) {
            self.violated(LIST_COMPLETE, format!("a complete list lacks `{id}`, which an earlier list had"))?;
        }
        for listed in listing.instances.iter().filter(|listed| is_alive(listed)) {
            let is_ours = match self.kind {
                SubjectKind::Group(_) => true,
                SubjectKind::Adapter | SubjectKind::Program(_) => {
                    listed.tags.as_ref().is_some_and(|tags| self.watch.is_launched(tags))
                }
            };
            if is_ours && !self.watch.is_ended(&listed.id) {
                self.watch.expected.borrow_mut().insert(listed.id.clone(), pool.clone());
            }
        }
        Ok(())
    }

    /// One list's entry of an instance.
    pub async fn listed(&self, pool: &PoolName, id: &InstanceId) -> Judged<Option<Listed>> {
        Ok(self.list(pool).await?.instances.into_iter().find(|listed| listed.id == *id))
    }

    /// The entry of an instance, where another check than that of complete lists judges whether there is one.
    pub(super) async fn entry(&self, pool: &PoolName, id: &InstanceId) -> Judged<Option<Listed>> {
        Ok(self.unjudged(pool).await?.instances.into_iter().find(|listed| listed.id == *id))
    }

    /// The state of an instance for a sentence: the word of the program's or plugin's own protocol, if its port reports it.
    pub(super) fn state(&self, listed: Option<&Listed>) -> String {
        let Some(listed) = listed else { return "not listed".to_owned() };
        let own = listed.detail.as_deref().filter(|_| !self.is_adapter());
        let own = own.map_or_else(|| format!("{:?}", listed.status).to_lowercase(), str::to_owned);
        format!("listed as `{own}`")
    }

    /// Waits until a list has an instance with a status. One that stops instead fails immediately, if it is to run.
    pub async fn becomes(
        &self,
        pool: &PoolName,
        id: &InstanceId,
        status: Status,
        within: Duration,
    ) -> Judged<Listed> {
        let mut last = None;
        let reached = self.poll(within, async || {
            last = self.listed(pool, id).await?;
            Ok(last.clone().filter(|listed| {
                listed.status == status || (status == Status::Running && listed.status == Status::Stopping)
            }))
        });
        match reached.await? {
            Some(listed) if listed.status == status => Ok(listed),
            Some(listed) => failed(format!("`{id}` is {}, and was to run", self.state(Some(&listed)))),
            None => failed(format!("after {}, `{id}` is {}", Pretty(within), self.state(last.as_ref()))),
        }
    }

    /// The console has at most 64 KiB, and no host key. An empty one is a warning.
    pub async fn console(&self, request: &LaunchRequest, id: &InstanceId) -> Judged {
        let text = self.answer(self.provider.console(id).await)?;
        if text.len() > CONSOLE {
            return failed(format!("`console` answered {} bytes", text.len()));
        }
        if request.keys.secret_lines().next().is_some_and(|line| text.contains(line)) {
            return failed("the host key is on the console");
        }
        if text.is_empty() {
            return Err(CheckVerdict::Warned("the console is empty".to_owned()));
        }
        Ok(())
    }
}
