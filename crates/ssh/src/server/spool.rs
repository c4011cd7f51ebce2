//! Standard input on its way to a slow program.
//!
//! The SSH server must never wait for a program: the same connection carries the window for its output and the second
//! channel that stops it. So the spool accepts all input, up to 4 MiB in memory, the rest in an unnamed file. The
//! server of pods has this file, too, and keeps all input in memory: an image may have no place for files.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs_err as fs;
use tokio::sync::Notify;

/// Kept in memory before the file is used, in bytes.
const IN_MEMORY: usize = 4 * 1024 * 1024;

/// Size of one read from the file, in bytes.
const CHUNK: usize = 64 * 1024;

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

enum Next {
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
                Next::Bytes(bytes) => return Ok(Some(bytes)),
                Next::End => return Ok(None),
                Next::Wait => {}
            }
            self.more.notified().await;
        }
    }
}

impl Queue {
    fn pop(&mut self) -> io::Result<Next> {
        if let Some(bytes) = self.memory.pop_front() {
            self.held -= bytes.len();
            return Ok(Next::Bytes(bytes));
        }
        if let Some(file) = self.file.as_ref().filter(|_| self.read < self.written) {
            let left = usize::try_from(self.written - self.read).unwrap_or(usize::MAX);
            let mut bytes = vec![0; left.min(CHUNK)];
            file.read_exact_at(&mut bytes, self.read)?;
            self.read += bytes.len() as u64;
            if self.read == self.written {
                // The whole file has been read: its disk space is freed.
                file.set_len(0)?;
                (self.read, self.written) = (0, 0);
            }
            return Ok(Next::Bytes(bytes));
        }
        Ok(if self.finished { Next::End } else { Next::Wait })
    }
}

fn nameless(folder: &Path) -> io::Result<std::fs::File> {
    let mut nonce = [0_u8; 8];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
    let path = folder.join(format!(".input-{:016x}", u64::from_le_bytes(nonce)));
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file.into_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drained(spool: &Spool, sink: &mut Vec<u8>, pieces: usize) {
        for _ in 0..pieces {
            if let Next::Bytes(bytes) = spool.queue().pop().unwrap() {
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
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (step, (length, pieces)) in steps.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|at| u8::try_from((at * 31 + step) % 251).unwrap()).collect();
                spool.push(&bytes).unwrap();
                sent.extend(bytes);
                drained(&spool, &mut got, pieces);
                prop_assert!(spool.queue().held <= IN_MEMORY);
            }
            spool.finish();
            while let Next::Bytes(bytes) = spool.queue().pop().unwrap() {
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
