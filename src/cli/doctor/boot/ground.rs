//! The state directories of boots that are tried out: `boot-…`, each inside the real one, as long as the boot lasts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::core::ids::{InstanceId, PoolName};
use crate::host::local::StateDir;
use crate::port::store::Store as _;
use crate::store::file::{self, Options};

const PREFIX: &str = "boot-";
/// Nothing of it is needed any more.
const OVER: &str = ".over";

/// A boot that did not come to its end.
#[derive(Debug)]
pub(in crate::cli) struct Unfinished {
    pub(in crate::cli) path: PathBuf,
    /// What it was for, and what is recorded of it; `None`: it came to nothing.
    pub(in crate::cli) pool: Option<PoolName>,
    pub(in crate::cli) instances: Vec<InstanceId>,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a `doctor --boot` that was cut off")?;
        let instances: Vec<&str> = self.instances.iter().map(InstanceId::as_str).collect();
        if instances.is_empty() { Ok(()) } else { write!(f, ": {}", instances.join(", ")) }
    }
}

/// Makes a directory for one boot, with an owner of its own.
pub(super) fn make(state: &Path) -> Result<PathBuf, CliError> {
    loop {
        let mut random = [0_u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = state.join(format!("{PREFIX}{:08x}", u32::from_ne_bytes(random)));
        if !path.exists() {
            StateDir::open(&path)?;
            return Ok(path);
        }
    }
}

/// Boots whose process has died. Also takes away what one of them could not remove any more.
pub(in crate::cli) async fn unfinished(context: &Context) -> Result<Vec<Unfinished>, CliError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(&context.state_path)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        if name.ends_with(OVER) {
            remove_tree(&entry.path())?;
        } else if !is_alive(&entry.path())? {
            found.push(look(entry.path()).await?);
        }
    }
    Ok(found)
}

async fn look(path: PathBuf) -> Result<Unfinished, CliError> {
    let dir = file::open_dir(&path)?;
    let Some(pool) = dir.pools()?.into_iter().next() else {
        return Ok(Unfinished { path, pool: None, instances: Vec::new() });
    };
    let recorded = dir.pool(&pool, Options::default())?.load().await?;
    let instances = recorded.instances.keys().cloned().collect();
    Ok(Unfinished { path, pool: Some(pool), instances })
}

/// Is the process still there whose boot this is?
fn is_alive(path: &Path) -> io::Result<bool> {
    let lock = match fs::File::open(path.join("keeper.lock")) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match lock.file().try_lock_shared() {
        Ok(()) => Ok(false),
        Err(std::fs::TryLockError::WouldBlock) => Ok(true),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the directory of a boot of which nothing is left.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    // CRASH: half a state directory looks damaged; by its new name anybody sees that it may go.
    let mut over = path.as_os_str().to_owned();
    over.push(OVER);
    let over = PathBuf::from(over);
    fs::rename(path, &over)?;
    remove_tree(&over)
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        // RACE: somebody else removes it, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
