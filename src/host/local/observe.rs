//! Observations of a pool's attempts.
//!
//! Facts only: `core::attempt` decides whether an attempt has ended. Facts that cannot be determined are `Unknown`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::attempt::remove_if_free;
use super::error::cannot;
use super::host::LocalHost;
use super::job_file::{JobFile, Origin, Tmpdir};
use super::lease::{self, LeaseStatus};
use super::mark::{self, CLOSED, USED};
use super::process::{Namespaces, RECHECK_DELAY, presence};
use crate::core::attempt::{AttemptSeen, Closed, Presence};
use crate::core::ids::{AttemptName, PoolName};
use crate::core::time::Stamp;
use crate::port::host_error::HostError;

/// One attempt as it was found.
struct Found {
    seen: AttemptSeen,
    origin: Origin,
}

impl LocalHost {
    pub(super) async fn observe_attempts(
        &self,
        pool: &PoolName,
    ) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError> {
        let mut found = self.find_attempts(pool)?;
        let own = Namespaces::own();
        // Two checks, shortly after each other: a single one must not end a job.
        let mut doubtful = false;
        for attempt in found.values_mut().filter(|a| a.seen.closed.is_none()) {
            update_presence(attempt, own.as_ref());
            doubtful |= is_doubtful(&attempt.seen);
        }
        if doubtful {
            tokio::time::sleep(RECHECK_DELAY).await;
            for attempt in found.values_mut().filter(|a| is_doubtful(&a.seen)) {
                update_presence(attempt, own.as_ref());
            }
        }
        let mut seen: BTreeMap<_, _> = found.into_iter().map(|(name, a)| (name, a.seen)).collect();
        let finished = self.finished.borrow();
        let of_pool = finished.iter().filter(|(_, (_, of, _))| of == pool);
        seen.extend(of_pool.map(|(name, (_, _, seen))| (name.clone(), seen.clone())));
        Ok(seen)
    }

    /// True if there is an attempt that is not closed, or if that cannot be determined.
    pub(super) fn has_open_attempt(&self) -> bool {
        let listed = super::files::missing_is_none(fs::read_dir(self.state.attempts()));
        let Ok(listed) = listed else { return true };
        let is_open = |entry: io::Result<fs::DirEntry>| {
            entry.map_or(true, |entry| !mark::is_set(&entry.path(), CLOSED).unwrap_or(false))
        };
        listed.into_iter().flatten().any(is_open)
    }

    fn find_attempts(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, Found>, HostError> {
        let attempts = self.state.attempts();
        let failed = |e: io::Error| cannot("list", &attempts, e);
        let mut found = BTreeMap::new();
        let mut present = BTreeMap::new();
        let listed = super::files::missing_is_none(fs::read_dir(&attempts)).map_err(failed)?;
        for entry in listed.into_iter().flatten() {
            let entry = entry.map_err(failed)?;
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if name.starts_with('.') {
                remove_if_old(&path, self.times.half_made_retention);
                continue;
            }
            let Ok(name) = AttemptName::parse(name) else { continue };
            // RACE: the directory may be gone by now.
            let metadata = super::files::missing_is_none(fs::symlink_metadata(&path)).map_err(failed)?;
            let Some(known) = metadata else { continue };
            present.insert(name.clone(), known.ino());
            let is_finished =
                self.finished.borrow().get(&name).is_some_and(|(inode, ..)| *inode == known.ino());
            if is_finished {
                continue;
            }
            if let Some((of, attempt)) = self.find_attempt(&name, &path)? {
                if attempt.seen.closed.is_some() && !attempt.seen.lease_held {
                    self.finished.borrow_mut().insert(name, (known.ino(), of, attempt.seen));
                } else if of == *pool {
                    found.insert(name, attempt);
                }
            }
        }
        self.finished.borrow_mut().retain(|name, (inode, ..)| present.get(name) == Some(inode));
        Ok(found)
    }

    fn find_attempt(&self, name: &AttemptName, dir: &Path) -> Result<Option<(PoolName, Found)>, HostError> {
        let failed = |e: io::Error| cannot("examine", dir, e);
        // In this order: once the attempt is closed no new call stays, so a lease that is free after that stays free.
        let closed = mark::closed(dir).map_err(failed)?;
        let used = mark::is_set(dir, USED).map_err(failed)?;
        let lease = lease::status(dir).map_err(failed)?;
        let held = lease.is_some_and(|lease| lease.held) && !self.holds_exclusively(name);
        let job = match JobFile::read(dir) {
            Ok(job) => job,
            // A damaged file cannot serve a job. But while a call is running that read it earlier, the attempt must not
            // count as gone.
            Err(failure) if failure.damaged && !held => {
                tracing::warn!("{}", failure.error);
                None
            }
            Err(failure) => return Err(failure.error),
        };
        let Some(job) = job else {
            remove_if_old(dir, self.times.unprepared_retention);
            return Ok(None);
        };
        let at = lease.map_or(job.record.begun, |LeaseStatus { at, .. }| at);
        let seen = facts(&job, closed, used, held, at);
        Ok(Some((job.record.pool, Found { seen, origin: job.origin })))
    }

    pub(super) fn clear_tmpdir(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        let Some(JobFile { origin, record, .. }) = JobFile::read(&dir)? else { return Ok(()) };
        let Some(tmpdir) = &origin.tmpdir else { return Ok(()) };
        let own = Namespaces::own();
        let here =
            own.is_some() && own.as_ref().map(|n| &n.mount) == origin.namespaces.as_ref().map(|n| &n.mount);
        // A running runner removes the directory itself, and needs it until then.
        let runner_lives = record.begun.boot == self.clock.boot()
            && runner_presence(&origin, own.as_ref()) == Presence::There;
        if !here || runner_lives {
            return Ok(());
        }
        super::orphans::clear(tmpdir).map_err(|e| cannot("remove the rest of", &tmpdir.path, e))
    }
}

/// Removes the directory of a killed call, an attempt without a name or without a job, if it is older than `kept`.
fn remove_if_old(path: &Path, kept: Duration) {
    let age = |known: fs::Metadata| SystemTime::now().duration_since(known.modified().ok()?).ok();
    let old = fs::symlink_metadata(path).ok().and_then(age).is_some_and(|age| age > kept);
    if old && let Err(error) = remove_if_free(path) {
        tracing::warn!("{}", cannot("remove", path, error));
    }
}

fn facts(
    job: &JobFile,
    closed: Option<Closed>,
    used: bool,
    lease_held: bool,
    lease_at: Stamp,
) -> AttemptSeen {
    let record = &job.record;
    AttemptSeen {
        job: record.job.clone(),
        instance: record.assignment.as_ref().map(|a| a.instance.clone()),
        begun: record.begun,
        closed,
        used,
        lease_held,
        lease_at,
        runner: Presence::Unknown,
        tmpdir: Presence::Unknown,
        boot: record.begun.boot,
    }
}

fn is_doubtful(seen: &AttemptSeen) -> bool {
    seen.runner == Presence::Gone || seen.tmpdir == Presence::Gone
}

fn update_presence(attempt: &mut Found, own: Option<&Namespaces>) {
    attempt.seen.runner = runner_presence(&attempt.origin, own);
    attempt.seen.tmpdir = tmpdir_presence(&attempt.origin, own);
}

/// Determined only in the process namespace that the runner was recorded in.
fn runner_presence(origin: &Origin, own: Option<&Namespaces>) -> Presence {
    match (origin.runner, &origin.namespaces, own) {
        (Some(runner), Some(then), Some(now)) if then.pid == now.pid => presence(runner),
        _ => Presence::Unknown,
    }
}

/// Determined only in the mount namespace that the directory was recorded in.
fn tmpdir_presence(origin: &Origin, own: Option<&Namespaces>) -> Presence {
    let (Some(tmpdir), Some(then), Some(now)) = (&origin.tmpdir, &origin.namespaces, own) else {
        return Presence::Unknown;
    };
    if then.mount == now.mount { directory_presence(tmpdir) } else { Presence::Unknown }
}

fn directory_presence(tmpdir: &Tmpdir) -> Presence {
    match fs::symlink_metadata(&tmpdir.path) {
        Ok(found) if (found.dev(), found.ino()) == (tmpdir.device, tmpdir.inode) => Presence::There,
        Ok(_) => Presence::Gone,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Presence::Gone
        }
        Err(_) => Presence::Unknown,
    }
}
