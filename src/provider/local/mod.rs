//! Instances that are processes on this machine.
//!
//! An instance is a directory and a process of our own executable that serves SSH on loopback. Disk and kernel locks
//! are the only truth: this adapter remembers nothing, so any process may ask or act at any time.
//! No isolation: jobs run as the user that runs us.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;

use super::{BuildContext, Built, GuestDirs, Registration};
use crate::core::endpoint::Endpoint;
use crate::core::failure::ErrorClass;
use crate::core::ids::{InstanceId, PoolName};
use crate::core::inventory::{Capabilities, Listed, Listing};
use crate::port::provider::{LaunchRequest, Provider, ProviderError};

mod console;
mod dir;
mod doctor;
mod faults;
mod launch;
mod login;
mod processes;
mod remove;
pub mod server;
mod settings;

use dir::{InstanceDir, Life, is_plain_name};
use launch::Launcher;
use processes::Process;
use settings::Settings;

pub const REGISTRATION: Registration = Registration {
    kind: "local",
    summary: "processes on this machine, without isolation: to try out, to rehearse, to test",
    example: include_str!("example.toml"),
    build,
    guest_dirs: Some(guest_dirs),
    doctor: doctor::doctor,
};

/// Instances see this machine's files. What a job leaves there goes with the attempt's directory.
fn guest_dirs(state_dir: &Path) -> GuestDirs {
    let under = |name: &str| state_dir.join(name).display().to_string();
    GuestDirs { builds: under("builds"), cache: under("cache") }
}

/// An instance that has not gone so long after it was told to is killed.
const INSIST_AFTER: Duration = Duration::from_secs(10);

/// The instances of one pool on this machine.
#[derive(Debug)]
struct Local {
    context: BuildContext,
    settings: Settings,
}

fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(table)?;
    settings.check_user(rustix::process::geteuid().is_root())?;
    Ok(Rc::new(Local { context: context.clone(), settings }))
}

fn transient(error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, error.to_string())
}

fn not_found(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::NotFound, format!("no instance `{id}`"))
}

impl Local {
    fn pool_dir(&self, pool: &PoolName) -> PathBuf {
        self.context.state_dir.join("instances").join(pool.as_str())
    }

    fn dir(&self, id: &InstanceId) -> Result<InstanceDir, ProviderError> {
        if !is_plain_name(id.as_str()) {
            return Err(not_found(id));
        }
        Ok(InstanceDir::at(self.pool_dir(&self.context.pool).join(id.as_str())))
    }

    /// `None`: it is not an instance (any more), or shall not be seen yet.
    fn look(&self, dir: &InstanceDir) -> io::Result<Option<Listed>> {
        let Some(spec) = dir.spec()? else { return Ok(None) };
        if self.context.clock.now().since(spec.created) < spec.list_lag {
            return Ok(None);
        }
        let status = dir.life()?.status();
        Ok(Some(Listed { id: spec.instance, tags: Some(spec.tags), status, created: Some(spec.created) }))
    }

    fn end(&self, dir: &InstanceDir) -> io::Result<()> {
        let now = self.context.clock.now();
        let insisted = dir.terminating()?;
        if insisted.is_none() {
            dir.put("terminating", &now)?;
        }
        let Some(holder) = dir.holder()? else {
            // Nobody lives there: a process of its own buries it, however long that takes.
            drop(launch::spawn(&self.context.program, dir, Stdio::null())?);
            return Ok(());
        };
        let overdue = insisted.is_some_and(|since| now.since(since) >= INSIST_AFTER);
        if overdue {
            dir.put("terminating", &now)?;
        }
        let Some(process) = Process::of(holder.as_raw_nonzero().get()) else { return Ok(()) };
        // RACE: between the question and the look the number may have gone to somebody else.
        if dir.holder()? == Some(holder) {
            processes::signal(&process, if overdue { Signal::KILL } else { Signal::TERM });
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Provider for Local {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        if request.tags.pool != self.context.pool {
            let message = format!("this is pool `{}`, not `{}`", self.context.pool, request.tags.pool);
            return Err(ProviderError::new(ErrorClass::Invalid, message));
        }
        let pool_dir = self.pool_dir(&request.tags.pool);
        let (program, settings) = (&self.context.program, &self.settings);
        let now = self.context.clock.now();
        Launcher { pool_dir: &pool_dir, program, settings, now }.launch(request).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let dir = self.dir(id)?;
        let is_there = || dir.spec().map(|spec| spec.is_some()).map_err(|error| transient(&error));
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

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        let begun = self.context.clock.now();
        let dirs = launch::instances(&self.pool_dir(pool)).map_err(|error| transient(&error))?;
        let mut listing = Listing { begun, complete: true, instances: Vec::new() };
        for dir in dirs {
            match self.look(&dir) {
                Ok(seen) => listing.instances.extend(seen),
                Err(error) => {
                    tracing::warn!(%pool, %error, "an instance cannot be read: the list is incomplete");
                    listing.complete = false;
                }
            }
        }
        listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(listing)
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let dir = self.dir(id)?;
        if dir.spec().map_err(|error| transient(&error))?.is_none() {
            return Err(not_found(id));
        }
        let why = match dir.life().map_err(|error| transient(&error))? {
            Life::HalfMade => "its launch was cut off before its process began",
            Life::Booting => "it is booting",
            Life::Ended => "it has ended",
            Life::Running => match dir.endpoint().map_err(|error| transient(&error))? {
                Some(endpoint) => return Ok(endpoint),
                None => "it is booting",
            },
        };
        Err(ProviderError::new(ErrorClass::Transient, format!("`{id}` has no address: {why}")))
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        let dir = self.dir(id)?;
        match console::tail(&dir.file("console.log")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found(id)),
            Err(error) => Err(transient(&error)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        // A boot is the start of one small process: no number of them is too many.
        Capabilities { boots_here: Some(u32::MAX), ..Capabilities::default() }
    }
}
