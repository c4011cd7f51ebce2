//! The state directories of test boots: `boot-…`, each inside the real one, as long as the boot lasts.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use fs_err as fs;
use greenroom_core::ids::{InstanceId, OwnerId, PoolName};
use greenroom_manager::runner_host::StateDir;
use greenroom_system::remove;

use crate::cli::context::{self, StoreOptions};
use crate::cli::error::CliError;

const PREFIX: &str = "boot-";
/// The beginning of the names of directories that are being made.
const HALF_MADE: &str = ".boot-";
/// The end of the names of directories that are no longer needed.
const OVER: &str = ".over";
/// The file that is locked while the process of the boot is running.
const LOCK: &str = "boot.lock";
/// The time within which a process has made its directory.
const MADE_WITHIN: Duration = Duration::from_mins(1);

/// The directory of one boot, for this process alone.
#[derive(Debug)]
pub(in crate::cli) struct ScratchStateDir {
    path: PathBuf,
    _lock: File,
}

/// An interrupted boot, as [`unfinished`] finds it.
#[derive(Debug)]
pub(in crate::cli) struct Unfinished {
    pub(super) ground: ScratchStateDir,
    /// The pool that was booted; `None`: nothing was launched.
    pub(in crate::cli) pool: Option<PoolName>,
    pub(in crate::cli) instances: Vec<InstanceId>,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an interrupted `doctor --boot`")?;
        let instances: Vec<&str> = self.instances.iter().map(InstanceId::as_str).collect();
        if instances.is_empty() { Ok(()) } else { write!(f, ": {}", instances.join(", ")) }
    }
}

impl ScratchStateDir {
    /// Makes a directory for one boot, with an owner of its own.
    pub(super) fn make(state: &Path) -> Result<Self, CliError> {
        let mut random = [0_u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{:08x}", u32::from_ne_bytes(random));
        let fresh = state.join(format!("{HALF_MADE}{name}"));
        StateDir::open(&fresh)?;
        let lock = File::create(fresh.join(LOCK))?;
        lock.lock()?;
        // RACE: it is locked before the rename; one that is not locked has no process.
        let path = state.join(format!("{PREFIX}{name}"));
        fs::rename(fresh, &path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Takes over the directory of a process that died. `None`: the process is running.
    fn take(path: PathBuf) -> io::Result<Option<Self>> {
        let lock = match fs::File::open(path.join(LOCK)) {
            Ok(lock) => lock.into_file(),
            // RACE: the boot has finished.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(Self { path, _lock: lock })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    pub(in crate::cli) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory: nothing is left of the boot.
    pub(super) fn remove(&self) -> io::Result<()> {
        // CRASH: half a state directory looks damaged; its new name shows that it can be removed.
        let mut over = self.path.as_os_str().to_owned();
        over.push(OVER);
        let over = PathBuf::from(over);
        fs::rename(&self.path, &over)?;
        remove::tree(&over)
    }
}

impl Unfinished {
    pub(in crate::cli) fn path(&self) -> &Path {
        self.ground.path()
    }
}

/// Boots whose process has died. Also removes directories that such a process could not remove.
pub(in crate::cli) async fn unfinished(state: &Path) -> Result<Vec<Unfinished>, CliError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(state)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // RACE: one that is being made may be renamed at any time.
        let made = || entry.metadata().and_then(|known| known.modified());
        let is_old = || made().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > MADE_WITHIN));
        if name.starts_with(PREFIX) && name.ends_with(OVER) || name.starts_with(HALF_MADE) && is_old() {
            remove::tree(&entry.path())?;
        } else if name.starts_with(PREFIX)
            && let Some(ground) = ScratchStateDir::take(entry.path())?
        {
            found.push(look(ground).await?);
        }
    }
    Ok(found)
}

/// The owners of all boots, running and interrupted.
pub(in crate::cli) fn owners(state: &Path) -> io::Result<BTreeSet<OwnerId>> {
    let mut owners = BTreeSet::new();
    for entry in fs::read_dir(state)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            owners.extend(StateDir::owner_at(&entry.path()));
        }
    }
    Ok(owners)
}

async fn look(ground: ScratchStateDir) -> Result<Unfinished, CliError> {
    let stores = context::open_stores(&ground.path, StoreOptions::default())?;
    let Some(pool) = stores.pools().await?.into_iter().next() else {
        return Ok(Unfinished { ground, pool: None, instances: Vec::new() });
    };
    let recorded = stores.store(&pool)?.load().await?;
    let instances = recorded.instances.keys().cloned().collect();
    Ok(Unfinished { ground, pool: Some(pool), instances })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_boot_is_unfinished_when_its_process_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let ground = ScratchStateDir::make(state.path()).unwrap();
        assert!(unfinished(state.path()).await.unwrap().is_empty(), "it lives");
        assert_eq!(
            owners(state.path()).unwrap(),
            BTreeSet::from([StateDir::owner_at(ground.path()).unwrap()])
        );
        let path = ground.path().to_owned();
        drop(ground);
        // A process that another test starts has the lock, too, until it executes its program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut left = unfinished(state.path()).await.unwrap();
        while left.is_empty() && std::time::Instant::now() < until {
            std::thread::yield_now();
            left = unfinished(state.path()).await.unwrap();
        }
        assert_eq!((left.len(), left[0].path(), &left[0].pool), (1, path.as_path(), &None));
        assert_eq!(left[0].to_string(), "an interrupted `doctor --boot`");
        assert!(unfinished(state.path()).await.unwrap().is_empty(), "somebody sees to it");
        left[0].ground.remove().unwrap();
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_was_half_made_or_half_removed_goes() {
        let state = tempfile::tempdir().unwrap();
        for name in ["boot-1.over", ".boot-2", ".boot-3"] {
            std::fs::create_dir(state.path().join(name)).unwrap();
        }
        let old = std::time::SystemTime::now() - MADE_WITHIN * 2;
        File::open(state.path().join(".boot-2")).unwrap().set_modified(old).unwrap();
        assert!(unfinished(state.path()).await.unwrap().is_empty());
        let left: Vec<_> =
            std::fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".boot-3"], "somebody may be making it");
    }
}
