//! What can be seen of a pool's attempts.
//!
//! Facts only; whether they mean the end is decided in `core::attempt`. What cannot be judged is `Unknown`.

use std::cell::RefCell;
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
use super::process::{Namespaces, SECOND_LOOK, look};
use crate::core::attempt::{AttemptSeen, Closed, Presence};
use crate::core::ids::{AttemptName, PoolName};
use crate::core::time::Stamp;
use crate::port::host::HostError;

/// Attempts that are closed and free: nothing about them changes any more, so they are read once.
pub(super) type Settled = RefCell<BTreeMap<AttemptName, (u64, PoolName, AttemptSeen)>>;

/// One attempt as it was found.
struct Found {
    seen: AttemptSeen,
    origin: Origin,
}

impl LocalHost {
    pub(super) async fn see_attempts(
        &self,
        pool: &PoolName,
    ) -> Result<BTreeMap<AttemptName, AttemptSeen>, HostError> {
        let mut found = self.find_attempts(pool)?;
        let own = Namespaces::own();
        // Two looks, an instant apart: one glimpse does not end a job.
        let mut doubtful = false;
        for attempt in found.values_mut().filter(|a| a.seen.closed.is_none()) {
            judge(attempt, own.as_ref());
            doubtful |= is_doubtful(&attempt.seen);
        }
        if doubtful {
            tokio::time::sleep(SECOND_LOOK).await;
            for attempt in found.values_mut().filter(|a| is_doubtful(&a.seen)) {
                judge(attempt, own.as_ref());
            }
        }
        let mut seen: BTreeMap<_, _> = found.into_iter().map(|(name, a)| (name, a.seen)).collect();
        let settled = self.settled.borrow();
        let of_pool = settled.iter().filter(|(_, (_, of, _))| of == pool);
        seen.extend(of_pool.map(|(name, (_, _, seen))| (name.clone(), seen.clone())));
        Ok(seen)
    }

    /// Is there an attempt that was not closed? Where that cannot be seen, there may be one.
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
        let trouble = |e: io::Error| cannot("list", &attempts, e);
        let mut found = BTreeMap::new();
        let mut present = BTreeMap::new();
        let listed = super::files::missing_is_none(fs::read_dir(&attempts)).map_err(trouble)?;
        for entry in listed.into_iter().flatten() {
            let entry = entry.map_err(trouble)?;
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if name.starts_with('.') {
                remove_if_old(&path, self.times.half_made_retention);
                continue;
            }
            let Ok(name) = AttemptName::parse(name) else { continue };
            // RACE: it may be gone by now.
            let looked = super::files::missing_is_none(fs::symlink_metadata(&path)).map_err(trouble)?;
            let Some(known) = looked else { continue };
            present.insert(name.clone(), known.ino());
            let is_settled =
                self.settled.borrow().get(&name).is_some_and(|(inode, ..)| *inode == known.ino());
            if is_settled {
                continue;
            }
            if let Some((of, attempt)) = self.find_attempt(&name, &path)? {
                if attempt.seen.closed.is_some() && !attempt.seen.lease_held {
                    self.settled.borrow_mut().insert(name, (known.ino(), of, attempt.seen));
                } else if of == *pool {
                    found.insert(name, attempt);
                }
            }
        }
        self.settled.borrow_mut().retain(|name, (inode, ..)| present.get(name) == Some(inode));
        Ok(found)
    }

    fn find_attempt(&self, name: &AttemptName, dir: &Path) -> Result<Option<(PoolName, Found)>, HostError> {
        let trouble = |e: io::Error| cannot("examine", dir, e);
        // This order: once it is closed no call stays in, so a lease that is free after that stays free.
        let closed = mark::closed(dir).map_err(trouble)?;
        let used = mark::is_set(dir, USED).map_err(trouble)?;
        let lease = lease::look(dir).map_err(trouble)?;
        let held = lease.is_some_and(|look| look.held) && !self.holds_exclusively(name);
        let job = match JobFile::read(dir) {
            Ok(job) => job,
            // Nobody can serve a job by a damaged file; but while a call lives that read it before, nobody may say
            // that the attempt is gone.
            Err(trouble) if trouble.damaged && !held => {
                tracing::warn!("{}", trouble.error);
                None
            }
            Err(trouble) => return Err(trouble.error),
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
        // A runner that lives removes it by itself, and needs it until then.
        let lives =
            record.begun.boot == self.clock.boot() && see_runner(&origin, own.as_ref()) == Presence::There;
        if !here || lives {
            return Ok(());
        }
        super::orphans::clear(tmpdir).map_err(|e| cannot("remove the rest of", &tmpdir.path, e))
    }
}

/// Litter of calls that were killed: an attempt without a name or without a job.
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

fn judge(attempt: &mut Found, own: Option<&Namespaces>) {
    attempt.seen.runner = see_runner(&attempt.origin, own);
    attempt.seen.tmpdir = see_tmpdir(&attempt.origin, own);
}

/// Judged only from the process namespace it was recorded in.
fn see_runner(origin: &Origin, own: Option<&Namespaces>) -> Presence {
    match (origin.runner, &origin.namespaces, own) {
        (Some(runner), Some(then), Some(now)) if then.pid == now.pid => look(runner),
        _ => Presence::Unknown,
    }
}

/// Judged only from the mount namespace it was recorded in.
fn see_tmpdir(origin: &Origin, own: Option<&Namespaces>) -> Presence {
    let (Some(tmpdir), Some(then), Some(now)) = (&origin.tmpdir, &origin.namespaces, own) else {
        return Presence::Unknown;
    };
    if then.mount == now.mount { see_directory(tmpdir) } else { Presence::Unknown }
}

fn see_directory(tmpdir: &Tmpdir) -> Presence {
    match fs::symlink_metadata(&tmpdir.path) {
        Ok(found) if (found.dev(), found.ino()) == (tmpdir.device, tmpdir.inode) => Presence::There,
        Ok(_) => Presence::Gone,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Presence::Gone
        }
        Err(_) => Presence::Unknown,
    }
}
