//! Launches in a [`PluginQueue`]: all that wait share one `Increase`.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::Tags;
use greenroom_ports::provider::ProviderError;

use super::PluginQueue;
use crate::fleeting::book::entry::LaunchProgress;
use crate::fleeting::book::{Book, BookEntry, WantAnswer};
use crate::fleeting::group::{CallErrorKind, increase_failure};

/// The maximum age of the update before an `Increase`: what exists before it is not what it makes.
const BEFORE: Duration = Duration::from_secs(5);
/// The most answers that are remembered.
const ANSWERS: usize = 1_000;

impl PluginQueue {
    /// Launches an instance. A repeat with the same token requests nothing.
    pub(in crate::fleeting) async fn launch(
        self: &Rc<Self>,
        instance: &InstanceId,
        token: &str,
        tags: &Tags,
    ) -> Result<(), ProviderError> {
        // Without an update, the group and its foreign machines are unknown.
        self.update(Duration::MAX).await.map_err(not_requested)?;
        if !self.open()? {
            let why = "another process of Greenroom's launches instances of this pool";
            return Err(ProviderError::new(ErrorClass::Transient, why));
        }
        let now = self.now();
        match self.change(|book| book.want(instance, token, tags, now)) {
            WantAnswer::New => drop(self.launched.borrow_mut().remove(instance)),
            WantAnswer::OtherToken => {
                let why = format!("`{instance}` has been launched with a different token");
                return Err(ProviderError::new(ErrorClass::Invalid, why));
            }
            WantAnswer::Known if !self.is_wanted(instance) => return self.repeat(instance).await,
            WantAnswer::Known => {}
        }
        while self.is_wanted(instance) {
            let queue = Rc::clone(self);
            self.serial.run(async move { queue.increase().await }).await;
        }
        self.launched.borrow().get(instance).cloned().unwrap_or(Ok(()))
    }

    fn is_wanted(&self, instance: &InstanceId) -> bool {
        self.read(|book| progress(book, instance) == Some(LaunchProgress::Wanted))
    }

    /// The outcome of a launch whose answer the engine does not have.
    async fn repeat(self: &Rc<Self>, instance: &InstanceId) -> Result<(), ProviderError> {
        let progress = |queue: &Self| queue.read(|book| progress(book, instance));
        if matches!(progress(self), Some(LaunchProgress::Asked | LaunchProgress::GivenUp)) {
            self.update(Duration::ZERO).await?;
        }
        match progress(self) {
            None | Some(LaunchProgress::Wanted | LaunchProgress::Accepted) => Ok(()),
            Some(LaunchProgress::Asked) => {
                let why = "the plugin was asked for the instance and does not show it yet";
                Err(ProviderError::new(ErrorClass::Unknown, why))
            }
            Some(LaunchProgress::GivenUp) => {
                let why = "the plugin was asked for the instance, which has not appeared in time";
                Err(ProviderError::new(ErrorClass::NoCapacity { scope: self.scope() }, why))
            }
        }
    }

    /// The group, as messages name it.
    pub(in crate::fleeting) fn scope(&self) -> String {
        self.info().map_or_else(|| "the group".to_owned(), |info| format!("group {}", info.id))
    }

    /// One call for all launches that wait, in the queue.
    async fn increase(&self) {
        // Launches that begin at the same time join.
        tokio::task::yield_now().await;
        let fresh = !self.restarts.get()
            && self.last_good.get().is_some_and(|begun| self.now().since(begun) <= BEFORE);
        if !fresh {
            self.update_now().await;
        }
        let updated = self.updated.borrow().clone();
        if let Some(Err(error)) = updated {
            let wanted = self.change(|book| book.begin(None, false, self.now()).asked);
            self.change(|book| book.not_made(&wanted));
            return self.answer(&wanted, &Err(not_requested(error)));
        }
        let max_size = self.info().and_then(|info| info.max_size);
        let adopt = self.rules().adopt;
        let batch = self.change(|book| book.begin(max_size, adopt, self.now()));
        self.answer(&batch.adopted, &Ok(()));
        let full = || {
            let most = max_size.map(|most| most.to_string()).unwrap_or_default();
            format!("the plugin allows at most {most} instances in {}", self.scope())
        };
        self.answer(&batch.refused, &Err(ProviderError::new(ErrorClass::Quota, full())));
        if batch.asked.is_empty() {
            // CRASH: an adopted machine that is not stored is foreign again, and the launch is repeated.
            if let Err(error) = self.store().await {
                self.answer(&batch.adopted, &Err(error));
            }
            return;
        }
        self.request(&batch.asked).await;
    }

    /// Calls the plugin for these instances.
    async fn request(&self, asked: &[InstanceId]) {
        let not_made = |error: ProviderError| {
            self.change(|book| book.not_made(asked));
            self.answer(asked, &Err(error));
        };
        let group = match self.group() {
            Ok(group) => group,
            Err(error) => return not_made(error),
        };
        // Some plugins make a key at each start: machines have that of the one that makes them.
        if let Ok(info) = group.info().await {
            self.change(|book| book.made_by(asked, &info.start));
        }
        // CRASH: from here on, the record has them: what appears is theirs.
        if let Err(error) = self.store().await {
            return not_made(error);
        }
        let count = u32::try_from(asked.len()).unwrap_or(u32::MAX);
        let called = self.counted(group.increase(count).await);
        let now = self.now();
        match called {
            Ok(accepted) => {
                let refused = self.change(|book| book.accepted(asked, accepted, now));
                let why = format!("the plugin accepted {accepted} of {count} instances");
                let error = ProviderError::new(ErrorClass::NoCapacity { scope: self.scope() }, why);
                self.answer(asked, &Ok(()));
                self.answer(&refused, &Err(error));
            }
            Err(error) => {
                let failure = increase_failure(&error);
                match error.kind {
                    CallErrorKind::Unknown => self.change(|book| book.unanswered(asked, now)),
                    CallErrorKind::Refused => {
                        self.change(|book| book.failed(asked, now));
                        // It may have been done in part: what exists by now serves the oldest launches.
                        self.update_now().await;
                    }
                    _ => self.change(|book| book.not_made(asked)),
                }
                for instance in asked {
                    let served = self.read(|book| book.machines().contains_key(instance));
                    let answer = if served { Ok(()) } else { Err(failure.clone()) };
                    self.answer(std::slice::from_ref(instance), &answer);
                }
            }
        }
        // CRASH: without this, a restart takes the call as one without an answer.
        if let Err(error) = self.store().await {
            tracing::warn!(pool = %self.pool, "{error}");
        }
    }

    fn answer(&self, instances: &[InstanceId], answer: &Result<(), ProviderError>) {
        let mut launched = self.launched.borrow_mut();
        while launched.len() > ANSWERS {
            launched.pop_first();
        }
        launched.extend(instances.iter().map(|instance| (instance.clone(), answer.clone())));
    }
}

/// Returns the progress of a launch without a machine; `None`: it has one, or had one, or is unknown.
fn progress(book: &Book, instance: &InstanceId) -> Option<LaunchProgress> {
    match book.entry(instance) {
        Some(BookEntry::Intent(intent)) => Some(intent.progress),
        _ => None,
    }
}

/// An error before the call: the launch created nothing.
fn not_requested(error: ProviderError) -> ProviderError {
    match error.class() {
        ErrorClass::Unknown => ProviderError::new(ErrorClass::Transient, error.failure.message),
        _ => error,
    }
}
