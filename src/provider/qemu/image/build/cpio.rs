//! Writes the archive that a kernel unpacks as its first file system: cpio, format "newc".

use std::fmt::Write as _;
use std::io::{self, Write};

const FILE: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const LAST: &str = "TRAILER!!!";

/// An archive that is being written. The same entries make the same bytes.
#[derive(Debug)]
pub(super) struct Archive<W> {
    to: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, entries: 0 }
    }

    /// A directory; the ones above it come first.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, FOLDER | 0o755, &[])
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | mode, content)
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry(LAST, 0, &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    /// Paths are relative: `lib/modules`. Owned by root, from 1970.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, path.to_owned());
        self.entries += 1;
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        let links = if mode & FOLDER == FOLDER { 2 } else { 1 };
        // Number, mode, user, group, links, time, size, four device numbers, length of the name, checksum.
        let fields = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            write!(header, "{field:08X}").map_err(io::Error::other)?;
        }
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.to.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::skipped::skipped;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.folder("lib").unwrap();
        archive.file("lib/a", 0o644, b"hello").unwrap();
        archive.file("init", 0o755, b"").unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn every_part_begins_at_a_multiple_of_four() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 4, "three entries and the last");
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        assert_eq!(bytes, sample(), "nothing in it depends on the day");
    }

    #[test]
    fn cpio_itself_reads_it() {
        let mut cpio = Command::new("cpio");
        cpio.args(["--list", "--verbose", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = cpio.spawn() else { return skipped("cpio is missing") };
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let output = child.wait_with_output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[0].starts_with("drwxr-xr-x   2 root"), "{listed}");
        assert!(lines[1].starts_with("-rw-r--r--") && lines[1].ends_with(" lib/a"), "{listed}");
        assert!(lines[2].starts_with("-rwxr-xr-x"), "{listed}");
    }
}
