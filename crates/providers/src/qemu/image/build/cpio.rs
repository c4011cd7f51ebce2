//! The archive that a kernel unpacks as its first file system: cpio, format "newc".

use std::io::{self, Write as _};

use cpio::newc::{Builder, ModeFileType, trailer};

/// An archive that is being written. The same entries make the same bytes.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A directory; the ones above it come first.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(
            Builder::new(path).mode(0o755).nlink(2).set_mode_file_type(ModeFileType::Directory),
            path,
            &[],
        )
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(Builder::new(path).mode(mode).set_mode_file_type(ModeFileType::Regular), path, content)
    }

    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        trailer(self.bytes)
    }

    /// Paths are relative: `lib/modules`. Owned by root, from 1970.
    fn entry(&mut self, builder: Builder, path: &str, content: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, path.to_owned());
        let size = u32::try_from(content.len()).map_err(too_large)?;
        self.entries += 1;
        let mut writer = builder.ino(self.entries).write(&mut self.bytes, size);
        writer.write_all(content)?;
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use greenroom_testkit::skipped::skipped;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
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
