//! The host port on the runner host.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::attempt::{AttemptSeen, Closed, End};
use greenroom_core::ids::{AttemptName, Generation, PoolName};
use greenroom_core::order::LaunchOrder;
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;
use greenroom_ports::attempts::{Assignment, AttemptRecord, Attempts, Closing};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::{Identity, Leadership};
use greenroom_ports::lock::Lock;
use greenroom_ports::reports::Reports;
use greenroom_ports::wakeups::{MailboxName, WakeReason, WakeUps};
use greenroom_system::process::Children;
use greenroom_system::socket_dir::send_wake_up;
use greenroom_system::threads::disk::BlockingPool;

use super::clock::{SystemClock, Times};
use super::keeper::ReplacementWatch;
use super::lease::Lease;
use super::mailboxes::{self, Mailboxes};
use super::owner;
use super::pool_files::ReportHook;
use super::runner::Runner;
use super::spawn::KeeperCommand;
use super::state_dir::StateDir;
use super::wait::Signals;

/// The kind of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A call of a runner, which is watched; `tmpdir` is the attempt's TMPDIR.
    Driver { tmpdir: Option<PathBuf> },
    /// Reconciles the pools.
    Keeper,
    /// An operator's command: no runner is watched.
    Operator,
}

impl Role {
    pub(super) fn tmpdir(&self) -> Option<&Path> {
        match self {
            Self::Driver { tmpdir } => tmpdir.as_deref(),
            Self::Keeper | Self::Operator => None,
        }
    }
}

/// A closed attempt with a free lease. It no longer changes, so it is read only once.
#[derive(Debug)]
pub(super) struct FinishedAttempt {
    /// Identifies its directory: an attempt of the same name has another one.
    pub(super) inode: u64,
    pub(super) pool: PoolName,
    pub(super) seen: AttemptSeen,
}

/// The state directory of the runner host. Files are opened only when they are needed.
#[derive(Debug)]
pub struct LocalHost {
    pub(super) state: StateDir,
    pub(super) role: Role,
    pub(super) keeper_command: KeeperCommand,
    pub(super) signals: Signals,
    pub(super) clock: SystemClock,
    pub(super) times: Times,
    runner: OnceCell<Runner>,
    pub(super) boxes: Mailboxes,
    /// The leases that this process holds, to write the time into them.
    pub(super) leases: RefCell<BTreeMap<AttemptName, Weak<Lease>>>,
    pub(super) replacement_watch: RefCell<Option<Rc<ReplacementWatch>>>,
    pub(super) children: Children,
    pub(super) finished: RefCell<BTreeMap<AttemptName, FinishedAttempt>>,
    /// Work that may block, apart from each other: removals of jobs' trees and of TMPDIRs, and syncs.
    pub(super) trees: BlockingPool,
    pub(super) tmpdirs: BlockingPool,
    pub(super) syncs: BlockingPool,
    /// Attempts that cannot be read, and why, as logged.
    pub(super) unreadable: RefCell<BTreeMap<AttemptName, String>>,
    /// The time of the last search for orphaned builds.
    pub(super) searched_builds: Cell<Option<Stamp>>,
    pub(super) report_hook: RefCell<Option<ReportHook>>,
}

impl LocalHost {
    /// `keeper_command` is what `start_keeper` starts.
    pub fn open(
        state: StateDir,
        role: Role,
        keeper_command: KeeperCommand,
        signals: Signals,
    ) -> Result<Self, HostError> {
        let clock = SystemClock::new(state.manager())?;
        Ok(Self {
            state,
            role,
            keeper_command,
            signals,
            clock,
            times: Times::default(),
            runner: OnceCell::new(),
            boxes: Mailboxes::default(),
            leases: RefCell::default(),
            replacement_watch: RefCell::default(),
            children: Children::default(),
            finished: RefCell::default(),
            trees: BlockingPool::default(),
            tmpdirs: BlockingPool::default(),
            syncs: BlockingPool::default(),
            unreadable: RefCell::default(),
            searched_builds: Cell::default(),
            report_hook: RefCell::default(),
        })
    }

    /// Replaces the timeouts and intervals.
    #[must_use]
    pub fn with_times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// A pidfd of the calling runner, if any, for a process that waits for the runner's exit.
    pub fn runner_pidfd(&self) -> Option<OwnedFd> {
        self.runner()?.pidfd()
    }

    /// The mailbox of a pool's keeper: a datagram socket. Any datagram wakes the keeper.
    pub fn mailbox(&self, pool: &PoolName) -> Option<PathBuf> {
        Some(self.state.pool(pool).ok()?.join(mailboxes::WAKE))
    }

    /// The runner of a driver call, determined on first use.
    pub(super) fn runner(&self) -> Option<&Runner> {
        matches!(self.role, Role::Driver { .. }).then(|| self.runner.get_or_init(Runner::find))
    }
}

impl Clock for LocalHost {
    fn now(&self) -> Stamp {
        self.clock.now()
    }
}

#[async_trait(?Send)]
impl Attempts for LocalHost {
    async fn begin_attempt(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError> {
        self.begin(name, record).await
    }

    async fn enter_attempt(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError> {
        self.enter(name).await
    }

    async fn order(&self, name: &AttemptName) -> Result<Option<LaunchOrder>, HostError> {
        self.read_order(name)
    }

    async fn builds_dir(&self, name: &AttemptName) -> Result<Option<String>, HostError> {
        self.read_builds_dir(name)
    }

    async fn assign(&self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError> {
        self.write_assignment(name, assignment)
    }

    async fn mark_used(&self, name: &AttemptName) -> Result<(), HostError> {
        self.set_used(name)
    }

    async fn closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError> {
        self.find_closed(name)
    }

    async fn close_attempt(&self, name: &AttemptName, how: End) -> Result<Closing, HostError> {
        self.close(name, how).await
    }

    async fn attempts_of(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError> {
        self.observe_attempts(pool).await
    }

    async fn orphaned_builds(&self) -> BTreeSet<AttemptName> {
        self.search_builds()
    }

    async fn seize_attempt(&self, name: &AttemptName) -> Result<Option<Lock>, HostError> {
        self.seize(name)
    }

    async fn mark_closed(&self, name: &AttemptName, how: End) -> Result<bool, HostError> {
        self.close_seized(name, how)
    }

    async fn remove_tmpdir(&self, name: &AttemptName) -> Result<(), HostError> {
        self.clear_tmpdir(name).await
    }

    async fn forget_attempt(&self, name: &AttemptName) -> Result<(), HostError> {
        self.forget(name).await
    }
}

#[async_trait(?Send)]
impl Leadership for LocalHost {
    async fn identity(&self) -> Result<Identity, HostError> {
        owner::identity(&self.state)
    }

    async fn begin_generation(&self) -> Result<Generation, HostError> {
        owner::begin_generation(&self.state, &self.syncs, self.times.lease_lock_timeout).await
    }

    async fn lock_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError> {
        self.become_keeper(within).await
    }

    async fn keeper_lives(&self) -> Result<bool, HostError> {
        self.keeper_runs()
    }

    async fn start_keeper(&self) -> Result<(), HostError> {
        self.spawn_keeper().await
    }
}

#[async_trait(?Send)]
impl WakeUps for LocalHost {
    async fn wake_keeper(&self, pool: &PoolName) {
        if let Ok(dir) = self.state.pool(pool) {
            send_wake_up(&dir, mailboxes::WAKE).ok();
        }
    }

    async fn wake_attempt(&self, name: &AttemptName) {
        if let Ok(dir) = self.state.attempt(name) {
            send_wake_up(&dir, mailboxes::INBOX).ok();
        }
    }

    async fn wait(&self, inbox: MailboxName<'_>, within: Duration) -> Result<WakeReason, HostError> {
        self.wait_at(inbox, within).await
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn stopped(&self, name: &AttemptName) -> WakeReason {
        self.until_stopped(name).await
    }
}

#[async_trait(?Send)]
impl Reports for LocalHost {
    async fn write_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError> {
        self.put_report(pool, report)
    }

    async fn read_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError> {
        self.get_report(pool)
    }
}
