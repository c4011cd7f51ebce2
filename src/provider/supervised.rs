//! Instances that are each a directory and a process of our own executable on this machine, seen from outside.
//!
//! Disk and kernel locks are the only truth: nothing is remembered here, so any process may ask or act at any time.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Signal;

use super::console;
use super::instance_dir::{InstanceDir, Life, is_plain_name};
use super::launch::{self, Launcher, Recipe, Server};
use super::process::{self, Process};
use super::{remove, scope};
use crate::core::endpoint::Endpoint;
use crate::core::failure::ErrorClass;
use crate::core::ids::{InstanceId, PoolName};
use crate::core::inventory::{Listed, Listing};
use crate::port::clock::Clock;
use crate::port::provider::{LaunchRequest, ProviderError};

/// An instance that has not gone so long after it was told to is killed.
const INSIST_AFTER: Duration = Duration::from_secs(10);

/// The instances of one pool.
#[derive(Clone)]
pub struct Supervised {
    pub pool: PoolName,
    /// The folder with one folder for each pool.
    pub instances: PathBuf,
    pub server: Server,
    pub clock: Rc<dyn Clock>,
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
        let server = scope::in_scope(&self.server);
        Launcher { pool_dir: &pool_dir, server: &server }.launch(request, recipe).await
    }

    fn end(&self, dir: &InstanceDir) -> io::Result<()> {
        let now = self.clock.now();
        let insisted = dir.terminating()?;
        if insisted.is_none() {
            dir.put("terminating", &now)?;
        }
        let Some(holder) = dir.holder()? else {
            // Nobody lives there: a process of its own buries it, however long that takes.
            drop(launch::spawn(&self.server, dir, Stdio::null())?);
            return Ok(());
        };
        let overdue = insisted.is_some_and(|since| now.since(since) >= INSIST_AFTER);
        if overdue {
            dir.put("terminating", &now)?;
        }
        let Some(process) = Process::of(holder.as_raw_nonzero().get()) else { return Ok(()) };
        // RACE: between the question and the look the number may have gone to somebody else.
        if dir.holder()? == Some(holder) {
            process::signal(&process, if overdue { Signal::KILL } else { Signal::TERM });
        }
        Ok(())
    }

    /// As `Provider::terminate`.
    pub fn terminate(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let dir = self.dir(id)?;
        let is_there = || dir.launched().map(|found| found.is_some()).map_err(|error| transient(&error));
        if is_there()? {
            match self.end(&dir) {
                // RACE: it was buried under our hands.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_there()? => {}
                other => return other.map_err(|error| transient(&error)),
            }
        }
        if dir.holder().map_err(|error| transient(&error))?.is_some() {
            // Its process is about to remove the last of it.
            return Ok(());
        }
        remove::tree(&dir.path).map_err(|error| transient(&error))?;
        Err(not_found(id))
    }

    /// As `Provider::list`. `look` is asked for each directory; `None`: it is not an instance (any more), or shall
    /// not be seen yet.
    pub fn list(
        &self,
        pool: &PoolName,
        look: impl Fn(&InstanceDir) -> io::Result<Option<Listed>>,
    ) -> Result<Listing, ProviderError> {
        let begun = self.clock.now();
        let dirs = launch::instances(&self.pool_dir(pool)).map_err(|error| transient(&error))?;
        let mut listing = Listing { begun, complete: true, instances: Vec::new() };
        for dir in dirs {
            match look(&dir) {
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

    /// As `Provider::endpoint`.
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

    /// As `Provider::console`.
    pub fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        match console::tail(&self.dir(id)?.file("console.log")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found(id)),
            Err(error) => Err(transient(&error)),
        }
    }
}
