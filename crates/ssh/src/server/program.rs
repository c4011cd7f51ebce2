//! One program on the instance, with its three streams on a channel. The server of pods has this file, too.
//!
//! The SSH server must never wait for a program: the same connection carries the window for the program's output and the second
//! channel that stops it. So a [`Spool`] accepts all input, up to 4 MiB in memory, the rest in an unnamed file. The
//! server of pods keeps all input in memory: an image may have no place for files.

use std::collections::VecDeque;
use std::io;
use std::mem::discriminant;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fs_err as fs;
use greenroom_system::random_hex;
use russh::server::{Handle, Msg};
use russh::{ChannelId, ChannelWriteHalf, Sig};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{Notify, oneshot};

use super::peer::Machine;

/// Size of one read from a program, in bytes: a pipe's page run, and about the peer's packet.
const READ_SIZE: usize = 32 * 1024;

/// The channel of a running program, as the connection sees it. Dropped when the channel closes: the program loses
/// its streams and lives on, as under any SSH server.
#[derive(Debug)]
pub(super) struct RunningProgram {
    input: Arc<Spool>,
    /// `None` once the program has exited: its pid may be another process's.
    leader: Arc<Mutex<Option<Pid>>>,
    closed: oneshot::Sender<()>,
    /// Writes a line of the server's log.
    note: fn(&str),
}

/// The way from a program back to the peer.
pub(super) struct Back {
    pub(super) channel: ChannelId,
    pub(super) writer: ChannelWriteHalf<Msg>,
    pub(super) handle: Handle,
}

impl RunningProgram {
    /// Starts a command, or a shell that reads commands from its input.
    pub(super) fn start<M: Machine>(machine: &M, command: Option<&[u8]>, back: Back) -> io::Result<Self> {
        let mut shell = machine.shell();
        if let Some(command) = command {
            shell.arg("-c").arg(std::ffi::OsStr::from_bytes(command));
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = shell.spawn()?;
        machine.started(child.id());
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let input = Arc::new(Spool::new(machine.spool()));
        let leader = Arc::new(Mutex::new(pid));
        let (closed, gone) = oneshot::channel();
        tokio::spawn(attend::<M>(child, Arc::clone(&input), Arc::clone(&leader), back, gone));
        Ok(Self { input, leader, closed, note: M::note })
    }

    /// True if the program has exited and its channel was closed on this side.
    pub(super) fn has_ended(&self) -> bool {
        self.closed.is_closed()
    }

    /// Queues input for the program. If the disk is full, the program gets the part that fitted, then the end.
    pub(super) fn input(&self, bytes: &[u8]) {
        if let Err(error) = self.input.push(bytes) {
            (self.note)(&format!("cannot write the input: {error}"));
            self.input.finish();
        }
    }

    pub(super) fn end_of_input(&self) {
        self.input.finish();
    }

    /// Signals the program's process group, as OpenSSH does.
    pub(super) fn signal(&self, signal: &Sig) {
        let leader = *self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(leader), Some(signal)) = (leader, number(signal)) else { return };
        if kill_process_group(leader, signal).is_err() {
            // The program has not created its session yet, or it now runs as another user, which is refused again.
            let _ = kill_process(leader, signal);
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.input.finish();
    }
}

async fn attend<M: Machine>(
    mut child: Child,
    input: Arc<Spool>,
    leader: Arc<Mutex<Option<Pid>>>,
    back: Back,
    gone: oneshot::Receiver<()>,
) {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let feeding = tokio::spawn(feed(stdin, Arc::clone(&input)));
    let Back { channel, writer, handle } = &back;
    let whole = async {
        let status = async {
            let status = child.wait().await;
            *leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
            // Immediately, as OpenSSH does: a background program may hold the streams for long.
            report::<M>(handle, *channel, status).await;
        };
        tokio::join!(status, pump(stdout, writer, None), pump(stderr, writer, Some(1)));
        drop(writer.eof().await);
        drop(writer.close().await);
    };
    tokio::select! {
        () = whole => {}
        // Closed by the peer, or the connection is gone.
        _ = gone => {}
    }
    feeding.abort();
    input.discard();
    // The program may outlive its channel; this task waits for it.
    drop(child.wait().await);
    *leader.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

async fn feed(stdin: Option<ChildStdin>, input: Arc<Spool>) {
    let Some(mut stdin) = stdin else { return };
    while let Ok(Some(bytes)) = input.next().await {
        if stdin.write_all(&bytes).await.is_err() {
            // The program closed its input, which is not an error.
            break;
        }
    }
    input.discard();
}

/// Reads no faster than the peer's window allows, so a peer that does not read holds the program back.
async fn pump(from: Option<impl AsyncRead + Unpin>, to: &ChannelWriteHalf<Msg>, extended: Option<u32>) {
    let Some(mut from) = from else { return };
    loop {
        let mut bytes = Vec::with_capacity(READ_SIZE);
        match from.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let sent = match extended {
            None => to.data_bytes(bytes).await,
            Some(code) => to.extended_data_bytes(code, bytes).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn report<M: Machine>(handle: &Handle, channel: ChannelId, status: io::Result<ExitStatus>) {
    // An error means that the connection is gone, so there is no peer to report to.
    let _ = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => handle.exit_status_request(channel, code.unsigned_abs()).await,
            (None, Some(signal)) => {
                let message = format!("killed by signal {signal}");
                let name = name(signal);
                let core = status.core_dumped();
                handle.exit_signal_request(channel, name, core, message, String::new()).await
            }
            (None, None) => Ok(()),
        },
        Err(error) => {
            M::note(&format!("cannot get a program's exit status: {error}"));
            Ok(())
        }
    };
}

/// Signals with a name in the protocol.
const SIGNALS: &[(Signal, Sig)] = &[
    (Signal::ABORT, Sig::ABRT),
    (Signal::ALARM, Sig::ALRM),
    (Signal::FPE, Sig::FPE),
    (Signal::HUP, Sig::HUP),
    (Signal::ILL, Sig::ILL),
    (Signal::INT, Sig::INT),
    (Signal::KILL, Sig::KILL),
    (Signal::PIPE, Sig::PIPE),
    (Signal::QUIT, Sig::QUIT),
    (Signal::SEGV, Sig::SEGV),
    (Signal::TERM, Sig::TERM),
    (Signal::USR1, Sig::USR1),
];

fn name(number: i32) -> Sig {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(|| Sig::Custom(format!("{number}@linux")), |(_, name)| name.clone())
}

fn number(name: &Sig) -> Option<Signal> {
    match name {
        Sig::Custom(name) if name == "USR2" => Some(Signal::USR2),
        Sig::Custom(_) => None,
        known => {
            let same = |name: &Sig| discriminant(name) == discriminant(known);
            SIGNALS.iter().find(|(_, name)| same(name)).map(|(signal, _)| *signal)
        }
    }
}

/// The size up to which a spool is kept in memory before a file is used, in bytes.
const IN_MEMORY: usize = 4 * 1024 * 1024;

/// Size of one read from the file, in bytes.
const FILE_READ_SIZE: usize = 64 * 1024;

/// First in, first out; one writer, one reader.
#[derive(Debug)]
pub(super) struct Spool {
    /// The folder in which the file is created; without one, everything stays in memory.
    folder: Option<PathBuf>,
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    memory: VecDeque<Vec<u8>>,
    held: usize,
    /// Everything in it comes after everything in memory.
    file: Option<std::fs::File>,
    written: u64,
    read: u64,
    finished: bool,
    discarding: bool,
}

enum SpoolNext {
    Bytes(Vec<u8>),
    End,
    Wait,
}

impl Spool {
    pub(super) fn new(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_owned), queue: Mutex::default(), more: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, bytes: &[u8]) -> io::Result<()> {
        let mut queue = self.queue();
        if queue.discarding || queue.finished {
            return Ok(());
        }
        let fits = queue.read == queue.written && queue.held + bytes.len() <= IN_MEMORY;
        if let Some(folder) = self.folder.as_deref().filter(|_| !fits) {
            let file = match queue.file.take() {
                Some(file) => file,
                None => nameless(folder)?,
            };
            file.write_all_at(bytes, queue.written)?;
            queue.file = Some(file);
            queue.written += bytes.len() as u64;
        } else {
            queue.held += bytes.len();
            queue.memory.push_back(bytes.to_vec());
        }
        drop(queue);
        self.more.notify_one();
        Ok(())
    }

    /// Marks the end of the input.
    pub(super) fn finish(&self) {
        self.queue().finished = true;
        self.more.notify_one();
    }

    /// Drops all queued and further input: the program no longer reads.
    pub(super) fn discard(&self) {
        *self.queue() = Queue { discarding: true, ..Queue::default() };
    }

    /// The next piece; `None` at the end.
    pub(super) async fn next(&self) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.queue().pop()? {
                SpoolNext::Bytes(bytes) => return Ok(Some(bytes)),
                SpoolNext::End => return Ok(None),
                SpoolNext::Wait => {}
            }
            self.more.notified().await;
        }
    }
}

impl Queue {
    fn pop(&mut self) -> io::Result<SpoolNext> {
        if let Some(bytes) = self.memory.pop_front() {
            self.held -= bytes.len();
            return Ok(SpoolNext::Bytes(bytes));
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.read < self.written) {
            let left = usize::try_from(self.written - self.read).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(FILE_READ_SIZE)];
            file.read_exact_at(&mut bytes, self.read)?;
            self.read += bytes.len() as u64;
            if self.read == self.written {
                // The whole file has been read: its disk space is freed.
                file.set_len(0)?;
                (self.read, self.written) = (0, 0);
            }
            return Ok(SpoolNext::Bytes(bytes));
        }
        Ok(if self.finished { SpoolNext::End } else { SpoolNext::Wait })
    }
}

fn nameless(folder: &Path) -> io::Result<std::fs::File> {
    let path = folder.join(format!(".input-{}", random_hex(8)?));
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file.into_file())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_signal_has_one_name_both_ways() {
        for (signal, sig) in SIGNALS {
            assert_eq!(discriminant(&name(signal.as_raw())), discriminant(sig));
            assert_eq!(number(sig), Some(*signal));
        }
        assert!(matches!(name(31), Sig::Custom(text) if text == "31@linux"));
        assert_eq!(number(&Sig::Custom("NONSENSE".to_owned())), None);
    }

    fn drained(spool: &Spool, sink: &mut Vec<u8>, pieces: usize) {
        for _ in 0..pieces {
            if let SpoolNext::Bytes(bytes) = spool.queue().pop().unwrap() {
                sink.extend(bytes);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_goes_in_comes_out_in_order(steps in prop::collection::vec((0_usize..3_000_000, 0_usize..4), 1..12)) {
            let folder = tempfile::tempdir().unwrap();
            let spool = Spool::new(Some(folder.path()));
            let mut sent = Vec::new();
            let mut got = Vec::new();
            for (step, (length, pieces)) in steps.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|at| u8::try_from((at * 31 + step) % 251).unwrap()).collect();
                spool.push(&bytes).unwrap();
                sent.extend(bytes);
                drained(&spool, &mut got, pieces);
                prop_assert!(spool.queue().held <= IN_MEMORY);
            }
            spool.finish();
            while let SpoolNext::Bytes(bytes) = spool.queue().pop().unwrap() {
                got.extend(bytes);
            }
            prop_assert!(sent == got, "{} bytes in, {} out", sent.len(), got.len());
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[tokio::test]
    async fn a_waiting_reader_gets_what_comes_and_then_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::new(Some(folder.path()));
        let write = async {
            tokio::task::yield_now().await;
            spool.push(b"one").unwrap();
            tokio::task::yield_now().await;
            spool.finish();
        };
        let read = async { (spool.next().await.unwrap(), spool.next().await.unwrap()) };
        let ((), read) = tokio::join!(write, read);
        assert_eq!(read, (Some(b"one".to_vec()), None));
        spool.discard();
        spool.push(b"late").unwrap();
        assert!(spool.queue().memory.is_empty());
    }
}
