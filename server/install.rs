//! Copies the program into a volume of the pod.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Copies this program to a file that any user may run. A file that exists is whole.
pub(crate) fn copy(file: &Path) -> io::Result<()> {
    let unfinished = file.with_extension("new");
    let named = |error: io::Error| {
        io::Error::other(format!("cannot copy the program to {}: {error}", file.display()))
    };
    fs::copy("/proc/self/exe", &unfinished).map_err(named)?;
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755)).map_err(named)?;
    fs::rename(&unfinished, file).map_err(named)
}
