//! Host keys that the operator has confirmed and pinned.
//!
//! `STATE/pinned/POOL/HOST` holds one public key in OpenSSH form. Written by `doctor --pin` alone.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use greenroom_core::ids::PoolName;

use super::settings::Server;

/// The path of a host's pinned key.
pub(super) fn path(state_dir: &Path, pool: &PoolName, host: &str) -> PathBuf {
    state_dir.join("pinned").join(pool.as_str()).join(host)
}

/// The host key that a server must present: the stated one or the pinned one. `None`: there is neither.
pub(super) fn host_key(server: &Server, pin: &Path) -> io::Result<Option<String>> {
    if let Some(stated) = &server.host_key {
        return Ok(Some(stated.clone()));
    }
    match fs::read_to_string(pin) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
