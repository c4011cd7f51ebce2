//! The calls of one pool's plugin: `Update`, `Increase`, `Decrease` and `Suspend` strictly one after the other, with the record.
//!
//! Plugins are made for that. Launches that come meanwhile share the next call; so do terminations and lists. All
//! providers of a pool in this process share one lane.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::report::ApiCalls;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;

use super::book::Book;
use super::failures;
use super::group::{Group, GroupInfo};
use super::record::{Books, Record};
use super::serial::Serial;

mod decrease;
mod increase;
mod suspend;
mod update;

/// What makes the plugin, when it is first needed.
pub type MakeGroup = Rc<dyn Fn() -> Result<Rc<dyn Group>, ProviderError>>;

/// How a pool's lane decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// How long a launched machine may take to appear in an update.
    pub appears_within: Duration,
    /// Whether machines that no launch requested may serve launches.
    pub adopt: bool,
}

/// One pool's plugin.
pub struct Lane {
    pub(super) pool: PoolName,
    clock: Rc<dyn Clock>,
    record: Record,
    serial: Serial,
    /// The settings from which the plugin is made, as text; with what makes it.
    maker: RefCell<(String, MakeGroup)>,
    group: RefCell<Option<Rc<dyn Group>>>,
    rules: RefCell<Rules>,
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
    /// When the last good update began.
    last_good: Cell<Option<Stamp>>,
    /// The answers to launches that are over.
    launched: RefCell<BTreeMap<InstanceId, Result<(), ProviderError>>>,
    /// Why the last removal failed.
    removal_failure: RefCell<Option<ProviderError>>,
    calls: Cell<ApiCalls>,
    /// The next update is by a new process of the plugin.
    restarts: Cell<bool>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("pool", &self.pool).finish_non_exhaustive()
    }
}

type Key = (PathBuf, PoolName);

thread_local! {
    /// All pools of a keeper share one thread.
    static LANES: RefCell<BTreeMap<Key, Weak<Lane>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Lane {
    /// The lane of a pool. `settings` shows whether the plugin has to be made anew.
    pub fn of(
        record: Record,
        pool: &PoolName,
        clock: Rc<dyn Clock>,
        rules: Rules,
        settings: String,
        make: MakeGroup,
    ) -> Rc<Self> {
        let key = (record.dir().to_owned(), pool.clone());
        let known = LANES.with_borrow(|lanes| lanes.get(&key).and_then(Weak::upgrade));
        if let Some(lane) = known {
            lane.configure(rules, settings, make);
            return lane;
        }
        let lane = Rc::new(Self {
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
        LANES.with_borrow_mut(|lanes| {
            lanes.retain(|_, lane| lane.strong_count() > 0);
            lanes.insert(key, Rc::downgrade(&lane));
        });
        lane
    }

    /// The table has been read again. A plugin with other settings is another process.
    fn configure(&self, rules: Rules, settings: String, make: MakeGroup) {
        self.rules.replace(rules);
        if self.maker.borrow().0 != settings {
            self.maker.replace((settings, make));
            self.group.replace(None);
            self.updated.replace(None);
            self.last_good.set(None);
        }
    }

    /// Starts the plugin again with the next update: no call of the lane is under way then.
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
    pub(super) fn group(&self) -> Result<Rc<dyn Group>, ProviderError> {
        if let Some(group) = self.group.borrow().as_ref() {
            return Ok(Rc::clone(group));
        }
        let make = Rc::clone(&self.maker.borrow().1);
        let group = make()?;
        self.group.replace(Some(Rc::clone(&group)));
        Ok(group)
    }

    /// What the plugin said when it started last; `None`: it has not.
    pub(super) fn info(&self) -> Option<GroupInfo> {
        self.info.borrow().clone()
    }

    pub(super) fn rules(&self) -> Rules {
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

    /// Changes the book of the present group. Nothing is on disk before `store`.
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
        let failed = |error: std::io::Error| {
            ProviderError::new(ErrorClass::Transient, format!("cannot read the pool's record: {error}"))
        };
        if self.writer.borrow().is_some() {
            return Ok(true);
        }
        let lock = self.record.lock().map_err(failed)?;
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
}
