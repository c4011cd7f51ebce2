//! A state directory in memory, for simulation.
//!
//! Implements what the ports of the runner host ([`Host`](greenroom_ports::host::Host)) need of a directory. No operation
//! waits: the caller decides which call waits, and in which order. A lock is released when its guard is dropped, as the
//! kernel does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use greenroom_core::attempt::{AttemptSeen, Closed, End, Presence};
use greenroom_core::ids::{AttemptName, Generation, OwnerId, PoolName};
use greenroom_core::order::LaunchOrder;
use greenroom_core::report::Report;
use greenroom_core::time::{BootId, Stamp};
use greenroom_ports::attempts::{Assignment, AttemptRecord, Closing};
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Identity;
use greenroom_ports::lock::{Held, Lock};

pub type SharedDirectory = Rc<RefCell<Directory>>;

/// A call, as other processes see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The runner that made the attempt.
    pub runner: u32,
    /// The call's process.
    pub pid: u32,
}

/// The mailbox of a waiting process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mailbox {
    Keeper(PoolName),
    Attempt(AttemptName),
}

/// A change that a process may wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The attempt's lease, marks or mailbox.
    Attempt(AttemptName),
    KeeperLock,
    Keeper(PoolName),
}

/// One attempt's directory.
#[derive(Debug, Clone)]
pub struct AttemptDir {
    /// The attempt's record; `None` if `cleanup` came before any `prepare`.
    pub record: Option<AttemptRecord>,
    pub runner: Option<u32>,
    pub boot: BootId,
    pub closed: Option<Closed>,
    pub used: bool,
    pub lease_at: Stamp,
    /// True if this manager has emptied the dead attempt's TMPDIR.
    pub cleared: bool,
    /// Calls that hold the lease shared: the lock's number, and the pid.
    pub shared: BTreeMap<u64, u32>,
    exclusive: Option<u64>,
}

/// Everything under `state_dir` but the pools.
#[derive(Debug)]
pub struct Directory {
    pub owner: OwnerId,
    pub moved: Option<String>,
    pub generations: BTreeSet<Generation>,
    pub attempts: BTreeMap<AttemptName, AttemptDir>,
    pub reports: BTreeMap<PoolName, Report>,
    /// The boot clock's time, written into leases when they are released.
    pub now: Stamp,
    /// True while a killed process is torn down: it writes nothing more.
    pub killing: bool,
    mail: BTreeSet<Mailbox>,
    keeper: Option<u64>,
    next_lock: u64,
    news: Vec<News>,
}

#[derive(Debug, Clone)]
enum LockKind {
    Shared(AttemptName),
    Exclusive(AttemptName),
    Keeper,
}

/// A held lock.
struct Guard {
    directory: SharedDirectory,
    number: u64,
    kind: LockKind,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({:?} {})", self.kind, self.number)
    }
}

impl Held for Guard {}

impl Drop for Guard {
    fn drop(&mut self) {
        self.directory.borrow_mut().unlock(self.number, &self.kind);
    }
}

impl Directory {
    pub fn new(owner: OwnerId, now: Stamp) -> Self {
        Self {
            owner,
            moved: None,
            generations: BTreeSet::new(),
            attempts: BTreeMap::new(),
            reports: BTreeMap::new(),
            now,
            killing: false,
            mail: BTreeSet::new(),
            keeper: None,
            next_lock: 0,
            news: Vec::new(),
        }
    }

    /// A copy on another machine: everything but locks and mail.
    #[must_use]
    pub fn copied(&self, now: Stamp, problem: &str) -> Self {
        let unlocked =
            |dir: &AttemptDir| AttemptDir { shared: BTreeMap::new(), exclusive: None, ..dir.clone() };
        Self {
            moved: Some(problem.to_owned()),
            generations: self.generations.clone(),
            attempts: self.attempts.iter().map(|(name, dir)| (name.clone(), unlocked(dir))).collect(),
            reports: self.reports.clone(),
            ..Self::new(self.owner.clone(), now)
        }
    }

    pub fn identity(&self) -> Identity {
        Identity {
            owner: self.owner.clone(),
            moved: self.moved.clone(),
            generations: self.generations.clone(),
        }
    }

    /// The changes since the last call.
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Puts a wake-up into a mailbox.
    pub fn post(&mut self, to: Mailbox) {
        self.news.push(match &to {
            Mailbox::Keeper(pool) => News::Keeper(pool.clone()),
            Mailbox::Attempt(name) => News::Attempt(name.clone()),
        });
        self.mail.insert(to);
    }

    /// Takes the wake-up out of a mailbox, if there is one.
    pub fn mail(&mut self, of: &Mailbox) -> bool {
        self.mail.remove(of)
    }

    fn unlock(&mut self, number: u64, kind: &LockKind) {
        let now = self.now;
        let killing = self.killing;
        match kind {
            LockKind::Keeper => {
                self.keeper = None;
                self.news.push(News::KeeperLock);
            }
            LockKind::Shared(name) | LockKind::Exclusive(name) => {
                if let Some(dir) = self.attempts.get_mut(name) {
                    if dir.shared.remove(&number).is_some() && !killing {
                        dir.lease_at = now;
                    }
                    if dir.exclusive == Some(number) {
                        dir.exclusive = None;
                    }
                }
                self.news.push(News::Attempt(name.clone()));
            }
        }
    }

    /// True if the keeper holds this attempt's lease.
    pub fn is_seized(&self, name: &AttemptName) -> bool {
        self.attempts.get(name).is_some_and(|dir| dir.exclusive.is_some())
    }

    pub fn closed(&self, name: &AttemptName) -> Option<Closed> {
        self.attempts.get(name)?.closed
    }

    pub fn keeper_lives(&self) -> bool {
        self.keeper.is_some()
    }

    fn change(&mut self, name: &AttemptName) -> Result<&mut AttemptDir, HostError> {
        let missing = || HostError::Io { what: format!("attempt `{name}` has no directory") };
        self.attempts.get_mut(name).ok_or_else(missing)
    }

    /// The order of an open attempt.
    pub fn order(&self, name: &AttemptName) -> Option<LaunchOrder> {
        let dir = self.attempts.get(name).filter(|dir| dir.closed.is_none())?;
        dir.record.as_ref()?.order.clone()
    }

    /// Writes the assignment, or its absence.
    pub fn assign(&mut self, name: &AttemptName, assignment: Option<&Assignment>) -> Result<(), HostError> {
        let missing = || HostError::Io { what: format!("attempt `{name}` has no job file") };
        self.change(name)?.record.as_mut().ok_or_else(missing)?.assignment = assignment.cloned();
        Ok(())
    }

    pub fn mark_used(&mut self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.change(name)?;
        if let Some(closed) = dir.closed {
            return Err(HostError::Closed { attempt: name.clone(), closed });
        }
        dir.used = true;
        Ok(())
    }

    /// Sets the keeper's mark; returns whether the attempt was used.
    pub fn mark_closed(&mut self, name: &AttemptName, how: End) -> Result<bool, HostError> {
        let now = self.now;
        let dir = self.change(name)?;
        dir.closed = dir.closed.or(Some(Closed::new(now, how)));
        Ok(dir.used)
    }

    /// All facts about a pool's attempts. `presence` returns those of an attempt's runner and TMPDIR.
    pub fn seen(
        &self,
        pool: &PoolName,
        presence: impl Fn(&AttemptName, &AttemptDir) -> (Presence, Presence),
    ) -> BTreeMap<AttemptName, AttemptSeen> {
        let of_pool = |name: &AttemptName, dir: &AttemptDir| {
            let record = dir.record.as_ref().filter(|r| r.pool == *pool)?;
            let (runner, tmpdir) = presence(name, dir);
            Some(AttemptSeen {
                job: Some(record.job.clone()),
                instance: record.assignment.as_ref().map(|a| a.instance.clone()),
                unreadable: None,
                begun: record.begun,
                closed: dir.closed,
                used: dir.used,
                lease_held: !dir.shared.is_empty(),
                lease_at: dir.lease_at,
                runner,
                tmpdir,
                boot: dir.boot,
            })
        };
        self.attempts.iter().filter_map(|(name, dir)| Some((name.clone(), of_pool(name, dir)?))).collect()
    }
}

fn lock(directory: &SharedDirectory, kind: LockKind) -> Lock {
    let mut inner = directory.borrow_mut();
    let number = inner.next_lock;
    inner.next_lock += 1;
    drop(inner);
    Box::new(Guard { directory: Rc::clone(directory), number, kind })
}

fn lock_shared(directory: &SharedDirectory, name: &AttemptName, caller: Caller) -> Lock {
    let number = directory.borrow().next_lock;
    let guard = lock(directory, LockKind::Shared(name.clone()));
    let mut inner = directory.borrow_mut();
    let now = inner.now;
    if let Some(dir) = inner.attempts.get_mut(name) {
        dir.shared.insert(number, caller.pid);
        dir.lease_at = now;
    }
    guard
}

/// `prepare`: the directory with the lease held. The caller has checked that no process holds it exclusively.
pub fn begin(
    directory: &SharedDirectory,
    name: &AttemptName,
    record: &AttemptRecord,
    caller: Caller,
) -> Result<(Lock, AttemptRecord), HostError> {
    let found = {
        let mut inner = directory.borrow_mut();
        let now = inner.now;
        let dir = inner.attempts.entry(name.clone()).or_insert_with(|| AttemptDir {
            record: Some(record.clone()),
            ..empty(Some(caller.runner), now)
        });
        match (&dir.record, dir.closed) {
            (_, Some(closed)) => return Err(HostError::Closed { attempt: name.clone(), closed }),
            (Some(found), None) => found.clone(),
            (None, None) => return Err(HostError::Io { what: format!("attempt `{name}` has no job file") }),
        }
    };
    Ok((lock_shared(directory, name, caller), found))
}

/// `run`: the lease and the record of an open attempt.
pub fn enter(
    directory: &SharedDirectory,
    name: &AttemptName,
    caller: Caller,
) -> Result<Option<(Lock, AttemptRecord)>, HostError> {
    let found = {
        let inner = directory.borrow();
        let Some(dir) = inner.attempts.get(name) else { return Ok(None) };
        if let Some(closed) = dir.closed {
            return Err(HostError::Closed { attempt: name.clone(), closed });
        }
        let Some(record) = &dir.record else { return Ok(None) };
        record.clone()
    };
    Ok(Some((lock_shared(directory, name, caller), found)))
}

/// Sets the mark of `cleanup`, or of a newer attempt, and returns what it found.
pub fn close(directory: &SharedDirectory, name: &AttemptName, how: End, caller: Caller) -> Closing {
    let (record, used, calls_remain) = {
        let mut inner = directory.borrow_mut();
        let now = inner.now;
        let dir = inner.attempts.entry(name.clone()).or_insert_with(|| empty(Some(caller.runner), now));
        dir.closed = dir.closed.or(Some(Closed::new(now, how)));
        let found = (dir.record.clone(), dir.used, !dir.shared.is_empty());
        inner.news.push(News::Attempt(name.clone()));
        found
    };
    Closing { lease: lock_shared(directory, name, caller), record, used, calls_remain }
}

/// Takes the lease for the keeper; `None` if a call holds it.
pub fn seize(directory: &SharedDirectory, name: &AttemptName) -> Option<Lock> {
    let number = {
        let inner = directory.borrow();
        let dir = inner.attempts.get(name)?;
        if !dir.shared.is_empty() || dir.exclusive.is_some() {
            return None;
        }
        inner.next_lock
    };
    let guard = lock(directory, LockKind::Exclusive(name.clone()));
    if let Some(dir) = directory.borrow_mut().attempts.get_mut(name) {
        dir.exclusive = Some(number);
    }
    Some(guard)
}

/// Takes the keeper's lock; `None` if another process holds it.
pub fn lock_keeper(directory: &SharedDirectory) -> Option<Lock> {
    let mut inner = directory.borrow_mut();
    if inner.keeper.is_some() {
        return None;
    }
    inner.keeper = Some(inner.next_lock);
    drop(inner);
    Some(lock(directory, LockKind::Keeper))
}

fn empty(runner: Option<u32>, now: Stamp) -> AttemptDir {
    AttemptDir {
        record: None,
        runner,
        boot: now.boot,
        closed: None,
        used: false,
        lease_at: now,
        cleared: false,
        shared: BTreeMap::new(),
        exclusive: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_core::execution::{Execution, Shell};
    use greenroom_core::ids::JobKey;
    use greenroom_core::job::JobFacts;
    use greenroom_core::time::ManagerId;

    use super::*;

    const ONE: Caller = Caller { runner: 1, pid: 11 };
    const TWO: Caller = Caller { runner: 1, pid: 12 };

    fn at(uptime_ms: u64) -> Stamp {
        Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms }
    }

    fn directory() -> (SharedDirectory, AttemptName, AttemptRecord) {
        let job = JobFacts::new(JobKey::new("https://git", 7), "a/b", Duration::ZERO);
        let record = AttemptRecord {
            builds_dir: None,
            job,
            pool: PoolName::new("linux"),
            execution: Execution::Machine { shell: Shell::Bash.into() },
            begun: at(0),
            assignment: None,
            order: None,
        };
        let directory = Rc::new(RefCell::new(Directory::new(OwnerId::new("o"), at(0))));
        (directory, AttemptName::new("custom-executor1"), record)
    }

    fn held(directory: &SharedDirectory) -> bool {
        let seen =
            directory.borrow().seen(&PoolName::new("linux"), |_, _| (Presence::There, Presence::There));
        seen.values().any(|a| a.lease_held)
    }

    #[test]
    fn a_lease_is_held_from_start_to_end_of_each_call_and_its_times_say_so() {
        let (dir, name, record) = directory();
        let (lease, _) = begin(&dir, &name, &record, ONE).unwrap();
        assert!(held(&dir) && seize(&dir, &name).is_none());
        dir.borrow_mut().now = at(500);
        drop(lease);
        assert!(!held(&dir));
        assert_eq!(dir.borrow().attempts[&name].lease_at, at(500));
        let (lease, _) = enter(&dir, &name, TWO).unwrap().unwrap();
        dir.borrow_mut().killing = true;
        dir.borrow_mut().now = at(900);
        drop(lease);
        assert_eq!(dir.borrow().attempts[&name].lease_at, at(500), "a killed call writes nothing");
        assert!(!held(&dir), "but the kernel gives its lock back");
    }

    #[test]
    fn a_closed_attempt_takes_no_more_calls_and_says_who_still_lives() {
        let (dir, name, record) = directory();
        let (_prepare, _) = begin(&dir, &name, &record, ONE).unwrap();
        let closing = close(&dir, &name, End::CleanedUp, TWO);
        assert!(closing.calls_remain && !closing.used && closing.record.is_some());
        assert!(matches!(enter(&dir, &name, TWO), Err(HostError::Closed { .. })));
        assert!(matches!(begin(&dir, &name, &record, TWO), Err(HostError::Closed { .. })));
        assert!(matches!(dir.borrow_mut().mark_used(&name), Err(HostError::Closed { .. })));
    }

    #[test]
    fn a_cleanup_that_comes_first_keeps_the_prepare_out() {
        let (dir, name, record) = directory();
        let closing = close(&dir, &name, End::CleanedUp, ONE);
        assert!(closing.record.is_none() && !closing.calls_remain);
        assert!(matches!(begin(&dir, &name, &record, TWO), Err(HostError::Closed { .. })));
        assert!(dir.borrow().seen(&record.pool, |_, _| (Presence::There, Presence::There)).is_empty());
    }

    #[test]
    fn there_is_one_keeper_until_its_lock_is_dropped() {
        let (dir, ..) = directory();
        let first = lock_keeper(&dir);
        assert!(first.is_some() && lock_keeper(&dir).is_none() && dir.borrow().keeper_lives());
        drop(first);
        assert!(!dir.borrow().keeper_lives());
        assert_eq!(dir.borrow_mut().news(), [News::KeeperLock]);
    }

    #[test]
    fn the_keeper_seizes_only_what_nobody_holds() {
        let (dir, name, record) = directory();
        drop(begin(&dir, &name, &record, ONE).unwrap());
        let seized = seize(&dir, &name);
        assert!(seized.is_some() && dir.borrow().is_seized(&name) && !held(&dir));
        drop(seized);
        assert!(!dir.borrow().is_seized(&name));
    }
}
