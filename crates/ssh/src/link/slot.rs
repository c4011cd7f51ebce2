//! The directory of an instance's links, with a lock and a socket for each slot.
//!
//! The process that holds the lock is the slot's only link. The lock's file holds a note of the running stage, so that
//! the next link can stop what a dead link left running.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use greenroom_ports::clock::Clock;
use rustix::fs::{Mode, OFlags};

use super::super::stop_handle::StopHandle;
use super::note::Note;

/// Room for one job on an instance.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    dir: PathBuf,
    number: u32,
}

impl Slot {
    pub(super) fn new(dir: PathBuf, number: u32) -> Self {
        Self { dir, number }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    fn socket(&self) -> String {
        format!("{}.sock", self.number)
    }

    /// The socket's name until calls may find it.
    fn fresh_socket(&self) -> String {
        format!("{}.new", self.socket())
    }

    fn lock_path(&self) -> PathBuf {
        self.dir.join(format!("{}.lock", self.number))
    }

    /// True if there is a socket, whose link may be dead. Does not contact the link.
    pub(super) fn has_socket(&self) -> bool {
        self.dir.join(self.socket()).exists()
    }

    /// Connects to the link of this slot; `None` if there is none.
    pub(super) async fn connect(&self) -> io::Result<Option<tokio::net::UnixStream>> {
        let Some(dir) = open_dir(&self.dir)? else { return Ok(None) };
        match tokio::net::UnixStream::connect(through(&dir, &self.socket())).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Becomes the link of this slot; `None` if another process is the link.
    pub(super) fn seize(&self, clock: Rc<dyn Clock>) -> io::Result<Option<SlotLock>> {
        let locked = self.try_lock()?;
        Ok(locked.map(|lock| SlotLock { slot: self.clone(), lock, clock }))
    }

    fn try_lock(&self) -> io::Result<Option<File>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.lock_path())?;
        match file.try_lock() {
            // RACE: the file may have been removed between opening and locking it.
            Ok(()) => Ok(self.is_named(&file).then_some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// True if the lock's path names this file.
    fn is_named(&self, lock: &File) -> bool {
        let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
        let named = std::fs::metadata(self.lock_path()).map(inode).ok();
        named.is_some() && named == lock.metadata().map(inode).ok()
    }

    /// Removes the files of a dead link. A running link removes its own files when it exits. False if a link holds the
    /// lock, such as one that was killed and has not quite ended.
    pub(super) fn clear(&self) -> bool {
        if let Ok(Some(lock)) = self.try_lock() {
            self.remove_files(&lock, false);
        }
        !self.lock_path().exists()
    }

    /// Removes the files of a link that holds this lock, and the directory with the last lock.
    fn remove_files(&self, lock: &File, keep_note: bool) {
        // The next link finds files that cannot be removed, or they go with the state directory.
        if let Ok(Some(dir)) = open_dir(&self.dir)
            && self.is_named(lock)
        {
            let _gone = remove(&dir, &self.socket());
            let _gone = remove(&dir, &self.fresh_socket());
            if !keep_note {
                let _gone = std::fs::remove_file(self.lock_path());
                let _others = std::fs::remove_dir(&self.dir);
            }
        }
    }
}

/// The slots of an instance that have, or had, a link.
pub(super) fn slots(dir: &Path) -> Vec<Slot> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let number = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".lock")?.parse().ok();
    let mut numbers: Vec<u32> = names.filter_map(number).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| Slot::new(dir.to_owned(), number)).collect()
}

/// The lock of a slot, held until dropped; its holder is the slot's link.
pub(super) struct SlotLock {
    slot: Slot,
    lock: File,
    clock: Rc<dyn Clock>,
}

impl SlotLock {
    /// Accepts calls from now on, in place of a dead link.
    pub(super) fn listen(&self) -> io::Result<tokio::net::UnixListener> {
        let dir = open_dir(&self.slot.dir)?.ok_or(io::ErrorKind::NotFound)?;
        let (name, fresh) = (self.slot.socket(), self.slot.fresh_socket());
        remove(&dir, &fresh)?;
        let listener = UnixListener::bind(through(&dir, &fresh))?;
        // RACE: a call finds the dead link's socket or this one.
        rustix::fs::renameat(&dir, fresh.as_str(), &dir, name.as_str())?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }

    /// Stops accepting calls. Also removes the lock's file, unless a stage may still be running.
    pub(super) fn give_up(&self) {
        self.slot.remove_files(&self.lock, self.left_running().is_some());
    }

    /// True if the lock's path still names the locked file.
    pub(super) fn is_there(&self) -> bool {
        self.slot.is_named(&self.lock)
    }

    /// Notes the handle of the running stage, or that there is none.
    pub(super) fn note(&self, handle: Option<&StopHandle>) -> io::Result<()> {
        let note = handle.map(|handle| Note::new(handle.clone(), self.clock.now()));
        self.lock.write_all_at(Note::line(note.as_ref()).as_bytes(), 0)
    }

    /// Keeps the note of a running stage from going stale.
    pub(super) fn keep_note_young(&self) {
        if let Some(handle) = self.left_running() {
            // On failure, the note only goes stale.
            let _aged = self.note(Some(&handle));
        }
    }

    /// What stops the stage of the previous, dead link, if it may still be running there.
    pub(super) fn left_running(&self) -> Option<StopHandle> {
        let mut line = [0; Note::LENGTH];
        let length = self.lock.read_at(&mut line, 0).ok()?;
        let note = Note::parse(std::str::from_utf8(&line[..length]).ok()?)?;
        note.is_recent(self.clock.now()).then_some(note.handle)
    }
}

/// Wakes the keeper at `mailbox`; a full mailbox already holds a wake-up.
pub(super) fn wake_keeper(mailbox: &Path) {
    let (Some(dir), Some(name)) = (mailbox.parent(), mailbox.file_name()) else { return };
    let Ok(Some(dir)) = open_dir(dir) else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let _lost = socket
        .set_nonblocking(true)
        .and_then(|()| socket.send_to(b"!", through(&dir, &name.to_string_lossy())));
}

fn remove(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_dir(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The path of a socket below `dir`: a socket address holds only 108 bytes, and state directories may have longer
/// paths.
fn through(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}
