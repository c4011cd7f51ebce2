//! User IDs for the QEMU of each virtual machine, one at a time each.
//!
//! A folder of the runner host's, gone after a reboot like its rules, has a file for each user ID whose rules may exist.
//! The machine's supervisor holds the file's lock as long as it lives. Everything here happens under the folder's lock.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_system::threads::flock::{self, Kind};

use super::EgressError;
use crate::supervised::instance_dir::make_private;

/// One folder for all state directories of the runner host: they share its user IDs.
const FOLDER: &str = "/run/greenroom/guests";

/// Number of user IDs in a range.
pub(in crate::qemu) const COUNT: u32 = 1024;

/// The time for which other processes may hold the folder's lock.
const LOCK_WITHIN: Duration = Duration::from_secs(20);

/// The folder, locked.
#[derive(Debug)]
pub(super) struct Uids {
    folder: PathBuf,
    _lock: File,
}

/// A user ID that this process has taken, as long as the file is open.
#[derive(Debug)]
pub(super) struct TakenUid {
    pub(super) uid: u32,
    file: File,
}

impl TakenUid {
    /// Records the machine's forwarded port, for the removal of its rule.
    pub(super) fn record(&mut self, port: u16) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        write!(self.file, "{port}")
    }
}

/// Rules whose supervisor is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StaleUid {
    pub(super) uid: u32,
    pub(super) port: Option<u16>,
    /// True if processes of the user ID are left.
    pub(super) is_busy: bool,
}

impl Uids {
    pub(super) async fn lock() -> Result<Self, EgressError> {
        Self::at(Path::new(FOLDER)).await
    }

    /// True if rules may exist, without the lock.
    pub(super) fn any() -> bool {
        Path::new(FOLDER).exists()
    }

    async fn at(folder: &Path) -> Result<Self, EgressError> {
        make_private(folder)?;
        let file = open(&folder.join("lock"))?;
        let lock = flock::lock(file, Kind::Exclusive, LOCK_WITHIN).await?;
        let held = || EgressError::Locked(folder.to_owned());
        Ok(Self { folder: folder.to_owned(), _lock: lock.ok_or_else(held)? })
    }

    /// Takes the first user ID of a range that no machine and no process has.
    pub(super) fn take(&self, range: Range<u32>) -> Result<TakenUid, EgressError> {
        let busy = busy()?;
        for uid in range.clone().filter(|uid| !busy.contains(uid)) {
            let file = open(&self.file(uid))?;
            if flock::try_lock(&file, Kind::Exclusive)? {
                return Ok(TakenUid { uid, file });
            }
        }
        Err(EgressError::NoUid(range))
    }

    /// The files without a supervisor.
    pub(super) fn stale(&self) -> io::Result<Vec<StaleUid>> {
        let busy = busy()?;
        let mut found = Vec::new();
        for uid in self.all()? {
            let mut file = open(&self.file(uid))?;
            if flock::try_lock(&file, Kind::Exclusive)? {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                found.push(StaleUid { uid, port: text.parse().ok(), is_busy: busy.contains(&uid) });
            }
        }
        Ok(found)
    }

    /// Forgets a user ID whose rules are gone.
    pub(super) fn forget(&self, uid: u32) -> io::Result<()> {
        std::fs::remove_file(self.file(uid))
    }

    /// Every user ID with a file.
    pub(super) fn all(&self) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(found)
    }

    fn file(&self, uid: u32) -> PathBuf {
        self.folder.join(uid.to_string())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// The user IDs of all processes.
fn busy() -> io::Result<BTreeSet<u32>> {
    let mut uids = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // A process that exits meanwhile has none.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        // A process that has exited has no memory and no sockets any more, whether its parent has noticed or not.
        if !field("State:").starts_with(['Z', 'X']) {
            uids.extend(field("Uid:").split_ascii_whitespace().filter_map(|uid| uid.parse::<u32>().ok()));
        }
    }
    Ok(uids)
}

/// The reason a range of user IDs cannot be used, found by [`conflict`]: a fact about one of them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UidConflict {
    #[error("that of user `{0}`, too")]
    User(String),
    #[error("among the subordinate user IDs of `{0}` (/etc/subuid)")]
    Subordinate(String),
    #[error("not mapped in this user namespace (/proc/self/uid_map)")]
    Unmapped,
}

/// Finds why a range cannot be used. The texts are those of /etc/passwd, /etc/subuid and /proc/self/uid_map.
pub(super) fn conflict(range: &Range<u32>, passwd: &str, subuid: &str, map: &str) -> Option<UidConflict> {
    let first_field = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let field = |line: &str, at| line.split(':').nth(at)?.parse::<u64>().ok();
    let within = |uid: u64| (u64::from(range.start)..u64::from(range.end)).contains(&uid);
    if let Some(line) = passwd.lines().find(|line| field(line, 2).is_some_and(within)) {
        return Some(UidConflict::User(first_field(line)));
    }
    let overlaps = |line: &&str| {
        let first_and_count = field(line, 1).zip(field(line, 2));
        first_and_count.is_some_and(|(first, count)| {
            first < u64::from(range.end) && u64::from(range.start) < first + count
        })
    };
    if let Some(line) = subuid.lines().find(overlaps) {
        return Some(UidConflict::Subordinate(first_field(line)));
    }
    let covers = |line: &str| {
        let numbers: Vec<u64> =
            line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [inside, _, count] = numbers.as_slice() else { return false };
        *inside <= u64::from(range.start) && u64::from(range.end) <= inside + count
    };
    (!map.lines().any(covers)).then_some(UidConflict::Unmapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range<u32> = 1_900_000_000..1_900_001_024;

    /// Three user IDs that no process has. The product's own range may be in use: a virtual machine may run here.
    fn unused() -> Range<u32> {
        let busy = busy().unwrap();
        let starts = (3_000_000_000_u32..).step_by(3);
        let mut ranges = starts.map(|start| start..start + 3);
        ranges.find(|range| range.clone().all(|uid| !busy.contains(&uid))).unwrap()
    }

    #[tokio::test]
    async fn each_machine_has_a_user_id_of_its_own_and_a_dead_ones_is_found() {
        let range = unused();
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("run/guests");
        let uids = Uids::at(&folder).await.unwrap();
        let mut first = uids.take(range.clone()).unwrap();
        let second = uids.take(range.clone()).unwrap();
        assert_eq!((first.uid, second.uid), (range.start, range.start + 1));
        assert_eq!(uids.stale().unwrap(), []);
        first.record(40_000).unwrap();
        first.record(401).unwrap();
        drop(first);
        let stale = StaleUid { uid: range.start, port: Some(401), is_busy: false };
        // A process that another test starts has the lock, too, until it executes its program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while uids.stale().unwrap().is_empty() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(uids.stale().unwrap(), [stale]);
        uids.forget(range.start).unwrap();
        assert_eq!(uids.all().unwrap(), [second.uid]);
        let error = uids.take(second.uid..second.uid + 1).unwrap_err().to_string();
        let expected = format!("from {0} to {0} (`first_uid`) are in use", second.uid);
        assert!(error.contains(&expected), "{error}");
    }

    #[tokio::test]
    async fn the_user_id_of_a_process_is_not_taken() {
        let temporary = tempfile::tempdir().unwrap();
        let uids = Uids::at(temporary.path()).await.unwrap();
        let own = rustix::process::getuid().as_raw();
        let error = uids.take(own..own + 1).unwrap_err().to_string();
        assert!(error.ends_with("are in use"), "{error}");
        // Services may have some of these.
        assert_ne!(uids.take(own..own + 1_000).unwrap().uid, own);
    }

    #[test]
    fn a_range_of_real_users_is_found() {
        let map = "         0          0 4294967295\n";
        let users = "root:x:0:0:root:/:/bin/sh\nci:x:1000:1000::/home/ci:/bin/sh\n";
        assert_eq!(conflict(&RANGE, users, "ci:100000:65536\n", map), None);
        for (passwd, subuid, map, why) in [
            ("db:x:1900000007:1::/:/bin/sh\n", "", map, "that of user `db`, too"),
            (users, "ci:1900001023:65536\n", map, "among the subordinate user IDs of `ci` (/etc/subuid)"),
            (users, "ci:1899999999:2\n", map, "among the subordinate user IDs of `ci` (/etc/subuid)"),
            (users, "", "0 100000 65536\n", "not mapped in this user namespace (/proc/self/uid_map)"),
        ] {
            assert_eq!(conflict(&RANGE, passwd, subuid, map).unwrap().to_string(), why);
        }
    }
}
