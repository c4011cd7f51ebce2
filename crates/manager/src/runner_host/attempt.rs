//! Begins, enters, marks and closes attempts.
//!
//! Two rules make the races safe. `closed` is set before the check for running calls, and a call registers (lease,
//! socket) before it checks `closed`: one of the two always sees the other. A call sets `used` before it checks
//! `closed` for the last time, and `cleanup` sets `closed` before it reads `used`.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fs, io};

use greenroom_core::attempt::{Closed, End};
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::order::LaunchOrder;
use greenroom_ports::attempts::{Assignment, AttemptRecord, Closing};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use greenroom_ports::lock::Lock;
use greenroom_system::remove;
use greenroom_system::socket_dir::{WakeUpSent, send_wake_up};
use greenroom_system::threads::flock::Kind;

use super::attempt_files::{self, AttemptOrigin, CLOSED, JobFile, Tmpdir, USED};
use super::files::{self, broken, cannot};
use super::host::LocalHost;
use super::lease::{self, LEASE, Lease, LeaseGuard};
use super::mailboxes;
use super::runner::Namespaces;

/// Retries against a process that keeps creating and removing the same directory.
const ROUNDS: usize = 8;

impl LocalHost {
    pub(super) async fn begin(
        &self,
        name: &AttemptName,
        record: &AttemptRecord,
    ) -> Result<(Lock, AttemptRecord), HostError> {
        let dir = self.state.attempt(name)?;
        for _ in 0..ROUNDS {
            if let Some((lock, file)) = self.join(name, &dir).await? {
                self.bind_inbox(name, &dir)?;
                return Ok((lock, file.record));
            }
            let file = JobFile::new(record.clone(), self.origin());
            if let Some(lock) = self.make_open(name, &dir, &file)? {
                return Ok((lock, file.record));
            }
        }
        Err(contested(&dir))
    }

    pub(super) async fn enter(&self, name: &AttemptName) -> Result<Option<(Lock, AttemptRecord)>, HostError> {
        let dir = self.state.attempt(name)?;
        let joined = self.join(name, &dir).await?;
        Ok(joined.map(|(lock, file)| (lock, file.record)))
    }

    /// Takes the lease of an existing open attempt.
    async fn join(&self, name: &AttemptName, dir: &Path) -> Result<Option<(Lock, JobFile)>, HostError> {
        let Some(file) = lease::lock_shared(dir, &self.times).await? else { return Ok(None) };
        let lock = self.keep(name, file, Kind::Shared);
        self.register(name, dir)?;
        self.refuse_closed(name, dir)?;
        let job = JobFile::read(dir)?;
        let job = job.ok_or_else(|| broken(format_args!("`{}` lacks the file `job`", dir.display())))?;
        Ok(Some((lock, job)))
    }

    /// Creates an open attempt under a temporary name, then renames it. `None` if another process was faster.
    fn make_open(&self, name: &AttemptName, dir: &Path, job: &JobFile) -> Result<Option<Lock>, HostError> {
        // CRASH: up to the rename this is a dot-directory, removed an hour later.
        let (fresh, file) = self.make_hidden(name)?;
        let lock = self.keep(name, file, Kind::Shared);
        job.write(&fresh)?;
        if let Some(order) = &job.record.order {
            attempt_files::write_order(&fresh, order)?;
        }
        if !put_in_place(&fresh, dir)? {
            return Ok(None);
        }
        self.bind_inbox(name, dir)?;
        self.register(name, dir)?;
        self.refuse_closed(name, dir)?;
        Ok(Some(lock))
    }

    /// Creates a directory under a dot-name, with its lease held shared.
    fn make_hidden(&self, name: &AttemptName) -> Result<(PathBuf, fs::File), HostError> {
        let attempts = self.state.attempts();
        let fresh = attempts.join(files::beside(name.as_str()).map_err(|e| cannot("name", &attempts, e))?);
        let failed = |e: io::Error| cannot("create", &fresh, e);
        // Not its parents: a deleted state directory stays deleted.
        match files::make_dir(&attempts) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        files::make_dir(&fresh).map_err(failed)?;
        let file = files::create_new(&fresh.join(LEASE)).map_err(failed)?;
        file.lock_shared().map_err(failed)?;
        Ok((fresh, file))
    }

    /// Binds the socket through which a concurrent `cleanup` finds this call.
    fn register(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        self.boxes.bind_stop(name, dir).map_err(|e| cannot("bind a socket in", dir, e))
    }

    pub(super) fn bind_inbox(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        self.boxes.bind_inbox(name, dir).map_err(|e| cannot("bind a socket in", dir, e))
    }

    fn refuse_closed(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        match attempt_files::closed(dir).map_err(|e| cannot("examine", dir, e))? {
            Some(closed) => {
                self.boxes.forget(name);
                Err(HostError::Closed { attempt: name.clone(), closed })
            }
            None => Ok(()),
        }
    }

    fn keep(&self, name: &AttemptName, file: fs::File, kind: Kind) -> Lock {
        let lease = Rc::new(Lease::begin(file, kind, self.clock));
        self.leases.borrow_mut().insert(name.clone(), Rc::downgrade(&lease));
        Box::new(LeaseGuard { _lease: lease })
    }

    fn origin(&self) -> AttemptOrigin {
        let runner = self.runner();
        AttemptOrigin {
            runner: runner.and_then(|runner| runner.id),
            tmpdir: self.role.tmpdir().and_then(Tmpdir::at),
            namespaces: runner.map_or_else(Namespaces::own, |runner| runner.namespaces.clone()),
        }
    }

    /// The pool of an attempt; `None` if it had no `prepare`.
    pub fn pool_of(&self, name: &AttemptName) -> Result<Option<PoolName>, HostError> {
        let dir = self.state.attempt(name)?;
        JobFile::read_pool(&dir)
    }

    pub(super) fn read_order(&self, name: &AttemptName) -> Result<Option<LaunchOrder>, HostError> {
        attempt_files::read_order(&self.state.attempt(name)?)
    }

    pub(super) fn read_builds_dir(&self, name: &AttemptName) -> Result<Option<String>, HostError> {
        Ok(JobFile::read(&self.state.attempt(name)?)?.and_then(|job| job.record.builds_dir))
    }

    pub(super) fn write_assignment(
        &self,
        name: &AttemptName,
        assignment: Option<&Assignment>,
    ) -> Result<(), HostError> {
        attempt_files::assign(&self.state.attempt(name)?, assignment)
    }

    pub(super) fn set_used(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        // RACE: the mark comes first. Otherwise a script could be sent on a grant that was returned as unused.
        attempt_files::set_used(&dir, self.clock.now()).map_err(|e| cannot("mark", &dir, e))?;
        self.refuse_closed(name, &dir)
    }

    pub(super) fn find_closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError> {
        let dir = self.state.attempt(name)?;
        attempt_files::closed(&dir).map_err(|e| cannot("examine", &dir, e))
    }

    pub(super) async fn close(&self, name: &AttemptName, how: End) -> Result<Closing, HostError> {
        let dir = self.state.attempt(name)?;
        for _ in 0..ROUNDS {
            if let Some(file) = lease::lock_shared(&dir, &self.times).await? {
                return self.close_locked(name, &dir, file, how);
            }
            let (fresh, file) = self.make_hidden(name)?;
            let lease = self.keep(name, file, Kind::Shared);
            let closed = Closed::new(self.clock.now(), how);
            attempt_files::set_closed(&fresh, closed).map_err(|e| cannot("mark", &fresh, e))?;
            if put_in_place(&fresh, &dir)? {
                return Ok(Closing { lease, record: None, used: false, calls_remain: false });
            }
        }
        Err(contested(&dir))
    }

    fn close_locked(
        &self,
        name: &AttemptName,
        dir: &Path,
        file: fs::File,
        how: End,
    ) -> Result<Closing, HostError> {
        let lease = self.keep(name, file, Kind::Shared);
        let used = self.mark_closed_at(dir, how)?;
        let calls_remain = stop_calls(dir)?;
        // The mark is set: a pass completes the release of an attempt that this call cannot read.
        let record = JobFile::read(dir).unwrap_or_else(|problem| {
            tracing::warn!("{problem}");
            None
        });
        let record = record.map(|job| job.record);
        Ok(Closing { lease, record, used, calls_remain })
    }

    /// Closes an attempt for the keeper, which holds the lease exclusively; returns whether `used` was set.
    pub(super) fn close_seized(&self, name: &AttemptName, how: End) -> Result<bool, HostError> {
        self.mark_closed_at(&self.state.attempt(name)?, how)
    }

    fn mark_closed_at(&self, dir: &Path, how: End) -> Result<bool, HostError> {
        let closed = Closed::new(self.clock.now(), how);
        let used = attempt_files::set_closed(dir, closed).and_then(|()| attempt_files::is_set(dir, USED));
        attempt_files::discard_order(dir);
        used.map_err(|e| cannot("mark", dir, e))
    }

    pub(super) fn seize(&self, name: &AttemptName) -> Result<Option<Lock>, HostError> {
        let dir = self.state.attempt(name)?;
        let file = lease::try_exclusive(&dir).map_err(|e| cannot("lock the lease in", &dir, e))?;
        Ok(file.map(|file| self.keep(name, file, Kind::Exclusive)))
    }

    /// True if this process holds the lease exclusively. Its own check must not take that for a call.
    pub(super) fn holds_exclusively(&self, name: &AttemptName) -> bool {
        let held = self.leases.borrow().get(name).and_then(std::rc::Weak::upgrade);
        held.is_some_and(|lease| lease.is_exclusive())
    }

    pub(super) async fn forget(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        // A new attempt may have got the name of orphaned builds.
        let closed = attempt_files::is_set(&dir, CLOSED).map_err(|e| cannot("examine", &dir, e))?;
        if dir.exists() && !closed {
            return Ok(());
        }
        self.boxes.forget(name);
        // CRASH: builds without an attempt are found later.
        let attempt = dir.clone();
        let builds = self.builds(name);
        let remove = move || {
            if remove_if_free(&attempt)? { remove::tree(&builds) } else { Ok(()) }
        };
        self.trees.run(&dir, remove).await.map_err(|e| cannot("remove", &dir, e))?;
        self.leases.borrow_mut().remove(name);
        Ok(())
    }
}

/// Removes an attempt's directory unless a call holds its lease; returns whether it is gone.
pub(super) fn remove_if_free(dir: &Path) -> io::Result<bool> {
    let held = lease::status(dir)?.is_some_and(|lease| lease.held);
    if held {
        return Ok(false);
    }
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or("attempt");
    let gone = if name.starts_with('.') { dir.to_owned() } else { dir.with_file_name(files::beside(name)?) };
    if gone != dir {
        // In one step, so that no call finds an attempt without its lease.
        match fs::rename(dir, &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            renamed => renamed?,
        }
    }
    match fs::remove_dir_all(&gone) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

/// Gives a finished directory its final name. If the name is taken, removes the directory and returns `false`: attempt
/// directories are never empty, and a rename onto a directory that is not empty fails.
fn put_in_place(fresh: &Path, dir: &Path) -> Result<bool, HostError> {
    match fs::rename(fresh, dir) {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) =>
        {
            fs::remove_dir_all(fresh).ok();
            Ok(false)
        }
        Err(error) => Err(cannot("rename", dir, error)),
    }
}

/// Tells each running call of the attempt to stop; returns whether there is one.
fn stop_calls(dir: &Path) -> Result<bool, HostError> {
    let failed = |e: io::Error| cannot("examine", dir, e);
    let mut any = false;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(mailboxes::STOP)) else { continue };
        match send_wake_up(dir, name) {
            Ok(WakeUpSent::Alive) => any = true,
            // RACE: a call that is still binding its socket checks `closed` afterwards, and that is set.
            Ok(WakeUpSent::NoReceiver) => drop(fs::remove_file(entry.path())),
            Err(error) => {
                // A call that cannot be reached counts as running, in the job's favour.
                tracing::warn!("{}", cannot("connect to the socket", &entry.path(), error));
                any = true;
            }
        }
    }
    send_wake_up(dir, mailboxes::INBOX).ok();
    Ok(any)
}

fn contested(dir: &Path) -> HostError {
    broken(format_args!("`{}` is damaged: it lacks the file `lease`", dir.display()))
}
