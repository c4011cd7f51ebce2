//! The owner of a state directory, its location and its generations.
//!
//! The files `owner` and `manager` tell whose instances are launched from the directory, and whose jobs run from it. A copy of a state
//! directory has the same owner id and instances: two managers would terminate each other's instances. So the directory records the
//! machine and the inode it was created on.
//!
//! Invariant: a nonce in `generations` is on disk before the first launch that carries it, and stays there.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use greenroom_core::ids::{Generation, OwnerId};
use greenroom_core::time::ManagerId;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Identity;
use greenroom_system::random_hex;
use greenroom_system::threads::disk::BlockingPool;
use greenroom_system::threads::flock::{self, Kind};
use serde::{Deserialize, Serialize};

use super::files::{self, Durable, broken, cannot};
use super::state_dir::StateDir;

const OWNER: &str = "owner";
const MANAGER: &str = "manager";

/// The file `owner`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OwnerFile {
    owner: OwnerId,
    place: DirLocation,
}

/// Creates manager and owner of a new directory. Of several concurrent processes one wins, and all read its ids.
pub(super) fn make_owner(root: &Path) -> io::Result<()> {
    let id = u32::from_str_radix(&random_hex(4)?, 16).map_err(io::Error::other)?;
    // 0 is none.
    keep_manager(root, ManagerId(id.max(1)))?;
    files::put_first(root, OWNER, &new_owner_file(root)?)?;
    Ok(())
}

fn new_owner_file(root: &Path) -> io::Result<Vec<u8>> {
    encode_owner(&OwnerFile { owner: OwnerId::new(random_hex(8)?), place: DirLocation::of(root)? })
}

/// Writes the manager of a directory that has no such file.
fn keep_manager(root: &Path, manager: ManagerId) -> io::Result<()> {
    files::put_first(root, MANAGER, format!("{:08x}\n", manager.0).as_bytes())?;
    Ok(())
}

/// The manager of a directory; `None`: an earlier version made it, which took the first 32 bits of the owner's id.
fn read_manager(root: &Path) -> io::Result<Option<ManagerId>> {
    let Some(text) = files::read(&root.join(MANAGER))? else { return Ok(None) };
    let digits = std::str::from_utf8(&text).map_err(io::Error::other)?;
    u32::from_str_radix(digits.trim_ascii(), 16).map(|id| Some(ManagerId(id))).map_err(io::Error::other)
}

fn encode_owner(file: &OwnerFile) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(file)?;
    text.push(b'\n');
    Ok(text)
}

const GENERATIONS: &str = "generations";

fn load_owner(state: &StateDir) -> Result<OwnerFile, HostError> {
    let path = state.root().join(OWNER);
    let text = files::read(&path).map_err(|e| cannot("read", &path, e))?;
    let text = text.ok_or_else(|| broken(format_args!("`{}` is missing", path.display())))?;
    serde_json::from_slice(&text).map_err(|e| {
        broken(format_args!(
            "`{}` is damaged ({e}): restore the file from a backup, or start with a new owner (`greenroom \
             doctor --new-owner`)",
            path.display()
        ))
    })
}

fn location(state: &StateDir) -> Result<DirLocation, HostError> {
    DirLocation::of(state.root()).map_err(|e| cannot("stat", state.root(), e))
}

/// Reads the owner of the directory, and compares the current location with the recorded one.
pub(super) fn identity(state: &StateDir) -> Result<Identity, HostError> {
    let file = load_owner(state)?;
    let moved = file.place.differs(&location(state)?).map(|difference| {
        format!(
            "the state directory `{}` was copied or moved ({difference}): run `greenroom doctor --take-over` \
             if the original no longer exists, or `greenroom doctor --new-owner` if it is still in use",
            state.root().display()
        )
    });
    Ok(Identity { owner: file.owner, moved, generations: generations(state)? })
}

impl StateDir {
    /// The owner of the directory at `path`, without opening or creating it; `None` if it has none.
    pub fn owner_at(path: &Path) -> Option<OwnerId> {
        let text = files::read(&path.join(OWNER)).ok()??;
        serde_json::from_slice::<OwnerFile>(&text).ok().map(|file| file.owner)
    }

    /// The manager that works in this directory; 0 if it cannot be read. Another owner changes nothing about it: the attempts
    /// in the directory are its own.
    pub fn manager(&self) -> ManagerId {
        match read_manager(self.root()) {
            Ok(Some(manager)) => manager,
            Ok(None) => load_owner(self).map(|file| manager_of(&file.owner)).unwrap_or_default(),
            Err(problem) => {
                tracing::warn!("{}", cannot("read", self.root(), problem));
                ManagerId::default()
            }
        }
    }

    /// Records the directory's current location and keeps the owner. Only if the original is gone.
    pub fn take_over(&self) -> Result<OwnerId, HostError> {
        let file = OwnerFile { owner: load_owner(self)?.owner, place: location(self)? };
        self.write_owner(&encode_owner(&file))?;
        Ok(file.owner)
    }

    /// Creates a new owner: the instances of the old one no longer belong to this directory.
    pub fn new_owner(&self) -> Result<OwnerId, HostError> {
        let manager = self.manager();
        if manager != ManagerId::default() {
            keep_manager(self.root(), manager).map_err(|e| cannot("write", self.root(), e))?;
        }
        self.write_owner(&new_owner_file(self.root()))?;
        Ok(load_owner(self)?.owner)
    }

    fn write_owner(&self, text: &io::Result<Vec<u8>>) -> Result<(), HostError> {
        let path = self.root().join(OWNER);
        let text =
            text.as_ref().map_err(|e| cannot("make", &path, io::Error::new(e.kind(), e.to_string())))?;
        files::replace(self.root(), OWNER, text, Durable::Yes).map_err(|e| cannot("write", &path, e))
    }
}

/// The first 32 bits of the owner's random ID: few managers ever share a pool.
fn manager_of(owner: &OwnerId) -> ManagerId {
    let digits = owner.as_str().get(..8).unwrap_or_default();
    ManagerId(u32::from_str_radix(digits, 16).unwrap_or_default())
}

fn generations(state: &StateDir) -> Result<BTreeSet<Generation>, HostError> {
    let path = state.root().join(GENERATIONS);
    let text = files::read(&path).map_err(|e| cannot("read", &path, e))?;
    Ok(parse(&text.unwrap_or_default()))
}

/// Skips a torn line: nothing was launched in its generation, because it had not been synced.
fn parse(text: &[u8]) -> BTreeSet<Generation> {
    let text = String::from_utf8_lossy(text);
    let hex = |line: &&str| line.len() == 8 && line.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    text.lines().filter(hex).map(Generation::new).collect()
}

/// Appends a nonce that the file does not hold yet, and syncs it.
pub(super) async fn begin_generation(
    state: &StateDir,
    disk: &BlockingPool,
    within: Duration,
) -> Result<Generation, HostError> {
    let path = state.root().join(GENERATIONS);
    let failed = |e: io::Error| cannot("append to", &path, e);
    let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path);
    // RACE: only the keeper appends, but two keepers during a handover must not pick the same nonce.
    let locked = flock::lock(opened.map_err(failed)?, Kind::Exclusive, within).await.map_err(failed)?;
    let file = locked.ok_or_else(|| failed(io::Error::other("another process holds its lock")))?;
    let root = state.root().to_owned();
    let at = path.clone();
    disk.run(&path, move || append_generation(&root, &at, file)).await.map_err(failed)
}

fn append_generation(root: &Path, path: &Path, mut file: File) -> io::Result<Generation> {
    let text = fs::read(path)?;
    let known = parse(&text);
    let generation = loop {
        let generation = Generation::new(random_hex(4)?);
        if !known.contains(&generation) {
            break generation;
        }
    };
    // CRASH: a killed machine may have left half a line, which stays as it is.
    let lead = if text.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
    file.write_all(format!("{lead}{generation}\n").as_bytes())?;
    file.sync_all()?;
    if text.is_empty() {
        files::sync_dir(root)?;
    }
    Ok(generation)
}

const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";

/// The identity of a location. Values that could not be read are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirLocation {
    #[serde(default)]
    machine_id: Option<String>,
    /// Readable by root only on most machines.
    #[serde(default)]
    product_uuid: Option<String>,
    inode: u64,
    /// Nanoseconds since 1970; some file systems do not record it.
    #[serde(default)]
    born_ns: Option<u64>,
}

impl DirLocation {
    /// The current location of the directory at `root`.
    pub(super) fn of(root: &Path) -> std::io::Result<Self> {
        let known = fs::metadata(root)?;
        let born = known.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            machine_id: MACHINE_ID.iter().find_map(|path| first_line(path)),
            product_uuid: first_line(PRODUCT_UUID),
            inode: known.ino(),
            born_ns: born.and_then(|age| u64::try_from(age.as_nanos()).ok()),
        })
    }

    /// The differences between the recorded location and the current one, as text; `None` if there are none.
    pub(super) fn differs(&self, now: &Self) -> Option<String> {
        let differences = [
            // Machine ids are confidential, and job logs show this text: it states only that they differ.
            another("machine ID", self.machine_id.as_ref(), now.machine_id.as_ref()),
            another("DMI product UUID", self.product_uuid.as_ref(), now.product_uuid.as_ref()),
            differing("inode", Some(&self.inode), Some(&now.inode)),
            differing("birth time", self.born_ns.as_ref(), now.born_ns.as_ref()),
        ];
        let found: Vec<String> = differences.into_iter().flatten().collect();
        (!found.is_empty()).then(|| found.join(", "))
    }
}

fn another(what: &str, recorded: Option<&String>, found: Option<&String>) -> Option<String> {
    (recorded? != found?).then(|| format!("different {what}"))
}

fn differing<T: PartialEq + Display>(what: &str, recorded: Option<&T>, found: Option<&T>) -> Option<String> {
    let recorded = recorded?;
    let found = found?;
    (recorded != found).then(|| format!("{what} {found}, recorded {recorded}"))
}

/// Ignores the empty machine id that container images often have.
fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty() && line != "uninitialized").then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> (tempfile::TempDir, StateDir) {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(&home.path().join("state")).unwrap();
        (home, state)
    }

    #[test]
    fn an_owner_stays_the_same_and_is_at_home() {
        let (_home, state) = open();
        let one = identity(&state).unwrap();
        assert_eq!(identity(&state).unwrap(), one);
        assert_eq!(one.moved, None);
        assert_eq!(one.owner.as_str().len(), 16);
        assert_eq!(StateDir::owner_at(state.root()), Some(one.owner));
        assert_eq!(StateDir::owner_at(Path::new("/no/such/state")), None);
    }

    #[test]
    fn a_copied_directory_is_moved_until_it_is_taken_over() {
        let (home, state) = open();
        let copy = home.path().join("copy");
        files::make_dir(&copy).unwrap();
        fs::copy(state.root().join(OWNER), copy.join(OWNER)).unwrap();
        let copied = StateDir::open(&copy).unwrap();
        let moved = identity(&copied).unwrap().moved.unwrap();
        assert!(
            moved.contains("inode") && moved.contains("--take-over") && moved.contains("--new-owner"),
            "{moved}"
        );
        assert_eq!(copied.take_over().unwrap(), identity(&state).unwrap().owner);
        assert_eq!(identity(&copied).unwrap().moved, None);
    }

    #[test]
    fn a_new_owner_is_another_and_at_home() {
        let (_home, state) = open();
        let old = identity(&state).unwrap().owner;
        let manager = state.manager();
        let new = state.new_owner().unwrap();
        let now = identity(&state).unwrap();
        assert_ne!(old, new);
        assert_eq!((now.owner, now.moved), (new, None));
        assert_eq!(state.manager(), manager, "its attempts are still its own");
    }

    #[test]
    fn a_directory_of_an_earlier_version_keeps_its_manager() {
        let (_home, state) = open();
        fs::remove_file(state.root().join("manager")).unwrap();
        let manager = state.manager();
        assert_eq!(manager, manager_of(&identity(&state).unwrap().owner));
        state.new_owner().unwrap();
        assert_eq!(state.manager(), manager);
        fs::write(state.root().join("manager"), "no number").unwrap();
        assert_eq!(state.manager(), ManagerId::default());
    }

    #[tokio::test]
    async fn generations_are_short_unique_and_survive_a_torn_line() {
        let (_home, state) = open();
        let disk = BlockingPool::default();
        let begin = |within| begin_generation(&state, &disk, within);
        // A process that another test is just starting may hold the lock for a moment.
        let patience = Duration::from_secs(30);
        let one = begin(patience).await.unwrap();
        let path = state.root().join(GENERATIONS);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"12ab").unwrap();
        let two = begin(patience).await.unwrap();
        let known = identity(&state).unwrap().generations;
        assert_eq!(known, BTreeSet::from([one.clone(), two]));
        assert_eq!(one.as_str().len(), 8);
        file.lock().unwrap();
        let busy = begin(Duration::ZERO).await.unwrap_err().to_string();
        assert!(busy.contains("another process holds its lock"), "{busy}");
    }

    fn place(machine: Option<&str>, uuid: Option<&str>, inode: u64, born_ns: Option<u64>) -> DirLocation {
        let machine_id = machine.map(str::to_owned);
        let product_uuid = uuid.map(str::to_owned);
        DirLocation { machine_id, product_uuid, inode, born_ns }
    }

    #[test]
    fn what_one_side_cannot_read_is_not_compared() {
        let root = place(Some("m"), Some("u"), 7, Some(1));
        assert_eq!(root.differs(&place(Some("m"), None, 7, Some(1))), None);
        assert_eq!(root.differs(&place(None, None, 7, None)), None);
    }

    #[test]
    fn each_difference_is_named_and_no_machine_id_is_told() {
        let here = place(Some("m"), Some("u"), 7, Some(1));
        for (other, expected) in [
            (place(Some("n"), Some("u"), 7, Some(1)), "different machine ID"),
            (place(Some("m"), Some("v"), 7, Some(1)), "different DMI product UUID"),
            (place(Some("m"), Some("u"), 8, Some(2)), "inode 8, recorded 7, birth time 2, recorded 1"),
        ] {
            assert_eq!(here.differs(&other).as_deref(), Some(expected));
        }
    }
}
