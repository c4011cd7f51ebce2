//! The machine's console on disk: bounded, whatever the guest writes.

use std::cell::RefCell;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::rc::Rc;

use fs_err as fs;
use greenroom_core::text::clean_line;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::console::TAIL;
use crate::instance_dir::InstanceDir;
use crate::supervisor::note;

/// Size in bytes at which the file is cut down to its end.
const MOST: u64 = 1 << 20;

/// The beginning of a Linux kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing: ";

/// The file `console.log`, which the supervisor's own lines go to as well.
#[derive(Debug, Clone)]
pub(super) struct Console(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    file: fs::File,
    /// The beginning of the line that is being written.
    line: Vec<u8>,
    panic: Option<String>,
}

impl Console {
    pub(super) fn open(dir: &InstanceDir) -> io::Result<Self> {
        let file =
            fs::OpenOptions::new().read(true).append(true).create(true).open(dir.file("console.log"))?;
        Ok(Self(Rc::new(RefCell::new(Inner { file, line: Vec::new(), panic: None }))))
    }

    /// Why the guest's kernel panicked, if it did.
    pub(super) fn panic(&self) -> Option<String> {
        self.0.borrow().panic.clone()
    }

    /// Writes all input until it ends. Runs as a task of its own.
    pub(super) async fn pump(self, mut from: impl AsyncRead + Unpin) {
        let mut bytes = vec![0; 8 * 1024];
        loop {
            match from.read(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    if let Err(error) = self.0.borrow_mut().write(&bytes[..read]) {
                        // A full disk does not stop the guest: its output is lost until there is space again.
                        note(&format!("cannot write to the console: {error}"));
                    }
                }
            }
        }
    }
}

impl Inner {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.notice(bytes);
        if self.file.metadata()?.len() > MOST {
            self.shorten()?;
        }
        self.file.write_all(bytes)
    }

    fn notice(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                let line = String::from_utf8_lossy(&self.line);
                if let Some((_, why)) = line.split_once(PANIC) {
                    self.panic = Some(clean_line(why.as_bytes(), 120));
                }
                self.line.clear();
            } else if self.line.len() < 512 {
                self.line.push(*byte);
            }
        }
    }

    fn shorten(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        self.file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut end = Vec::new();
        self.file.read_to_end(&mut end)?;
        self.file.set_len(0)?;
        self.file.write_all(&end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_talkative_guest_fills_no_disk_and_its_last_words_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path());
        let console = Console::open(&dir).unwrap();
        let mut output = b"noise that goes on and on\n".repeat(100_000);
        output.extend(b"[    1.2] Kernel panic - not syncing: sysrq triggered \x1b[0mcrash\r\nthe end\n");
        console.clone().pump(&output[..]).await;
        let kept = fs::read(dir.file("console.log")).unwrap();
        assert!(kept.len() as u64 <= MOST + 8 * 1024, "{}", kept.len());
        assert!(kept.ends_with(b"the end\n"));
        assert_eq!(console.panic().unwrap(), "sysrq triggered crash");
    }
}
