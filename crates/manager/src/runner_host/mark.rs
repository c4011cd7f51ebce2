//! Marks: files whose existence carries the information.
//!
//! Created with O_EXCL, never removed. Their content is only for operators, ages and messages.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use greenroom_core::attempt::Closed;
use greenroom_core::time::Stamp;

use super::files;
use super::lease::modified;

pub(super) const CLOSED: &str = "closed";
pub(super) const USED: &str = "used";

/// Sets the mark `used`; a mark that is already set keeps its first time.
pub(super) fn set_used(dir: &Path, now: Stamp) -> io::Result<()> {
    set(dir, USED, &serde_json::to_vec(&now)?)
}

/// Sets the mark `closed`; a mark that is already set keeps its first time and reason.
pub(super) fn set_closed(dir: &Path, closed: Closed) -> io::Result<()> {
    set(dir, CLOSED, &serde_json::to_vec(&closed)?)
}

fn set(dir: &Path, mark: &str, text: &[u8]) -> io::Result<()> {
    match files::create_new(&dir.join(mark)) {
        // CRASH: the mark exists without its text, as on a full disk.
        Ok(mut file) => {
            file.write_all(text).ok();
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn is_set(dir: &Path, mark: &str) -> io::Result<bool> {
    Ok(files::missing_is_none(fs::symlink_metadata(dir.join(mark)))?.is_some())
}

/// When and why the mark `closed` was set; `None` if it is not.
///
/// RACE: a read between the mark's creation and its text returns no reason, and the file's time.
pub(super) fn closed(dir: &Path) -> io::Result<Option<Closed>> {
    let path = dir.join(CLOSED);
    let Some(text) = files::read(&path)? else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(closed) => Ok(Some(closed)),
        Err(_) => fs::metadata(&path).map(|known| Some(Closed { at: modified(&known), how: None })),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::attempt::End;
    use greenroom_core::golden;
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    #[test]
    fn a_mark_keeps_its_first_time_and_reason_and_an_empty_one_counts_too() {
        let home = tempfile::tempdir().unwrap();
        let at = |uptime_ms| Stamp { wall_ms: 1, manager: ManagerId(1), boot: BootId(1), uptime_ms };
        assert_eq!(closed(home.path()).unwrap(), None);
        let first = Closed::new(at(5), End::Superseded);
        set_closed(home.path(), first).unwrap();
        set_closed(home.path(), Closed::new(at(9), End::CleanedUp)).unwrap();
        assert_eq!(closed(home.path()).unwrap(), Some(first));
        let whole = fs::read(home.path().join(CLOSED)).unwrap();
        for length in 0..whole.len() {
            fs::write(home.path().join(CLOSED), &whole[..length]).unwrap();
            let cut = closed(home.path()).unwrap().expect("the file is the mark");
            assert!(cut.how.is_none() && is_set(home.path(), CLOSED).unwrap(), "{length}: {cut:?}");
        }
        assert!(!is_set(home.path(), USED).unwrap());
        set_used(home.path(), at(5)).unwrap();
        assert!(is_set(home.path(), USED).unwrap());
    }

    #[test]
    fn marks_of_format_2_are_read() {
        let marks: Vec<Closed> = golden::ends()
            .map(Some)
            .into_iter()
            .chain([None])
            .map(|how| Closed {
                at: Stamp {
                    wall_ms: 1_781_524_800_000,
                    manager: ManagerId(1),
                    boot: BootId(7),
                    uptime_ms: 9,
                },
                how,
            })
            .collect();
        golden::hold(golden::recorded!("closed.jsonl"), &marks);
    }
}
