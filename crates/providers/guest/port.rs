//! The line to the host: a virtio port, read line by line.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::naming;
use crate::protocol::{Answer, LONGEST_LINE};
use crate::sys;

const PORTS: &str = "/sys/class/virtio-ports";
const NAME: &str = "greenroom.0";

/// A port that has not appeared after so long will not.
const APPEARS_WITHIN: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// While nobody holds the other end, reading returns at once.
const HOST_AWAY: Duration = Duration::from_millis(100);

pub(crate) struct Port {
    file: File,
    lines: Lines,
}

impl Port {
    /// Waits for the port and opens it.
    pub(crate) fn open() -> io::Result<Self> {
        let deadline = Instant::now() + APPEARS_WITHIN;
        let path = loop {
            if let Some(path) = find()? {
                break path;
            }
            if Instant::now() >= deadline {
                let what = format!("the virtual machine has no virtio port `{NAME}`");
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
            sleep(LOOK);
        };
        let file = File::options().read(true).write(true).open(&path).map_err(naming(path.display()))?;
        Ok(Self { file, lines: Lines::default() })
    }

    pub(crate) fn say(&mut self, answer: &Answer) -> io::Result<()> {
        let mut line = answer.to_string();
        let longest = line.floor_char_boundary(LONGEST_LINE - 1);
        line.truncate(longest);
        line.push('\n');
        self.file.write_all(line.as_bytes())
    }

    /// The next line without its newline, or what was wrong with it.
    pub(crate) fn hear(&mut self) -> io::Result<Result<String, String>> {
        loop {
            if let Some(line) = self.lines.next() {
                return Ok(line);
            }
            sys::wait_readable(&self.file)?;
            let mut bytes = [0; 4096];
            match self.file.read(&mut bytes)? {
                0 => sleep(HOST_AWAY),
                count => self.lines.push(&bytes[..count]),
            }
        }
    }
}

/// The device of the port; without udev there are no names in /dev.
fn find() -> io::Result<Option<PathBuf>> {
    let Ok(ports) = fs::read_dir(PORTS) else { return Ok(None) };
    for port in ports {
        let port = port?;
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        let device = Path::new("/dev").join(port.file_name());
        if name.trim_end() == NAME && device.exists() {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Cuts a stream into lines; of one that is too long only the fact is kept.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    is_too_long: bool,
    ready: std::collections::VecDeque<Result<String, String>>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => self.end(),
                _ if self.bytes.len() + 1 >= LONGEST_LINE => self.is_too_long = true,
                byte => self.bytes.push(*byte),
            }
        }
    }

    fn end(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let line = match (std::mem::take(&mut self.is_too_long), String::from_utf8(bytes)) {
            (true, _) => Err(format!("a line is longer than {LONGEST_LINE} bytes")),
            (false, Ok(line)) => Ok(line),
            (false, Err(_)) => Err("a line is not valid UTF-8".to_owned()),
        };
        self.ready.push_back(line);
    }

    fn next(&mut self) -> Option<Result<String, String>> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_were_sent() {
        let mut lines = Lines::default();
        lines.push(b"PI");
        assert!(lines.next().is_none());
        lines.push(b"NG 1\nGO\nTI");
        assert_eq!(lines.next(), Some(Ok("PING 1".to_owned())));
        assert_eq!(lines.next(), Some(Ok("GO".to_owned())));
        assert!(lines.next().is_none());
    }

    #[test]
    fn the_line_after_a_bad_one_is_read() {
        let mut lines = Lines::default();
        lines.push(&vec![b'a'; LONGEST_LINE]);
        lines.push(b"\n\xff\nGO\n");
        assert!(lines.next().unwrap().unwrap_err().contains("longer"));
        assert!(lines.next().unwrap().unwrap_err().contains("UTF-8"));
        assert_eq!(lines.next(), Some(Ok("GO".to_owned())));
        lines.push(&vec![b'a'; LONGEST_LINE - 1]);
        lines.push(b"\n");
        assert!(lines.next().unwrap().is_ok(), "as long as allowed");
    }
}
