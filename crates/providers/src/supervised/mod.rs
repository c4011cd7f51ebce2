//! Instances that are each a directory and a Greenroom process on the runner host: what `local` and `qemu` have in common.
//!
//! This file has the provider's calls, which see an instance from outside. [`instance_dir`] is its directory, [`launch`]
//! creates it and starts its process, and [`supervisor`] is that process, seen from inside.
//!
//! All state is on disk and in kernel locks, so any process may make these calls at any time.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::inventory::{Listed, Listing};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::{LaunchRequest, ProviderError, Termination};
use greenroom_system::remove;
use greenroom_system::threads::disk::BlockingPool;
use rustix::process::Signal;

use crate::process::{self, Process};
use instance_dir::{InstanceDir, Life, is_plain_name};
use launch::{InstanceProgram, Launcher, Recipe};

#[cfg(test)]
mod failing_writes;
pub mod instance_dir;
pub mod launch;
pub mod supervisor;

/// The time limit for an instance to terminate before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// The instances of one pool.
#[derive(Clone)]
pub struct Supervised {
    /// The provider's kind.
    pub kind: &'static str,
    pub pool: PoolName,
    /// The directory with one subdirectory for each pool.
    pub instances: PathBuf,
    pub server: InstanceProgram,
    pub clock: Rc<dyn Clock>,
    /// Removals of instances' trees.
    pub disk: BlockingPool,
}

impl std::fmt::Debug for Supervised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised").field("pool", &self.pool).finish_non_exhaustive()
    }
}

fn transient(error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, error.to_string())
}

fn not_found(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::NotFound, format!("no instance `{id}`"))
}

impl Supervised {
    fn pool_dir(&self, pool: &PoolName) -> PathBuf {
        self.instances.join(pool.as_str())
    }

    pub fn dir(&self, id: &InstanceId) -> Result<InstanceDir, ProviderError> {
        if !is_plain_name(id.as_str()) {
            return Err(not_found(id));
        }
        Ok(InstanceDir::at(self.pool_dir(&self.pool).join(id.as_str())))
    }

    pub async fn launch(&self, request: &LaunchRequest, recipe: &dyn Recipe) -> Result<(), ProviderError> {
        if request.tags.pool != self.pool {
            let message = format!("this is pool `{}`, not `{}`", self.pool, request.tags.pool);
            return Err(ProviderError::new(ErrorClass::Invalid, message));
        }
        let pool_dir = self.pool_dir(&self.pool);
        let server = launch::in_scope(&self.server);
        Launcher { pool_dir: &pool_dir, server: &server, disk: &self.disk }.launch(request, recipe).await
    }

    fn end(&self, dir: &InstanceDir) -> io::Result<()> {
        let now = self.clock.now();
        let requested = dir.terminating()?;
        if requested.is_none() {
            dir.mark_terminating(&now)?;
        }
        let Some(holder) = dir.holder()? else {
            // No process holds the lock: a new process removes the instance, however long that takes.
            drop(launch::spawn(&self.server, dir, Stdio::null())?);
            return Ok(());
        };
        let overdue = requested.is_some_and(|since| now.since(since) >= KILL_AFTER);
        let Some(process) = Process::of(holder.as_raw_nonzero().get()) else { return Ok(()) };
        // RACE: since the first query, the pid may have passed to another process.
        if dir.holder()? == Some(holder) {
            process::signal(&process, if overdue { Signal::KILL } else { Signal::TERM });
        }
        if overdue {
            // After the signal: a full disk must not hold it up.
            dir.mark_terminating(&now)?;
        }
        Ok(())
    }

    /// Implements [`Provider::terminate`](greenroom_ports::provider::Provider::terminate).
    pub async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let dir = self.dir(id)?;
        let is_there = || dir.launched().map(|found| found.is_some()).map_err(|error| transient(&error));
        if is_there()? {
            match self.end(&dir) {
                // RACE: another process removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_there()? => {}
                other => return other.map(|()| Termination::Requested).map_err(|error| transient(&error)),
            }
        }
        if dir.holder().map_err(|error| transient(&error))?.is_some() {
            // Its process is about to remove the rest.
            return Ok(Termination::Requested);
        }
        let path = dir.path.clone();
        let removed = self.disk.run(&dir.path, move || remove::tree(&path)).await;
        removed.map_err(|error| transient(&error))?;
        // The directory was the whole instance, and this host is the only place of it.
        Ok(Termination::Gone)
    }

    /// Implements [`Provider::list`](greenroom_ports::provider::Provider::list). `entry` is called for each directory;
    /// `None`:
    /// the directory is not an instance, or not to be listed yet.
    pub fn list(
        &self,
        pool: &PoolName,
        entry: impl Fn(&InstanceDir) -> io::Result<Option<Listed>>,
    ) -> Result<Listing, ProviderError> {
        let begun = self.clock.now();
        let dirs = launch::instances(&self.pool_dir(pool)).map_err(|error| transient(&error))?;
        let mut listing = Listing::empty(begun, Some(Location::new(self.kind)));
        for dir in dirs {
            match entry(&dir) {
                Ok(seen) => listing.instances.extend(seen),
                Err(error) => {
                    tracing::warn!(%pool, %error, "cannot read an instance: the list is incomplete");
                    listing.complete = false;
                }
            }
        }
        listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(listing)
    }

    /// Implements [`Provider::endpoint`](greenroom_ports::provider::Provider::endpoint).
    pub fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let dir = self.dir(id)?;
        if dir.launched().map_err(|error| transient(&error))?.is_none() {
            return Err(not_found(id));
        }
        let why = match dir.life().map_err(|error| transient(&error))? {
            Life::HalfMade => "its launch was interrupted before its process started",
            Life::Booting => "it is booting",
            Life::Ended => "it has been terminated",
            Life::Running => match dir.endpoint().map_err(|error| transient(&error))? {
                Some(endpoint) => return Ok(endpoint),
                None => "it is booting",
            },
        };
        Err(ProviderError::new(ErrorClass::Transient, format!("`{id}` has no address: {why}")))
    }

    /// Implements [`Provider::console`](greenroom_ports::provider::Provider::console).
    pub fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        match instance_dir::console_tail(&self.dir(id)?.file("console.log")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found(id)),
            Err(error) => Err(transient(&error)),
        }
    }
}
