//! The keeper's lock: one keeper per state directory.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::host_error::HostError;
use greenroom_ports::lock::{Held, Lock};
use greenroom_system::threads::flock::{self, Kind};

use super::error::cannot;
use super::files;
use super::host::{LocalHost, Role};
use super::replacement::ReplacementWatch;
use super::starts;

pub(super) const KEEPER_LOCK: &str = "keeper.lock";

/// `keeper_lives` holds the lock shared for microseconds, which is not a keeper.
const CHECK_LASTS: Duration = Duration::from_millis(20);

/// The held lock.
#[derive(Debug)]
struct KeeperGuard {
    _file: File,
    /// The state directory; `None`: this process is no keeper, but a manual pass.
    root: Option<PathBuf>,
}

impl Held for KeeperGuard {}

impl Drop for KeeperGuard {
    fn drop(&mut self) {
        if let Some(root) = &self.root
            && !std::thread::panicking()
        {
            starts::end(root);
        }
    }
}

impl LocalHost {
    pub(super) async fn become_keeper(&self, within: Duration) -> Result<Option<Lock>, HostError> {
        let path = self.state.root().join(KEEPER_LOCK);
        let failed = |e: io::Error| cannot("lock", &path, e);
        let opened = files::open_lock(&path).map_err(failed)?;
        let locked = flock::lock(opened, Kind::Exclusive, within.max(CHECK_LASTS)).await.map_err(failed)?;
        let Some(file) = locked else { return Ok(None) };
        if !files::names(&path, &file).map_err(failed)? {
            // The directory was recreated during the wait.
            return Ok(None);
        }
        let watch = ReplacementWatch::open(path.clone(), &file).map_err(failed)?;
        *self.replacement_watch.borrow_mut() = Some(Rc::new(watch));
        self.bind_keeper_inboxes();
        self.let_others_spawn().map_err(failed)?;
        let root = (self.role == Role::Keeper).then(|| self.state.root().to_owned());
        if let Some(root) = &root {
            starts::begin(root, self.clock.now());
        }
        Ok(Some(Box::new(KeeperGuard { _file: file, root })))
    }

    /// Binds the pools' mailboxes, before the state is read for the first time. A new pool is bound at its first wait.
    fn bind_keeper_inboxes(&self) {
        self.boxes.forget_keepers();
        let Ok(pools) = fs::read_dir(self.state.pools()) else { return };
        for entry in pools.flatten() {
            let name = entry.file_name();
            let Some(Ok(pool)) = name.to_str().map(PoolName::parse) else { continue };
            if let Err(error) = self.boxes.bind_keeper(&pool, &entry.path()) {
                tracing::warn!("{}", cannot("bind a socket in", &entry.path(), error));
            }
        }
    }

    pub(super) fn keeper_runs(&self) -> Result<bool, HostError> {
        let path = self.state.root().join(KEEPER_LOCK);
        let failed = |e: io::Error| cannot("stat", &path, e);
        let opened = files::missing_is_none(File::open(&path)).map_err(failed)?;
        let Some(file) = opened else { return Ok(false) };
        flock::try_lock(&file, Kind::Shared).map(|free| !free).map_err(failed)
    }
}
