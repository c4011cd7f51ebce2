//! Replaces a file in one step, in a directory where other users may write.
//!
//! A reader sees the old text or the new one. Nothing that another user has put there is followed or written over.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::random_hex;

/// A file that a killed process left goes after this time.
const LEFT_AFTER: Duration = Duration::from_hours(1);
/// Digits of a fresh file's name.
const DIGITS: usize = 32;

/// Writes a file with this mode, and puts it in the place of `path`. The error names the file.
pub fn replace(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other(format!("`{}` names no file", path.display())));
    };
    let begin = format!(".{}.", name.to_string_lossy());
    remove_left(dir, &begin);
    let fresh = dir.join(format!("{begin}{}", random_hex(DIGITS / 2)?));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    let written = write(&fresh, text, mode).and_then(|()| fs::rename(&fresh, &path)).map_err(named);
    if written.is_err() {
        fs::remove_file(&fresh).ok();
    }
    written
}

/// Writes a new file. No other user can read it before it has its mode.
fn write(fresh: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).custom_flags(no_link).open(fresh)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()
}

/// Makes a directory that no other user can enter, under a name that nobody can guess.
pub fn private_dir(within: &Path) -> io::Result<PathBuf> {
    let dir = within.join(format!(".greenroom-{}", random_hex(DIGITS / 4)?));
    fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}

/// Removes what killed processes left.
fn remove_left(dir: &Path, begin: &str) {
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let digits = name.and_then(|name| name.strip_prefix(begin));
        let is_fresh = digits.is_some_and(|digits| {
            digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let age = || path.symlink_metadata().ok()?.modified().ok()?.elapsed().ok();
        is_fresh && age().is_some_and(|age| age > LEFT_AFTER)
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    for left in entries.filter(is_left) {
        fs::remove_file(left).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("greenroom.prom");
        let old = dir.path().join(format!(".greenroom.prom.{}", "0a".repeat(DIGITS / 2)));
        let left = fs::File::create(&old).unwrap();
        left.set_modified(SystemTime::now() - 2 * LEFT_AFTER).unwrap();
        for (text, mode) in [("one\n", 0o644), ("two\n", 0o600)] {
            replace(&path, text.as_bytes(), mode).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = replace(&dir.path().join("none/x.prom"), b"", 0o644).unwrap_err().to_string();
        assert!(error.contains("none/"), "{error}");
        replace(Path::new("/"), b"", 0o644).unwrap_err();
    }

    #[test]
    fn a_planted_link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("greenroom.prom");
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        // The name that earlier versions used, which another user could guess.
        let guessed = dir.path().join(format!(".greenroom.prom.{}", std::process::id()));
        std::os::unix::fs::symlink(&victim, guessed).unwrap();
        replace(&path, b"metrics", 0o644).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!path.symlink_metadata().unwrap().is_symlink());
        let planted = dir.path().join("planted");
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        write(&planted, b"x", 0o644).unwrap_err();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }
}
