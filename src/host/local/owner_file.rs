//! The file `owner` of a state directory.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files;
use super::location::DirLocation;
use crate::core::ids::OwnerId;

pub(super) const OWNER: &str = "owner";

/// The file `owner`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    pub(super) owner: OwnerId,
    pub(super) place: DirLocation,
}

/// Creates the owner of a new directory. Of several concurrent processes one wins, and all read its id.
pub(super) fn make(root: &Path) -> io::Result<()> {
    files::put_first(root, OWNER, &fresh(root)?)?;
    Ok(())
}

pub(super) fn fresh(root: &Path) -> io::Result<Vec<u8>> {
    encode(&OwnerFile { owner: OwnerId::new(files::random_hex(8)?), place: DirLocation::of(root)? })
}

pub(super) fn encode(file: &OwnerFile) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(file)?;
    text.push(b'\n');
    Ok(text)
}
