//! The line to the host: a virtio port, the commands that come over it, and the answers.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{naming, sys};

const PORTS: &str = "/sys/class/virtio-ports";
const PORT_NAME: &str = "greenroom.0";

/// A port that has not appeared after so long will not.
const APPEARS_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause between reads while the other end is closed: then a read returns immediately.
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
            if let Some(path) = find_port()? {
                break path;
            }
            if Instant::now() >= deadline {
                let what = format!("the virtual machine has no virtio port `{PORT_NAME}`");
                return Err(io::Error::new(io::ErrorKind::NotFound, what));
            }
            sleep(POLL_INTERVAL);
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

    /// The next line without its newline, or why it is unusable.
    pub(crate) fn hear(&mut self) -> io::Result<Result<String, CommandError>> {
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
fn find_port() -> io::Result<Option<PathBuf>> {
    let Ok(ports) = fs::read_dir(PORTS) else { return Ok(None) };
    for port in ports {
        let port = port?;
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        let device = Path::new("/dev").join(port.file_name());
        if name.trim_end() == PORT_NAME && device.exists() {
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
    ready: VecDeque<Result<String, CommandError>>,
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
            (true, _) => Err(CommandError::TooLong),
            (false, Ok(line)) => Ok(line),
            (false, Err(_)) => Err(CommandError::NotUtf8),
        };
        self.ready.push_back(line);
    }

    fn next(&mut self) -> Option<Result<String, CommandError>> {
        self.ready.pop_front()
    }
}

/// The protocol's version, part of the guest's first line.
pub(crate) const VERSION: u32 = 1;

/// Longest line either way, in bytes, newline included.
pub(crate) const LONGEST_LINE: usize = 16 * 1024;

/// One line from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostCommand {
    Ping(String),
    /// Get ready for a snapshot.
    WarmUp,
    /// Mount the disk with images of containers.
    ImageStore,
    /// A part of the script to run.
    Script(Vec<u8>),
    /// Run the script, as root, and write everything to the disk.
    Run,
    /// Set the clock, to a time since 1970.
    Time(Duration),
    Seed(Box<[u8; 64]>),
    Hostname(String),
    MachineId(String),
    /// An OpenSSH private key, PEM.
    HostKey(Vec<u8>),
    AuthorizedKey(String),
    /// A URL.
    Proxy(String),
    /// Take on the identity given so far and let people in.
    Go,
    PowerOff,
}

/// One line to the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Hello {
        flavour: String,
        ssh: String,
    },
    Pong(String),
    Warm,
    Stored,
    /// A line that the script wrote.
    Said(String),
    /// The script has ended.
    Ran,
    Ready,
    Failed(String),
}

impl HostCommand {
    /// Reads a line without its newline.
    pub(crate) fn parse(line: &str) -> Result<Self, CommandError> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let bad = |problem| CommandError::Argument { command: word.to_owned(), problem };
        match word {
            "PING" => Ok(Self::Ping(rest.to_owned())),
            "WARM-UP" => Ok(Self::WarmUp),
            "IMAGE-STORE" => Ok(Self::ImageStore),
            "SCRIPT" => decode_base64(rest).map(Self::Script).ok_or_else(|| bad("not base64")),
            "RUN" => Ok(Self::Run),
            "TIME" => {
                let nanoseconds = rest.parse().map_err(|_| bad("not a number of nanoseconds"))?;
                Ok(Self::Time(Duration::from_nanos(nanoseconds)))
            }
            "SEED" => {
                let bytes = decode_base64(rest).ok_or_else(|| bad("not base64"))?;
                let seed = <[u8; 64]>::try_from(bytes).map_err(|_| bad("not 64 bytes"))?;
                Ok(Self::Seed(Box::new(seed)))
            }
            "HOSTNAME" if is_hostname(rest) => Ok(Self::Hostname(rest.to_owned())),
            "HOSTNAME" => Err(bad("not a host name")),
            "MACHINE-ID" if is_machine_id(rest) => Ok(Self::MachineId(rest.to_owned())),
            "MACHINE-ID" => Err(bad("not 32 lower-case hex digits")),
            "HOST-KEY" => decode_base64(rest).map(Self::HostKey).ok_or_else(|| bad("not base64")),
            "AUTHORIZED-KEY" if rest.is_empty() => Err(bad("empty")),
            "AUTHORIZED-KEY" => Ok(Self::AuthorizedKey(rest.to_owned())),
            "PROXY" if is_proxy(rest) => Ok(Self::Proxy(rest.to_owned())),
            "PROXY" => Err(bad("not http://HOST:PORT")),
            "GO" => Ok(Self::Go),
            "POWER-OFF" => Ok(Self::PowerOff),
            _ => Err(CommandError::Unknown(word.to_owned())),
        }
    }
}

/// The reasons for which a line from the host is no command that the guest can carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// The line exceeds [`LONGEST_LINE`].
    TooLong,
    NotUtf8,
    Unknown(String),
    Argument {
        command: String,
        problem: &'static str,
    },
    /// The host has not sent this part of the identity before GO.
    GoWithout(&'static str),
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a line is longer than {LONGEST_LINE} bytes"),
            Self::NotUtf8 => f.write_str("a line is not valid UTF-8"),
            Self::Unknown(command) => write!(f, "unknown command `{}`", command.escape_debug()),
            Self::Argument { command, problem } => write!(f, "{command}: {problem}"),
            Self::GoWithout(part) => write!(f, "GO without {part}"),
        }
    }
}

impl Error for CommandError {}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { flavour, ssh } => write!(f, "HELLO {VERSION} {flavour} {ssh}"),
            Self::Pong(what) => write!(f, "PONG {what}"),
            Self::Warm => f.write_str("WARM"),
            Self::Stored => f.write_str("STORED"),
            Self::Said(line) => write!(f, "SAID {line}"),
            Self::Ran => f.write_str("RAN"),
            Self::Ready => f.write_str("READY"),
            Self::Failed(why) => {
                let line: Vec<&str> = why.split_whitespace().collect();
                write!(f, "FAILED {}", line.join(" "))
            }
        }
    }
}

/// True for letters, digits and hyphens, as in one label of RFC 1123.
fn is_hostname(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(plain)
}

fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// True for a URL that needs no quoting: it is written into shell and git files.
fn is_proxy(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-');
    text.strip_prefix("http://").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(plain))
}

/// The bytes that a text stands for; `None` if it is not padded base64.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | base64_value(*digit)?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn base64_value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
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
        assert_eq!(lines.next(), Some(Err(CommandError::TooLong)));
        assert_eq!(lines.next(), Some(Err(CommandError::NotUtf8)));
        assert_eq!(lines.next(), Some(Ok("GO".to_owned())));
        lines.push(&vec![b'a'; LONGEST_LINE - 1]);
        lines.push(b"\n");
        assert!(lines.next().unwrap().is_ok(), "as long as allowed");
    }

    #[test]
    fn commands_are_read_as_they_are_written() {
        assert_eq!(HostCommand::parse("PING 7"), Ok(HostCommand::Ping("7".to_owned())));
        assert_eq!(HostCommand::parse("TIME 1500000000"), Ok(HostCommand::Time(Duration::from_millis(1500))));
        let seed = format!("SEED {}AAA=", "A".repeat(84));
        assert!(HostCommand::parse(&seed).is_err(), "65 bytes");
        let seed = format!("SEED {}==", "A".repeat(86));
        assert_eq!(HostCommand::parse(&seed), Ok(HostCommand::Seed(Box::new([0; 64]))));
        assert_eq!(
            HostCommand::parse("HOSTNAME linux-7f3a"),
            Ok(HostCommand::Hostname("linux-7f3a".to_owned()))
        );
        assert_eq!(HostCommand::parse("HOST-KEY Zm9v"), Ok(HostCommand::HostKey(b"foo".to_vec())));
        let key = "ssh-ed25519 AAAA a comment";
        assert_eq!(
            HostCommand::parse(&format!("AUTHORIZED-KEY {key}")),
            Ok(HostCommand::AuthorizedKey(key.to_owned()))
        );
        assert_eq!(HostCommand::parse("IMAGE-STORE"), Ok(HostCommand::ImageStore));
        assert_eq!(HostCommand::parse("SCRIPT Zm9v"), Ok(HostCommand::Script(b"foo".to_vec())));
        assert_eq!(HostCommand::parse("RUN"), Ok(HostCommand::Run));
        assert_eq!(HostCommand::parse("GO"), Ok(HostCommand::Go));
    }

    #[test]
    fn a_bad_command_says_what_is_wrong_with_it() {
        for (line, what) in [
            ("", "unknown command ``"),
            ("JUMP\t1", "unknown command `JUMP\\t1`"),
            ("TIME soon", "TIME: not a number of nanoseconds"),
            ("SEED Zm9v", "SEED: not 64 bytes"),
            ("HOSTNAME a b", "HOSTNAME: not a host name"),
            ("HOSTNAME -a", "HOSTNAME: not a host name"),
            ("MACHINE-ID 12", "MACHINE-ID: not 32 lower-case hex digits"),
            ("AUTHORIZED-KEY", "AUTHORIZED-KEY: empty"),
            ("PROXY http://a;reboot", "PROXY: not http://HOST:PORT"),
            ("SCRIPT ;", "SCRIPT: not base64"),
        ] {
            assert_eq!(HostCommand::parse(line).unwrap_err().to_string(), what);
        }
    }

    #[test]
    fn an_answer_is_one_line() {
        let hello = Answer::Hello { flavour: "light".to_owned(), ssh: "openssh".to_owned() };
        assert_eq!(hello.to_string(), "HELLO 1 light openssh");
        assert_eq!(Answer::Failed("no\nroom \r left".to_owned()).to_string(), "FAILED no room left");
    }

    #[test]
    fn every_length_of_tail_is_read() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("+/+/AA==", b"\xfb\xff\xbf\0"),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Zg", "Zg=", "Z===", "====", "Zm9-", "Zm 9", "Zm9v\n"] {
            assert_eq!(decode_base64(text), None, "{text:?}");
        }
    }
}
