//! Removes files of jobs, including read-only directories.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fs_err as fs;

/// Removes a file or a whole tree; follows no link. A missing path is not an error.
pub fn tree(path: &Path) -> io::Result<()> {
    match attempt(path) {
        // A job may have made its directories read-only, as Go's module cache does.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            attempt(path)
        }
        other => other,
    }
}

fn attempt(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(kind) => kind,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let done = if kind.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match done {
        // RACE: another process removes it at the same time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn open_up(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(());
    }
    fs::set_permissions(path, PermissionsExt::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        open_up(&entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_tree_goes_and_links_are_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let kept = temporary.path().join("kept");
        fs::write(&kept, "x").unwrap();
        let root = temporary.path().join("cache");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, root.join("a/link")).unwrap();
        for closed in ["a/b", "a"] {
            fs::set_permissions(root.join(closed), PermissionsExt::from_mode(0o500)).unwrap();
        }
        tree(&root).unwrap();
        tree(&root).unwrap();
        assert!(!root.exists() && kept.exists());
    }
}
