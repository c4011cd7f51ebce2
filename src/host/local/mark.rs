//! Marks: files whose being there is the message.
//!
//! Made with O_EXCL, never removed. What stands in them is for people and for ages only.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::files;
use super::lease::modified;
use crate::core::time::Stamp;

pub(super) const CLOSED: &str = "closed";
pub(super) const USED: &str = "used";

/// Sets a mark; set already is fine, and keeps its first time.
pub(super) fn set(dir: &Path, mark: &str, now: Stamp) -> io::Result<()> {
    match files::create_new(&dir.join(mark)) {
        // CRASH: a mark without a time has its file's time.
        Ok(mut file) => {
            let text = serde_json::to_vec(&now)?;
            // On a full disk the mark stands, without its time.
            file.write_all(&text).ok();
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn is_set(dir: &Path, mark: &str) -> io::Result<bool> {
    Ok(files::missing_is_none(fs::symlink_metadata(dir.join(mark)))?.is_some())
}

/// When a mark was set; `None` if it is not.
pub(super) fn set_at(dir: &Path, mark: &str) -> io::Result<Option<Stamp>> {
    let path = dir.join(mark);
    let Some(text) = files::read(&path)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(stamp) => Ok(Some(stamp)),
        Err(_) => fs::metadata(&path).map(|known| Some(modified(&known))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::BootId;

    #[test]
    fn a_mark_keeps_its_first_time_and_an_empty_one_counts_too() {
        let home = tempfile::tempdir().unwrap();
        let at = |uptime_ms| Stamp { wall_ms: 1, boot: BootId(1), uptime_ms };
        assert_eq!(set_at(home.path(), CLOSED).unwrap(), None);
        set(home.path(), CLOSED, at(5)).unwrap();
        set(home.path(), CLOSED, at(9)).unwrap();
        assert_eq!(set_at(home.path(), CLOSED).unwrap(), Some(at(5)));
        fs::write(home.path().join(USED), "").unwrap();
        assert!(set_at(home.path(), USED).unwrap().is_some() && is_set(home.path(), USED).unwrap());
    }
}
