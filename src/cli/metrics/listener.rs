//! The socket of the endpoint: TCP, or a Unix socket that replaces a dead one and never a living one.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use greenroom_system::replace::private_dir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::config::MetricsAddress;

/// The owner and the group may connect; the directory decides who reaches the socket.
const MODE: u32 = 0o660;

/// A connection of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// A bound socket. A Unix socket is removed when this is dropped.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf, inode: u64 },
}

impl Listener {
    pub(super) async fn bind(address: &MetricsAddress) -> io::Result<Self> {
        match address {
            MetricsAddress::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?)),
            MetricsAddress::Unix(path) => bind_unix(path).await,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }

    /// The address that clients connect to.
    pub(super) fn address(&self) -> io::Result<MetricsAddress> {
        Ok(match self {
            Self::Tcp(listener) => MetricsAddress::Tcp(listener.local_addr()?),
            Self::Unix { path, .. } => MetricsAddress::Unix(path.clone()),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, inode, .. } = self
            && fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == *inode)
        {
            fs::remove_file(path).ok();
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<Listener> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path is taken by a file that is not a socket",
            ));
        }
        Ok(_) => refuse_living(path).await?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Made where nobody else can enter, so that it has its mode when clients find it, and replaces a dead one in one step.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = private_dir(parent.unwrap_or_else(|| Path::new(".")))?;
    let placed = place(&dir.join("socket"), path);
    fs::remove_dir_all(&dir).ok();
    placed
}

/// Makes a socket and moves it to its place.
fn place(fresh: &Path, path: &Path) -> io::Result<Listener> {
    let listener = UnixListener::bind(fresh)?;
    fs::set_permissions(fresh, fs::Permissions::from_mode(MODE))?;
    let inode = fs::symlink_metadata(fresh)?.ino();
    fs::rename(fresh, path)?;
    Ok(Listener::Unix { listener, path: path.to_owned(), inode })
}

/// An error if a process listens there.
async fn refuse_living(path: &Path) -> io::Result<()> {
    match tokio::net::UnixStream::connect(path).await {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Ok(())
        }
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process serves this socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let address = MetricsAddress::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let first = Listener::bind(&address).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the socket is left");
        let refused = Listener::bind(&address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(tokio::net::UnixStream::connect(&path).await.unwrap());
        drop(first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it is removed");
        fs::write(&path, "text").unwrap();
        assert_eq!(Listener::bind(&address).await.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        let nowhere = MetricsAddress::Unix(dir.path().join("none/metrics.sock"));
        Listener::bind(&nowhere).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_socket_of_another_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.sock");
        let first = Listener::bind(&MetricsAddress::Unix(path.clone())).await.unwrap();
        fs::remove_file(&path).unwrap();
        let second = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }
}
