//! The host's orders, line by line, and our answers.

use std::fmt;
use std::time::Duration;

use crate::base64;

/// The protocol's version, in our first line.
pub(crate) const VERSION: u32 = 1;

/// Longest line either way, in bytes, newline included.
pub(crate) const LONGEST_LINE: usize = 16 * 1024;

/// One line from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Ping(String),
    /// Get ready for a snapshot.
    WarmUp,
    /// Mount the disk with images of containers.
    ImageStore,
    /// A part of the script to run.
    Script(Vec<u8>),
    /// Run the script, as root, and write everything to the disk.
    Run,
    /// Since 1970.
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

impl Order {
    /// Reads a line without its newline; the error says what is wrong with it.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let bad = |what: &str| format!("{word}: {what}");
        match word {
            "PING" => Ok(Self::Ping(rest.to_owned())),
            "WARM-UP" => Ok(Self::WarmUp),
            "IMAGE-STORE" => Ok(Self::ImageStore),
            "SCRIPT" => base64::decode(rest).map(Self::Script).ok_or_else(|| bad("not base64")),
            "RUN" => Ok(Self::Run),
            "TIME" => {
                let nanoseconds = rest.parse().map_err(|_| bad("not a number of nanoseconds"))?;
                Ok(Self::Time(Duration::from_nanos(nanoseconds)))
            }
            "SEED" => {
                let bytes = base64::decode(rest).ok_or_else(|| bad("not base64"))?;
                let seed = <[u8; 64]>::try_from(bytes).map_err(|_| bad("not 64 bytes"))?;
                Ok(Self::Seed(Box::new(seed)))
            }
            "HOSTNAME" if is_hostname(rest) => Ok(Self::Hostname(rest.to_owned())),
            "HOSTNAME" => Err(bad("not a host name")),
            "MACHINE-ID" if is_machine_id(rest) => Ok(Self::MachineId(rest.to_owned())),
            "MACHINE-ID" => Err(bad("not 32 lower-case hex digits")),
            "HOST-KEY" => base64::decode(rest).map(Self::HostKey).ok_or_else(|| bad("not base64")),
            "AUTHORIZED-KEY" if rest.is_empty() => Err(bad("empty")),
            "AUTHORIZED-KEY" => Ok(Self::AuthorizedKey(rest.to_owned())),
            "PROXY" if is_proxy(rest) => Ok(Self::Proxy(rest.to_owned())),
            "PROXY" => Err(bad("not http://HOST:PORT")),
            "GO" => Ok(Self::Go),
            "POWER-OFF" => Ok(Self::PowerOff),
            _ => Err(format!("unknown command `{}`", word.escape_debug())),
        }
    }
}

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

/// Letters, digits and hyphens, as RFC 1123 has it for one label.
fn is_hostname(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len()) && !text.starts_with('-') && text.bytes().all(plain)
}

fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// It is written into shell and git files, so only what needs no quoting passes.
fn is_proxy(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'-');
    text.strip_prefix("http://").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        assert_eq!(Order::parse("PING 7"), Ok(Order::Ping("7".to_owned())));
        assert_eq!(Order::parse("TIME 1500000000"), Ok(Order::Time(Duration::from_millis(1500))));
        let seed = format!("SEED {}AAA=", "A".repeat(84));
        assert!(Order::parse(&seed).is_err(), "65 bytes");
        let seed = format!("SEED {}==", "A".repeat(86));
        assert_eq!(Order::parse(&seed), Ok(Order::Seed(Box::new([0; 64]))));
        assert_eq!(Order::parse("HOSTNAME linux-7f3a"), Ok(Order::Hostname("linux-7f3a".to_owned())));
        assert_eq!(Order::parse("HOST-KEY Zm9v"), Ok(Order::HostKey(b"foo".to_vec())));
        let key = "ssh-ed25519 AAAA a comment";
        assert_eq!(Order::parse(&format!("AUTHORIZED-KEY {key}")), Ok(Order::AuthorizedKey(key.to_owned())));
        assert_eq!(Order::parse("IMAGE-STORE"), Ok(Order::ImageStore));
        assert_eq!(Order::parse("SCRIPT Zm9v"), Ok(Order::Script(b"foo".to_vec())));
        assert_eq!(Order::parse("RUN"), Ok(Order::Run));
        assert_eq!(Order::parse("GO"), Ok(Order::Go));
    }

    #[test]
    fn a_bad_order_says_what_is_wrong_with_it() {
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
            assert_eq!(Order::parse(line), Err(what.to_owned()));
        }
    }

    #[test]
    fn an_answer_is_one_line() {
        let hello = Answer::Hello { flavour: "light".to_owned(), ssh: "openssh".to_owned() };
        assert_eq!(hello.to_string(), "HELLO 1 light openssh");
        assert_eq!(Answer::Failed("no\nroom \r left".to_owned()).to_string(), "FAILED no room left");
    }
}
