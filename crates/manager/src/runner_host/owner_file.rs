//! The files `owner` and `manager` of a state directory: whose instances are launched from it, and whose jobs run from it.

use std::io;
use std::path::Path;

use greenroom_core::ids::OwnerId;
use greenroom_core::time::ManagerId;
use serde::{Deserialize, Serialize};

use super::files;
use super::location::DirLocation;

pub(super) const OWNER: &str = "owner";
const MANAGER: &str = "manager";

/// The file `owner`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    pub(super) owner: OwnerId,
    pub(super) place: DirLocation,
}

/// Creates manager and owner of a new directory. Of several concurrent processes one wins, and all read its ids.
pub(super) fn make(root: &Path) -> io::Result<()> {
    let id = u32::from_str_radix(&files::random_hex(4)?, 16).map_err(io::Error::other)?;
    // 0 is none.
    keep_manager(root, ManagerId(id.max(1)))?;
    files::put_first(root, OWNER, &fresh(root)?)?;
    Ok(())
}

pub(super) fn fresh(root: &Path) -> io::Result<Vec<u8>> {
    encode(&OwnerFile { owner: OwnerId::new(files::random_hex(8)?), place: DirLocation::of(root)? })
}

/// Writes the manager of a directory that has no such file.
pub(super) fn keep_manager(root: &Path, manager: ManagerId) -> io::Result<()> {
    files::put_first(root, MANAGER, format!("{:08x}\n", manager.0).as_bytes())?;
    Ok(())
}

/// The manager of a directory; `None`: an earlier version made it, which took the first 32 bits of the owner's id.
pub(super) fn read_manager(root: &Path) -> io::Result<Option<ManagerId>> {
    let Some(text) = files::read(&root.join(MANAGER))? else { return Ok(None) };
    let digits = std::str::from_utf8(&text).map_err(io::Error::other)?;
    u32::from_str_radix(digits.trim_ascii(), 16).map(|id| Some(ManagerId(id))).map_err(io::Error::other)
}

pub(super) fn encode(file: &OwnerFile) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(file)?;
    text.push(b'\n');
    Ok(text)
}
