//! Unix sockets with names in a directory.
//!
//! A socket address holds 108 bytes and state directories may have longer paths, so every name goes through
//! `/proc/self/fd/N/`, where N is the opened directory.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// An opened directory with sockets.
#[derive(Debug)]
pub struct SocketDir(OwnedFd);

impl SocketDir {
    pub fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(dir, flags, Mode::empty())?))
    }

    /// A short path of the socket of that name, valid while the directory is open.
    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Gives a socket another name, in place of a socket that has that name already.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// Removes the socket of that name, if there is one.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Result of sending a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeUpSent {
    /// A running process has the socket open.
    Alive,
    /// No process has the socket open, or there is no socket.
    NoReceiver,
}

/// Sends a wake-up to the datagram socket `dir/name` without waiting. A full queue is not an error: it already holds a
/// wake-up.
pub fn send_wake_up(dir: &Path, name: &str) -> io::Result<WakeUpSent> {
    let opened = match SocketDir::open(dir) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(WakeUpSent::NoReceiver),
        Err(error) => return Err(error),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match socket.connect(opened.path(name)) {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(WakeUpSent::NoReceiver);
        }
        Err(error) => return Err(error),
    }
    match socket.send(b"!") {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(WakeUpSent::NoReceiver),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(WakeUpSent::Alive),
    }
}
