//! The calls of one pool's plugin: `Update`, `Increase`, `Decrease` and `Suspend` strictly one after the other, with the record.
//!
//! Plugins are made for that. Launches that come meanwhile share the next call; so do terminations and lists. All
//! providers of a pool in this process share one queue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::report::ApiCalls;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;

use super::book::Book;
use super::group::{GroupInfo, InstanceGroup, call_failure};
use super::record::{Books, PoolRecord, RecordError};
use greenroom_core::text::with_causes;

mod changes;
mod launches;

/// Makes the plugin when it is first needed.
pub type MakeGroup = Rc<dyn Fn() -> Result<Rc<dyn InstanceGroup>, ProviderError>>;

/// The rules by which a pool's [`PluginQueue`] decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRules {
    /// The time limit for a launched machine to appear in an update.
    pub appears_within: Duration,
    /// True if machines that no launch requested may serve launches.
    pub adopt: bool,
}

/// One pool's plugin.
pub struct PluginQueue {
    pub(super) pool: PoolName,
    clock: Rc<dyn Clock>,
    record: PoolRecord,
    serial: Serial,
    /// The settings from which the plugin is made, as text; with what makes it.
    maker: RefCell<(String, MakeGroup)>,
    group: RefCell<Option<Rc<dyn InstanceGroup>>>,
    rules: RefCell<QueueRules>,
    /// The right to write the record.
    writer: RefCell<Option<File>>,
    books: RefCell<Books>,
    /// The books as they are on disk.
    stored: RefCell<Books>,
    info: RefCell<Option<GroupInfo>>,
    updates: Cell<u64>,
    removals: Cell<u64>,
    /// The last update: when it began, or why it failed.
    updated: RefCell<Option<Result<Stamp, ProviderError>>>,
    /// The time when the last good update began.
    last_good: Cell<Option<Stamp>>,
    /// The answers to launches that are over.
    launched: RefCell<BTreeMap<InstanceId, Result<(), ProviderError>>>,
    /// The reason the last removal failed.
    removal_failure: RefCell<Option<ProviderError>>,
    calls: Cell<ApiCalls>,
    /// The next update is by a new process of the plugin.
    restarts: Cell<bool>,
}

impl std::fmt::Debug for PluginQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginQueue").field("pool", &self.pool).finish_non_exhaustive()
    }
}

type QueueKey = (PathBuf, PoolName);

thread_local! {
    /// All pools of a keeper share one thread.
    static QUEUES: RefCell<BTreeMap<QueueKey, Weak<PluginQueue>>> = const { RefCell::new(BTreeMap::new()) };
}

impl PluginQueue {
    /// The queue of a pool. `settings` shows whether the plugin has to be made anew.
    pub fn of(
        record: PoolRecord,
        pool: &PoolName,
        clock: Rc<dyn Clock>,
        rules: QueueRules,
        settings: String,
        make: MakeGroup,
    ) -> Rc<Self> {
        let key = (record.dir().to_owned(), pool.clone());
        let known = QUEUES.with_borrow(|queues| queues.get(&key).and_then(Weak::upgrade));
        if let Some(queue) = known {
            queue.configure(rules, settings, make);
            return queue;
        }
        let queue = Rc::new(Self {
            pool: pool.clone(),
            clock,
            record,
            serial: Serial::default(),
            maker: RefCell::new((settings, make)),
            group: RefCell::default(),
            rules: RefCell::new(rules),
            writer: RefCell::default(),
            books: RefCell::default(),
            stored: RefCell::default(),
            info: RefCell::default(),
            updates: Cell::default(),
            removals: Cell::default(),
            updated: RefCell::default(),
            last_good: Cell::default(),
            launched: RefCell::default(),
            removal_failure: RefCell::default(),
            calls: Cell::default(),
            restarts: Cell::default(),
        });
        QUEUES.with_borrow_mut(|queues| {
            queues.retain(|_, queue| queue.strong_count() > 0);
            queues.insert(key, Rc::downgrade(&queue));
        });
        queue
    }

    /// The table has been read again. A plugin with other settings is another process.
    fn configure(&self, rules: QueueRules, settings: String, make: MakeGroup) {
        self.rules.replace(rules);
        if self.maker.borrow().0 != settings {
            self.maker.replace((settings, make));
            self.group.replace(None);
            self.updated.replace(None);
            self.last_good.set(None);
        }
    }

    /// Starts the plugin again with the next update: no call of the queue is under way then.
    pub(super) fn restart_plugin(&self) {
        self.restarts.set(true);
    }

    /// Calls that are put off after failures are made at once.
    pub(super) fn forget_failures(&self) {
        if let Some(group) = self.group.borrow().as_ref() {
            group.forget_failures();
        }
    }

    pub(super) fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// The plugin, made when it is first needed.
    pub(super) fn group(&self) -> Result<Rc<dyn InstanceGroup>, ProviderError> {
        if let Some(group) = self.group.borrow().as_ref() {
            return Ok(Rc::clone(group));
        }
        let make = Rc::clone(&self.maker.borrow().1);
        let group = make()?;
        self.group.replace(Some(Rc::clone(&group)));
        Ok(group)
    }

    /// The plugin's group, as of its last start; `None`: it has not started.
    pub(super) fn info(&self) -> Option<GroupInfo> {
        self.info.borrow().clone()
    }

    pub(super) fn rules(&self) -> QueueRules {
        self.rules.borrow().clone()
    }

    pub(super) fn api_calls(&self) -> ApiCalls {
        self.calls.get()
    }

    pub(super) fn last_good(&self) -> Option<Stamp> {
        self.last_good.get()
    }

    /// Reads the book of the present group.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        self.change(|book| read(book))
    }

    /// Changes the book of the present group. Nothing is on disk before [`store`](Self::store).
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let group = self.info.borrow().as_ref().map(|info| info.id.clone()).unwrap_or_default();
        change(self.books.borrow_mut().entry(group).or_default())
    }

    /// Another group's launch: an instance that the plugin made with an earlier configuration.
    pub(super) fn other_group_of(&self, instance: &InstanceId) -> Option<String> {
        let books = self.books.borrow();
        let has = |(_, book): &(&String, &Book)| book.machines().contains_key(instance);
        books.iter().find(has).map(|(group, _)| group.clone())
    }

    /// Takes the right to write, and reads what is stored. Without it, the record of another process is read.
    pub(super) fn open(&self) -> Result<bool, ProviderError> {
        let failed = |error: RecordError| {
            let why = format!("cannot read the pool's record: {}", with_causes(&error));
            ProviderError::new(ErrorClass::Transient, why)
        };
        if self.writer.borrow().is_some() {
            return Ok(true);
        }
        let lock = self.record.lock().map_err(|error| failed(error.into()))?;
        let books = self.record.read().map_err(failed)?;
        self.stored.replace(books.clone());
        self.books.replace(books);
        let is_writer = lock.is_some();
        self.writer.replace(lock);
        Ok(is_writer)
    }

    /// Writes the books, if they differ from those on disk.
    pub(super) async fn store(&self) -> Result<(), ProviderError> {
        if self.writer.borrow().is_none() {
            return Ok(());
        }
        let mut books = self.books.borrow().clone();
        books.retain(|_, book| *book != Book::default());
        if *self.stored.borrow() == books {
            return Ok(());
        }
        self.record.write(&books).await.map_err(|error| {
            ProviderError::new(ErrorClass::Transient, format!("cannot store the pool's record: {error}"))
        })?;
        self.stored.replace(books);
        Ok(())
    }

    /// Counts a call of the plugin.
    fn counted<T>(&self, answer: Result<T, super::group::CallError>) -> Result<T, super::group::CallError> {
        let mut calls = self.calls.get();
        *(if answer.is_ok() { &mut calls.ok } else { &mut calls.failed }) += 1;
        self.calls.set(calls);
        answer
    }

    /// Makes sure that the book is from an update that began at most `age` ago; if `age` is zero, from one that begins
    /// after this request. An update that fails, fails for all who wait for it.
    pub(super) async fn update(self: &Rc<Self>, age: Duration) -> Result<Stamp, ProviderError> {
        let requested = self.now();
        if let Some(Ok(begun)) = self.updated.borrow().as_ref()
            && !age.is_zero()
            && requested.since(*begun) <= age
        {
            return Ok(*begun);
        }
        let queue = Rc::clone(self);
        let before = self.updates.get();
        self.serial
            .run(async move {
                // One for all who waited.
                if queue.updates.get() == before {
                    queue.update_now().await;
                }
            })
            .await;
        let updated = self.updated.borrow().clone();
        updated.unwrap_or_else(|| {
            let why = "the plugin's settings have changed meanwhile";
            Err(ProviderError::new(ErrorClass::Transient, why))
        })
    }

    /// An update, in the queue.
    pub(super) async fn update_now(&self) {
        self.updates.set(self.updates.get() + 1);
        let begun = self.now();
        let updated = self.try_update(begun).await.map(|()| begun);
        if updated.is_ok() {
            self.last_good.set(Some(begun));
        }
        self.updated.replace(Some(updated));
    }

    async fn try_update(&self, begun: Stamp) -> Result<(), ProviderError> {
        self.open()?;
        if self.restarts.take() {
            self.group.replace(None);
        }
        let group = self.group()?;
        let failed = |error| call_failure("list its instances", &error);
        let info = self.counted(group.info().await).map_err(failed)?;
        let seen = self.counted(group.update().await).map_err(failed)?;
        // A plugin that was started meanwhile may serve another group.
        let after = group.info().await.map_err(failed)?;
        if after.id != info.id {
            let why = "the plugin was started again and serves another group now";
            return Err(ProviderError::new(ErrorClass::Transient, why));
        }
        self.info.replace(Some(after));
        let within = self.rules().appears_within;
        self.change(|book| book.update(&seen, within, begun));
        // A machine counts as an instance's only once that is on disk: after a restart, it is the same one.
        self.store().await
    }
}

type Operation = Shared<LocalBoxFuture<'static, ()>>;

/// A queue that runs at most one operation.
#[derive(Default)]
pub struct Serial {
    present: RefCell<Option<Operation>>,
}

impl std::fmt::Debug for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serial").finish_non_exhaustive()
    }
}

impl Serial {
    /// Runs an operation after those that came before.
    pub async fn run(&self, operation: impl Future<Output = ()> + 'static) {
        let operation = operation.boxed_local().shared();
        loop {
            let present = self.present.borrow().clone();
            let Some(present) = present else { break };
            self.finish(present).await;
        }
        self.present.replace(Some(operation.clone()));
        self.finish(operation).await;
    }

    async fn finish(&self, operation: Operation) {
        operation.clone().await;
        let mut present = self.present.borrow_mut();
        if present.as_ref().is_some_and(|present| present.ptr_eq(&operation)) {
            *present = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn an_operation_that_its_caller_gave_up_is_continued_by_the_next_one() {
        let serial = Serial::default();
        let go = Rc::new(Notify::new());
        let log = Rc::new(RefCell::new(vec![]));
        let wait = Rc::clone(&go);
        let noted = Rc::clone(&log);
        let slow = async move {
            noted.borrow_mut().push("begun");
            wait.notified().await;
            noted.borrow_mut().push("ended");
        };
        assert!(tokio::time::timeout(Duration::from_millis(5), serial.run(slow)).await.is_err());
        let noted = Rc::clone(&log);
        let next = async move { noted.borrow_mut().push("next") };
        assert!(tokio::time::timeout(Duration::from_millis(5), serial.run(next)).await.is_err());
        go.notify_one();
        serial.run(async {}).await;
        assert_eq!(*log.borrow(), ["begun", "ended"], "what had not begun goes with its caller");
    }

    #[tokio::test]
    async fn operations_never_overlap() {
        let serial = Rc::new(Serial::default());
        let busy = Rc::new(Cell::new(false));
        let operation = || {
            let busy = Rc::clone(&busy);
            async move {
                assert!(!busy.replace(true), "two at a time");
                tokio::task::yield_now().await;
                busy.set(false);
            }
        };
        futures_util::future::join_all((0..20).map(|_| serial.run(operation()))).await;
        assert!(!busy.get());
    }
}
