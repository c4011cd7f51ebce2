//! Observations of a pool's attempts.
//!
//! Facts only: `core::attempt` decides whether an attempt has ended. Facts that cannot be determined are [`Presence::Unknown`].

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use greenroom_core::attempt::{AttemptSeen, Closed, Presence};
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::time::{BootId, Stamp};
use greenroom_ports::host_error::HostError;

use super::attempt::remove_if_free;
use super::attempt_files::{self, AttemptOrigin, CLOSED, JobFile, ReadableFiles, Tmpdir, USED};
use super::files::cannot;
use super::host::{FinishedAttempt, LocalHost};
use super::lease::{self, modified};
use super::runner::{Namespaces, RECHECK_DELAY, presence};

/// The facts that an attempt's marks and lease show.
#[derive(Debug, Clone, Copy)]
struct AttemptMarks {
    closed: Option<Closed>,
    used: bool,
    lease_held: bool,
    lease_at: Stamp,
}

/// One attempt as it was found.
struct FoundAttempt {
    seen: AttemptSeen,
    origin: AttemptOrigin,
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
        let of_pool = finished.iter().filter(|(_, finished)| finished.pool == *pool);
        seen.extend(of_pool.map(|(name, finished)| (name.clone(), finished.seen.clone())));
        Ok(seen)
    }

    /// True if there is an attempt that is not closed, or if that cannot be determined.
    pub(super) fn has_open_attempt(&self) -> bool {
        let listed = super::files::missing_is_none(fs::read_dir(self.state.attempts()));
        let Ok(listed) = listed else { return true };
        let is_open = |entry: io::Result<fs::DirEntry>| {
            entry.map_or(true, |entry| !attempt_files::is_set(&entry.path(), CLOSED).unwrap_or(false))
        };
        listed.into_iter().flatten().any(is_open)
    }

    fn find_attempts(&self, pool: &PoolName) -> Result<BTreeMap<AttemptName, FoundAttempt>, HostError> {
        let attempts = self.state.attempts();
        let failed = |e: io::Error| cannot("list", &attempts, e);
        let mut found = BTreeMap::new();
        let mut present = BTreeMap::new();
        let listed = super::files::missing_is_none(fs::read_dir(&attempts)).map_err(failed)?;
        for entry in listed.into_iter().flatten() {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let name = entry.file_name();
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
                self.finished.borrow().get(&name).is_some_and(|finished| finished.inode == known.ino());
            if is_finished {
                continue;
            }
            let Some((of, attempt)) = self.find_attempt(&name, &path, &known) else { continue };
            self.log_unreadable(&name, attempt.seen.unreadable.as_deref());
            match of {
                Some(pool) if attempt.seen.closed.is_some() && !attempt.seen.lease_held => {
                    let finished = FinishedAttempt { inode: known.ino(), pool, seen: attempt.seen };
                    self.finished.borrow_mut().insert(name, finished);
                }
                // An attempt whose pool cannot be read may be the one that a pool has recorded.
                of if of.as_ref().is_none_or(|of| of == pool) => drop(found.insert(name, attempt)),
                _ => {}
            }
        }
        self.finished.borrow_mut().retain(|name, finished| present.get(name) == Some(&finished.inode));
        self.unreadable.borrow_mut().retain(|name, _| present.contains_key(name));
        Ok(found)
    }

    /// One attempt, with its pool if that is known. `None`: it had no `prepare`.
    ///
    /// Facts that cannot be read count as unknown, in the job's favour, and concern this attempt alone.
    fn find_attempt(
        &self,
        name: &AttemptName,
        dir: &Path,
        known: &fs::Metadata,
    ) -> Option<(Option<PoolName>, FoundAttempt)> {
        let marks = self.find_marks(name, dir, known);
        let ReadableFiles { job, assignment, problem } = JobFile::examine(dir);
        let problem = problem.map(|problem| problem.to_string());
        let (marks, problem) = match marks {
            Ok(marks) => (marks, problem),
            Err(error) => {
                let marks =
                    AttemptMarks { closed: None, used: true, lease_held: true, lease_at: modified(known) };
                (marks, problem.or_else(|| Some(cannot("examine", dir, error).to_string())))
            }
        };
        let instance = assignment.map(|assignment| assignment.instance);
        let Some(job) = job else {
            if problem.is_none() {
                remove_if_old(dir, self.times.unprepared_retention);
                return None;
            }
            let seen = self.unknown(&marks, instance, problem);
            return Some((None, FoundAttempt { seen, origin: AttemptOrigin::default() }));
        };
        let record = &job.record;
        let seen = AttemptSeen {
            job: Some(record.job.clone()),
            begun: record.begun,
            boot: record.begun.boot,
            ..self.unknown(&marks, instance, problem)
        };
        Some((Some(job.record.pool), FoundAttempt { seen, origin: job.origin }))
    }

    fn find_marks(&self, name: &AttemptName, dir: &Path, known: &fs::Metadata) -> io::Result<AttemptMarks> {
        // In this order: once the attempt is closed no new call stays, so a lease that is free after that stays free.
        let closed = attempt_files::closed(dir)?;
        let used = attempt_files::is_set(dir, USED)?;
        let lease = lease::status(dir)?;
        let lease_held = lease.is_some_and(|lease| lease.held) && !self.holds_exclusively(name);
        Ok(AttemptMarks {
            closed,
            used,
            lease_held,
            lease_at: lease.map_or_else(|| modified(known), |lease| lease.at),
        })
    }

    /// An attempt of which only the marks are known.
    fn unknown(
        &self,
        marks: &AttemptMarks,
        instance: Option<InstanceId>,
        unreadable: Option<String>,
    ) -> AttemptSeen {
        let AttemptMarks { closed, used, lease_held, lease_at } = *marks;
        // A lease that could not be written names no boot.
        let boot = if lease_at.boot == BootId(0) { self.clock.boot() } else { lease_at.boot };
        AttemptSeen {
            job: None,
            instance,
            unreadable,
            begun: lease_at,
            closed,
            used,
            lease_held,
            lease_at,
            runner: Presence::Unknown,
            tmpdir: Presence::Unknown,
            boot,
        }
    }

    /// Logs each problem once, not in each pass of each pool.
    fn log_unreadable(&self, name: &AttemptName, problem: Option<&str>) {
        let mut logged = self.unreadable.borrow_mut();
        match problem {
            Some(problem) if logged.get(name).is_none_or(|logged| logged != problem) => {
                tracing::warn!(attempt = %name, "cannot read an attempt: {problem}");
                logged.insert(name.clone(), problem.to_owned());
            }
            Some(_) => {}
            None => drop(logged.remove(name)),
        }
    }

    pub(super) async fn clear_tmpdir(&self, name: &AttemptName) -> Result<(), HostError> {
        let dir = self.state.attempt(name)?;
        let Some(JobFile { origin, record, .. }) = JobFile::read(&dir)? else { return Ok(()) };
        let Some(tmpdir) = origin.tmpdir.clone() else { return Ok(()) };
        let own = Namespaces::own();
        let here =
            own.is_some() && own.as_ref().map(|n| &n.mount) == origin.namespaces.as_ref().map(|n| &n.mount);
        // A running runner removes the directory itself, and needs it until then.
        let runner_lives = record.begun.boot == self.clock.boot()
            && runner_presence(&origin, own.as_ref()) == Presence::There;
        if !here || runner_lives {
            return Ok(());
        }
        let path = tmpdir.path.clone();
        let cleared = self.tmpdirs.run(&path, move || super::orphans::clear(&tmpdir)).await;
        cleared.map_err(|e| cannot("remove the rest of", &path, e))
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

fn is_doubtful(seen: &AttemptSeen) -> bool {
    seen.runner == Presence::Gone || seen.tmpdir == Presence::Gone
}

fn update_presence(attempt: &mut FoundAttempt, own: Option<&Namespaces>) {
    attempt.seen.runner = runner_presence(&attempt.origin, own);
    attempt.seen.tmpdir = tmpdir_presence(&attempt.origin, own);
}

/// Determined only in the process namespace that the runner was recorded in.
fn runner_presence(origin: &AttemptOrigin, own: Option<&Namespaces>) -> Presence {
    match (origin.runner, &origin.namespaces, own) {
        (Some(runner), Some(then), Some(now)) if then.pid == now.pid => presence(runner),
        _ => Presence::Unknown,
    }
}

/// Determined only in the mount namespace that the directory was recorded in.
fn tmpdir_presence(origin: &AttemptOrigin, own: Option<&Namespaces>) -> Presence {
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
