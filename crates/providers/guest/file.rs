//! Writes files with an exact mode.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::naming;

/// Writes a file with exactly that mode, whatever was there before.
pub(crate) fn write(path: impl AsRef<Path>, mode: u32, text: impl AsRef<[u8]>) -> io::Result<()> {
    let path = path.as_ref();
    let put = || {
        let mut file: File =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_ref())
    };
    put().map_err(naming(path.display()))
}
