//! The endpoint of a keeper: a thread of its own, so that no scrape delays a pass and no pass delays a scrape.
//!
//! Bounds: `MOST` connections, of which a new one ends the oldest; `WITHIN` for each; a head of 8 KiB; one reading of the
//! state for all scrapes within `FRESH`. A client that sends nothing, or reads nothing, costs one connection until then.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{fs, io};

use greenroom_core::metrics::Exposition;
use greenroom_manager::runner_host::replace_told;
use greenroom_system::replace::private_dir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, oneshot};
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{sleep, timeout};

use super::Source;
use super::http::{self, LONGEST_HEAD, Request};
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::config::MetricsAddress;

/// Concurrent connections.
const MOST: usize = 16;
/// The time that one connection may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The time for which further scrapes get the same metrics.
const FRESH: Duration = Duration::from_millis(500);
/// The pause before the socket is bound again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The pause after a connection that could not be accepted, as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The file in the state directory that has the address while metrics are served.
pub(in crate::cli) const ADDRESS_FILE: &str = "metrics-address";

/// The address at which a keeper serves metrics, or did when it was killed. The address is in [`ADDRESS_FILE`].
pub(in crate::cli) fn served_address(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join(ADDRESS_FILE)).ok()?;
    Some(text.trim().to_owned())
}

/// A running endpoint. It ends when this is dropped.
#[derive(Debug)]
pub(in crate::cli) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves from now on, or as soon as the address is free. Metrics are only told: a problem is logged, and the keeper
    /// goes on.
    pub(in crate::cli) fn start(place: &GlobalOptions, state_path: &Path, address: MetricsAddress) -> Self {
        let (stop, stopped) = oneshot::channel();
        let place = place.clone();
        let root = state_path.to_owned();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => LocalSet::new().block_on(&runtime, async {
                    tokio::select! {
                        () = serve(&place, &root, &address) => {}
                        _ = stopped => {}
                    }
                }),
                Err(error) => tracing::error!("metrics are not served: {error}"),
            }
            std::fs::remove_file(root.join(ADDRESS_FILE)).ok();
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(serve);
        let thread = thread.inspect_err(|error| tracing::error!("metrics are not served: {error}")).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It holds no lock, and ends at its next step.
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn serve(place: &GlobalOptions, root: &Path, address: &MetricsAddress) {
    let listener = bound(address).await;
    if let Ok(address) = listener.address() {
        tracing::info!("metrics are served at {address}");
        if let Err(error) = replace_told(root, ADDRESS_FILE, format!("{address}\n").as_bytes()) {
            tracing::warn!("cannot write `{ADDRESS_FILE}`: {error}");
        }
    }
    let metrics = Rc::new(Metrics { place: place.clone(), last: Mutex::default() });
    let connections: RefCell<VecDeque<AbortHandle>> = RefCell::default();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("a connection for metrics cannot be accepted: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let metrics = Rc::clone(&metrics);
        let task = tokio::task::spawn_local(async move {
            timeout(WITHIN, answer(stream, &metrics)).await.ok();
        });
        let mut connections = connections.borrow_mut();
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MOST
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(task.abort_handle());
    }
}

/// Binds the socket. The keeper before may still have it.
async fn bound(address: &MetricsAddress) -> Listener {
    let mut pause = FIRST_PAUSE;
    loop {
        match Listener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(
                "metrics cannot be served at {address}: {error}; next try in {} s",
                pause.as_secs()
            ),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads one request and answers it. Errors of the connection end it.
async fn answer(mut stream: Box<dyn Stream>, metrics: &Metrics) {
    let mut received = Vec::new();
    let length = loop {
        if let Some(length) = http::head_length(&received) {
            break Some(length);
        }
        if received.len() > LONGEST_HEAD {
            break None;
        }
        match (&mut stream).take(1 << 10).read_buf(&mut received).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    };
    let request = match length {
        Some(length) => http::parse(&received[..length]),
        None => Request::Refused("431 Request Header Fields Too Large", "the request has more than 8 KiB"),
    };
    let response = match request {
        Request::Refused(status, why) => http::refusal(status, why),
        Request::Metrics { format, body } => match metrics.read().await {
            Ok(metrics) => {
                let text = metrics.render(format);
                let head = http::head("200 OK", format.content_type(), text.len());
                if body { head + &text } else { head }
            }
            Err(problem) => {
                tracing::warn!("metrics cannot be read: {}", problem.in_a_line());
                http::refusal(
                    "503 Service Unavailable",
                    "the metrics cannot be read; keeper.log states the cause",
                )
            }
        },
    };
    if stream.write_all(response.as_bytes()).await.is_ok() {
        stream.shutdown().await.ok();
        // What the client still sends would reset the connection before it has read the response.
        let mut rest = [0; 512];
        while matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {}
    }
}

/// The metrics, read once for all concurrent scrapes.
#[derive(Debug)]
struct Metrics {
    place: GlobalOptions,
    last: Mutex<LastReading>,
}

#[derive(Debug, Default)]
struct LastReading {
    source: Option<Source>,
    read: Option<(Instant, Rc<Exposition>)>,
}

impl Metrics {
    async fn read(&self) -> Result<Rc<Exposition>, CliError> {
        let mut last = self.last.lock().await;
        if let Some((at, metrics)) = &last.read
            && at.elapsed() < FRESH
        {
            return Ok(Rc::clone(metrics));
        }
        let source = match &mut last.source {
            Some(source) => source,
            none => none.insert(Source::open(&self.place)?),
        };
        let (metrics, _) = source.read().await?;
        let metrics = Rc::new(metrics);
        last.read = Some((Instant::now(), Rc::clone(&metrics)));
        Ok(metrics)
    }
}

/// The owner and the group may connect; the directory decides who reaches the socket.
const MODE: u32 = 0o660;

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// A bound socket. A Unix socket is removed when this is dropped.
#[derive(Debug)]
enum Listener {
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
