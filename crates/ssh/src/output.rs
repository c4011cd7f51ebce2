//! Writes to this process's own output: [`ProcessOutput`].
//!
//! The runner reads this process's standard output and error through pipes, and may stop reading. That must block only
//! the guest, not the timers, the stop or the other stream.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use async_trait::async_trait;
use greenroom_ports::connector::{Output, Stream};
use rustix::fs::FileType;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;

/// Standard output and standard error of this process. Made inside the runtime.
pub struct ProcessOutput {
    stdout: Sink,
    stderr: Sink,
    open_line: Option<Stream>,
}

impl std::fmt::Debug for ProcessOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessOutput").finish_non_exhaustive()
    }
}

impl ProcessOutput {
    /// Examines descriptors 1 and 2; fails only if one is closed.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            stdout: Sink::of(io::stdout().as_fd(), || Box::new(tokio::io::stdout()))?,
            stderr: Sink::of(io::stderr().as_fd(), || Box::new(tokio::io::stderr()))?,
            open_line: None,
        })
    }

    /// The stream whose last bytes did not end with a line break, as far as they came through [`write`](Output::write).
    pub fn open_line(&self) -> Option<Stream> {
        self.open_line
    }

    /// Writes to pipes instead, for a process that forwards output to another one. Sets the pipes' open files to
    /// non-blocking mode.
    pub fn to_pipes(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let sink = |pipe| pipe::Sender::from_owned_fd(pipe).map(Sink::Pipe);
        Ok(Self { stdout: sink(stdout)?, stderr: sink(stderr)?, open_line: None })
    }
}

#[async_trait(?Send)]
impl Output for ProcessOutput {
    /// Discards all output once the reader has closed its end, so that the guest continues.
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if let Some(last) = bytes.last() {
            self.open_line = (*last != b'\n').then_some(stream);
        }
        match stream {
            Stream::Stdout => self.stdout.write(bytes).await,
            Stream::Stderr => self.stderr.write(bytes).await,
        }
    }

    fn note_line(&mut self, is_open: bool) {
        self.open_line = is_open.then_some(Stream::Stdout);
    }

    async fn end_line(&mut self) -> io::Result<()> {
        match self.open_line {
            Some(stream) => self.write(stream, b"\n").await,
            None => Ok(()),
        }
    }

    async fn own_line(&mut self, line: &str) -> io::Result<()> {
        let begin = if self.open_line.is_some() { "\n" } else { "" };
        self.write(Stream::Stderr, format!("{begin}{line}\n").as_bytes()).await
    }

    fn descriptor(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.stdout.descriptor(),
            Stream::Stderr => self.stderr.descriptor(),
        }
    }
}

/// The sink of one stream.
enum Sink {
    /// A pipe, reopened so that non-blocking mode applies only to this process. The inherited descriptor is shared with
    /// the parent and must not change.
    Pipe(pipe::Sender),
    /// A file or a device that accepts writes without waiting.
    Direct(File),
    /// Anything else: writes block on a separate thread.
    Thread(Box<dyn AsyncWrite + Unpin>),
    /// The reader has closed its end.
    Gone,
}

impl Sink {
    fn of(fd: BorrowedFd<'_>, on_thread: impl FnOnce() -> Box<dyn AsyncWrite + Unpin>) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        match kind {
            FileType::Fifo => {
                // Opening fails with ENXIO for a pipe without a reader and with EACCES for another user's. The thread
                // handles both.
                match pipe::OpenOptions::new().open_sender(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
                    Ok(own) => Ok(Self::Pipe(own)),
                    Err(_) => Ok(Self::Thread(on_thread())),
                }
            }
            FileType::RegularFile => Ok(Self::Direct(File::from(fd.try_clone_to_owned()?))),
            FileType::CharacterDevice if !fd.is_terminal() => {
                Ok(Self::Direct(File::from(fd.try_clone_to_owned()?)))
            }
            _ => Ok(Self::Thread(on_thread())),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Pipe(pipe) => Some(pipe.as_fd()),
            Self::Direct(file) => Some(file.as_fd()),
            Self::Thread(_) | Self::Gone => None,
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = match self {
            Self::Pipe(pipe) => pipe.write_all(bytes).await,
            Self::Direct(file) => file.write_all(bytes),
            Self::Thread(slow) => match slow.write_all(bytes).await {
                Ok(()) => slow.flush().await,
                Err(error) => Err(error),
            },
            Self::Gone => Ok(()),
        };
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                *self = Self::Gone;
                Ok(())
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::*;

    fn no_thread() -> Box<dyn AsyncWrite + Unpin> {
        panic!("this one needs no thread")
    }

    #[tokio::test]
    async fn a_reader_that_sleeps_holds_the_writer_and_nothing_else() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut sink = Sink::of(writer.as_fd(), no_thread).unwrap();
        let data: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut writing = Box::pin(sink.write(&data));
        // A timer still fires while the pipe is full.
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut writing).await.is_err());
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; 1_000_000];
            reader.read_exact(&mut all).unwrap();
            all
        });
        writing.await.unwrap();
        assert_eq!(reading.join().unwrap(), data);
        assert!(
            !rustix::fs::fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK),
            "the runner's end is as it was"
        );
    }

    #[tokio::test]
    async fn when_the_reader_is_gone_the_rest_is_swallowed() {
        let (reader, writer) = io::pipe().unwrap();
        let mut sink = Sink::of(writer.as_fd(), no_thread).unwrap();
        sink.write(b"one").await.unwrap();
        drop(reader);
        for _ in 0..3 {
            sink.write(&vec![b'x'; 100_000]).await.unwrap();
        }
        assert!(matches!(sink, Sink::Gone));
    }

    #[tokio::test]
    async fn a_file_is_written_where_it_stands() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before ").unwrap();
        let mut sink = Sink::of(file.as_fd(), no_thread).unwrap();
        sink.write(b"after").await.unwrap();
        let mut all = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut all).unwrap();
        assert_eq!(all, "before after");
    }

    #[tokio::test]
    async fn a_socket_is_written_on_a_thread() {
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let slow = writer.try_clone().unwrap();
        let mut sink = Sink::of(writer.as_fd(), || {
            slow.set_nonblocking(true).unwrap();
            Box::new(tokio::net::UnixStream::from_std(slow).unwrap())
        })
        .unwrap();
        assert!(matches!(sink, Sink::Thread(_)));
        sink.write(b"hello").await.unwrap();
        let mut all = [0; 5];
        reader.read_exact(&mut all).unwrap();
        assert_eq!(&all, b"hello");
    }
}
