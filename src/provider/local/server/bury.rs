//! Removes what is left of an instance.

use std::io;

use fs_err as fs;

use super::InstanceDir;
use crate::provider::local::remove;

/// What goes last, in this order: as long as there is a spec, there is an instance to terminate.
const LAST: [&str; 2] = ["spec.json", "lock"];

/// Removes the directory of an instance on which nothing runs any more; its lock is held by the caller.
///
/// CRASH: cut off anywhere, the instance is still listed, or (after its spec) the rest goes with the next `terminate`.
pub(super) fn bury(dir: &InstanceDir) -> io::Result<()> {
    let entries = match fs::read_dir(&dir.path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        // The mark goes with the directory: without it a cut-off burial would look like an instance.
        let name = entry.file_name();
        if !LAST.iter().chain(&["terminating"]).any(|last| name == *last) {
            remove::tree(&entry.path())?;
        }
    }
    for last in LAST {
        remove::tree(&dir.file(last))?;
    }
    remove::tree(&dir.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_a_second_burial_is_fine() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path().join("one"));
        fs::create_dir_all(dir.file("work/deep")).unwrap();
        for file in ["spec.json", "lock", "terminating", "work/deep/file"] {
            fs::write(dir.file(file), "").unwrap();
        }
        bury(&dir).unwrap();
        bury(&dir).unwrap();
        assert!(!dir.path.exists());
    }
}
