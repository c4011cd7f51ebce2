//! Begins, enters, marks and closes attempts.
//!
//! Two orders make the races safe. `closed` is set before anybody is asked whether a call lives, and a call makes
//! itself known (lease, socket) before it looks for `closed`: one of the two always sees the other. A call sets
//! `used` before it looks for `closed` for the last time, and `cleanup` sets `closed` before it reads `used`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::error::{cannot, io as broken};
use super::flock::Kind;
use super::host::LocalHost;
use super::job_file::{self, JobFile, Origin, Tmpdir};
use super::lease::{self, LEASE, Lease, LeaseGuard};
use super::mark::{self, USED};
use super::process::Namespaces;
use super::socket::Sent;
use super::{files, socket};
use crate::core::attempt::{Closed, End};
use crate::core::ids::{AttemptName, PoolName};
use crate::port::clock::Clock;
use crate::port::host::{Assignment, AttemptRecord, Closing, HostError, Lock};

/// Rounds against somebody who makes and removes the same directory all the time.
const ROUNDS: usize = 8;

/// Directories of jobs, by attempt, of providers whose instances live on this machine's file system.
const BUILDS: &str = "builds";

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

    /// Takes the lease of an attempt that exists and is open.
    async fn join(&self, name: &AttemptName, dir: &Path) -> Result<Option<(Lock, JobFile)>, HostError> {
        let Some(file) = lease::lock_shared(dir, &self.times).await? else { return Ok(None) };
        let lock = self.keep(name, file, Kind::Shared);
        self.make_known(name, dir)?;
        self.refuse_closed(name, dir)?;
        let job = JobFile::read(dir)?;
        let job = job.ok_or_else(|| broken(format_args!("`{}` lacks the file `job`", dir.display())))?;
        Ok(Some((lock, job)))
    }

    /// Makes an open attempt under another name, then gives it its own. `None` if somebody was faster.
    fn make_open(&self, name: &AttemptName, dir: &Path, job: &JobFile) -> Result<Option<Lock>, HostError> {
        // CRASH: up to the rename this is a dot-directory, removed an hour later.
        let (fresh, file) = self.make_hidden(name)?;
        let lock = self.keep(name, file, Kind::Shared);
        job.write(&fresh)?;
        if !put_in_place(&fresh, dir)? {
            return Ok(None);
        }
        self.bind_inbox(name, dir)?;
        self.make_known(name, dir)?;
        self.refuse_closed(name, dir)?;
        Ok(Some(lock))
    }

    /// A directory under a dot-name with its lease held shared.
    fn make_hidden(&self, name: &AttemptName) -> Result<(PathBuf, fs::File), HostError> {
        let attempts = self.state.attempts();
        let fresh = attempts.join(files::beside(name.as_str()).map_err(|e| cannot("name", &attempts, e))?);
        let trouble = |e: io::Error| cannot("create", &fresh, e);
        // Not its parents: a state directory that somebody deleted stays deleted.
        match files::make_dir(&attempts) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(trouble(error)),
            _ => {}
        }
        files::make_dir(&fresh).map_err(trouble)?;
        let file = files::create_new(&fresh.join(LEASE)).map_err(trouble)?;
        file.lock_shared().map_err(trouble)?;
        Ok((fresh, file))
    }

    /// Binds the socket by which a `cleanup` beside this call finds it.
    fn make_known(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        self.boxes.bind_stop(name, dir).map_err(|e| cannot("bind a socket in", dir, e))
    }

    pub(super) fn bind_inbox(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        self.boxes.bind_inbox(name, dir).map_err(|e| cannot("bind a socket in", dir, e))
    }

    fn refuse_closed(&self, name: &AttemptName, dir: &Path) -> Result<(), HostError> {
        match mark::closed(dir).map_err(|e| cannot("examine", dir, e))? {
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

    fn origin(&self) -> Origin {
        let runner = self.runner();
        Origin {
            runner: runner.and_then(|runner| runner.id),
            tmpdir: self.role.tmpdir().and_then(Tmpdir::at),
            namespaces: runner.map_or_else(Namespaces::own, |runner| runner.namespaces.clone()),
        }
    }

    /// The pool of an attempt; `None` if no `prepare` ever came.
    pub fn pool_of(&self, name: &AttemptName) -> Result<Option<PoolName>, HostError> {
        let dir = self.state.attempt(name)?;
        Ok(JobFile::read_pool(&dir)?)
    }

    pub(super) fn write_assignment(
        &self,
        name: &AttemptName,
        assignment: Option<&Assignment>,
    ) -> Result<(), HostError> {
        job_file::assign(&self.state.attempt(name)?, assignment)
    }

    pub(super) fn set_used(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        // RACE: this order; the other one could send a script on a grant that was given back as unused.
        mark::set_used(&dir, self.clock.now()).map_err(|e| cannot("mark", &dir, e))?;
        self.refuse_closed(name, &dir)
    }

    pub(super) fn find_closed(&self, name: &AttemptName) -> Result<Option<Closed>, HostError> {
        let dir = self.state.attempt(name)?;
        mark::closed(&dir).map_err(|e| cannot("examine", &dir, e))
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
            mark::set_closed(&fresh, closed).map_err(|e| cannot("mark", &fresh, e))?;
            if put_in_place(&fresh, &dir)? {
                return Ok(Closing { lease, record: None, used: false, lingering: false });
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
        let lingering = tell_calls(dir)?;
        let record = match JobFile::read(dir) {
            Ok(job) => job.map(|job| job.record),
            Err(trouble) if trouble.damaged => {
                tracing::warn!("{}", trouble.error);
                None
            }
            Err(trouble) => return Err(trouble.error),
        };
        Ok(Closing { lease, record, used, lingering })
    }

    /// The keeper's closing, with the lease held exclusively; says whether `used` was set.
    pub(super) fn close_seized(&self, name: &AttemptName, how: End) -> Result<bool, HostError> {
        self.mark_closed_at(&self.state.attempt(name)?, how)
    }

    fn mark_closed_at(&self, dir: &Path, how: End) -> Result<bool, HostError> {
        let closed = Closed::new(self.clock.now(), how);
        let used = mark::set_closed(dir, closed).and_then(|()| mark::is_set(dir, USED));
        used.map_err(|e| cannot("mark", dir, e))
    }

    pub(super) fn seize(&self, name: &AttemptName) -> Result<Option<Lock>, HostError> {
        let dir = self.state.attempt(name)?;
        let file = lease::try_exclusive(&dir).map_err(|e| cannot("lock the lease in", &dir, e))?;
        Ok(file.map(|file| self.keep(name, file, Kind::Exclusive)))
    }

    /// Does this very process hold the lease exclusively? Its own look must not take that for a call.
    pub(super) fn holds_exclusively(&self, name: &AttemptName) -> bool {
        let held = self.leases.borrow().get(name).and_then(std::rc::Weak::upgrade);
        held.is_some_and(|lease| lease.is_exclusive())
    }

    pub(super) fn forget(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        self.boxes.forget(name);
        if remove_if_free(&dir).map_err(|e| cannot("remove", &dir, e))? {
            // What its job built, where instances share this machine's files.
            let builds = self.state.root().join(BUILDS).join(name.as_str());
            match fs::remove_dir_all(&builds) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot("remove", &builds, error));
                }
                _ => {}
            }
        }
        self.leases.borrow_mut().remove(name);
        Ok(())
    }
}

/// Removes an attempt's directory unless a call holds its lease; says whether it is gone.
pub(super) fn remove_if_free(dir: &Path) -> io::Result<bool> {
    let held = lease::look(dir)?.is_some_and(|look| look.held);
    if held {
        return Ok(false);
    }
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or("attempt");
    let gone = if name.starts_with('.') { dir.to_owned() } else { dir.with_file_name(files::beside(name)?) };
    if gone != dir {
        // In one step: nobody finds an attempt without its lease.
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

/// Gives a finished directory its name. `false`, and the directory is gone, if the name is taken: attempts are never
/// empty, and a rename onto a directory that is not fails.
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

/// Tells each living call of the attempt to stop; says whether there is one.
fn tell_calls(dir: &Path) -> Result<bool, HostError> {
    let trouble = |e: io::Error| cannot("examine", dir, e);
    let mut any = false;
    for entry in fs::read_dir(dir).map_err(trouble)? {
        let entry = entry.map_err(trouble)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(socket::STOP)) else { continue };
        match socket::send(dir, name) {
            Ok(Sent::Alive) => any = true,
            // RACE: a call whose socket is just being born looks for `closed` when it is bound, and that is set.
            Ok(Sent::Nobody) => drop(fs::remove_file(entry.path())),
            Err(error) => {
                // It cannot be asked: then it counts as living, in the job's favour.
                tracing::warn!("{}", cannot("connect to the socket", &entry.path(), error));
                any = true;
            }
        }
    }
    socket::send(dir, socket::INBOX).ok();
    Ok(any)
}

fn contested(dir: &Path) -> HostError {
    broken(format_args!("`{}` is damaged: it lacks the file `lease`", dir.display()))
}
