//! The protocol of the guest's agent: lines over a virtual serial port.
//!
//! Once the first job has started, the guest is hostile: its lines are not trusted, and are cleaned before they are
//! shown.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding as _};
use greenroom_core::text::clean_line;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::channel::Lines;

/// The longest line of the protocol, in bytes.
const LONGEST: usize = 16 * 1024;

/// The number of bytes of a script that come in one line.
const PART: usize = 8 * 1024;

/// The limits for a script's output: lines that are kept, and bytes of them.
const MOST_LINES: usize = 10_000;
const MOST_OUTPUT: usize = 1 << 20;

/// The reason a guest runs no script.
const OLD_IMAGE: &str = "the image of virtual machines is too old: build it again";

/// Fresh randomness for each guest, in bytes.
const SEED: usize = 64;

/// The identity of a guest, which distinguishes it from other clones of the same template.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) hostname: String,
    /// Private, OpenSSH PEM.
    pub(super) host_key: String,
    pub(super) authorized_key: String,
    /// The URL of the operator's proxy, as the guest reaches it.
    pub(super) proxy: Option<String>,
}

/// The guest's agent.
#[derive(Debug)]
pub(super) struct Agent {
    lines: Lines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Agent {
    pub(super) fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { lines: Lines::new(reader, LONGEST), writer }
    }

    /// Waits until the guest is up.
    pub(super) async fn hello(&mut self) -> io::Result<()> {
        let line = self.lines.next().await?;
        if line.starts_with("HELLO 1 ") {
            return Ok(());
        }
        Err(unexpected("HELLO 1", &line))
    }

    /// Waits until a resumed guest answers.
    pub(super) async fn ping(&mut self) -> io::Result<()> {
        self.send("PING 1", "PONG 1").await
    }

    /// Has the guest read the files that every job reads, and become idle: then a snapshot may be taken.
    pub(super) async fn warm_up(&mut self) -> io::Result<()> {
        self.send("WARM-UP", "WARM").await
    }

    /// Has the guest mount its image store; `Some`: why it could not.
    pub(super) async fn image_store(&mut self) -> io::Result<Option<String>> {
        self.writer.write_all(b"IMAGE-STORE\n").await?;
        let line = self.lines.next().await?;
        match line.strip_prefix("FAILED ") {
            Some(why) => Ok(Some(clean_line(why.as_bytes(), 200))),
            None if line == "STORED" => Ok(None),
            None => Err(unexpected("STORED", &line)),
        }
    }

    /// Has the guest run a script as root, and write everything to its disk; returns the lines that it wrote, except
    /// empty ones.
    pub(super) async fn run(&mut self, script: &str, proxy: Option<&str>) -> io::Result<Vec<String>> {
        let proxy = proxy.map(|proxy| format!("PROXY {proxy}"));
        let parts =
            script.as_bytes().chunks(PART).map(|part| format!("SCRIPT {}", Base64::encode_string(part)));
        for command in proxy.into_iter().chain(parts).chain(["RUN".to_owned()]) {
            self.writer.write_all(format!("{command}\n").as_bytes()).await?;
        }
        let mut written = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.lines.next().await?;
            match line.strip_prefix("SAID ") {
                // Empty ones are signs of life.
                Some(said) if !said.is_empty() => {
                    bytes += said.len();
                    if written.len() < MOST_LINES && bytes <= MOST_OUTPUT {
                        written.push(said.to_owned());
                    }
                }
                Some(_) => {}
                None if line == "RAN" => return Ok(written),
                None if line.starts_with("FAILED unknown command") => {
                    return Err(io::Error::other(OLD_IMAGE));
                }
                None => return Err(unexpected("RAN", &line)),
            }
        }
    }

    /// Gives the guest time, randomness and identity, and waits until its sshd listens.
    pub(super) async fn become_itself(&mut self, identity: &Identity) -> io::Result<()> {
        let mut seed = [0; SEED];
        let mut machine = [0; 16];
        for random in [&mut seed[..], &mut machine[..]] {
            getrandom(random, GetRandomFlags::empty())?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut commands = vec![
            format!("TIME {}", now.as_nanos()),
            format!("SEED {}", Base64::encode_string(&seed)),
            format!("HOSTNAME {}", identity.hostname),
            format!("MACHINE-ID {:032x}", u128::from_be_bytes(machine)),
            format!("HOST-KEY {}", Base64::encode_string(identity.host_key.as_bytes())),
            format!("AUTHORIZED-KEY {}", identity.authorized_key.trim()),
        ];
        commands.extend(identity.proxy.iter().map(|proxy| format!("PROXY {proxy}")));
        commands.push("GO".to_owned());
        self.send(&commands.join("\n"), "READY").await
    }

    async fn send(&mut self, commands: &str, answer: &str) -> io::Result<()> {
        self.writer.write_all(format!("{commands}\n").as_bytes()).await?;
        let line = self.lines.next().await?;
        if line == answer {
            return Ok(());
        }
        Err(unexpected(answer, &line))
    }
}

fn unexpected(wanted: &str, line: &str) -> io::Error {
    let line = clean_line(line.as_bytes(), 200);
    let what = match line.strip_prefix("FAILED ") {
        Some(why) => format!("the guest could not carry out a command: {why}"),
        None => format!("the guest answered `{line}` instead of `{wanted}`"),
    };
    io::Error::other(what)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    /// Runs a guest that answers `GO`; returns the lines that it has received.
    async fn identified(answer: &str) -> (io::Result<()>, Vec<String>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let guest = async {
            let mut received = Vec::new();
            let mut lines = BufReader::new(theirs);
            loop {
                let mut line = String::new();
                lines.read_line(&mut line).await.unwrap();
                received.push(line.trim_end().to_owned());
                if line == "GO\n" {
                    lines.write_all(answer.as_bytes()).await.unwrap();
                    return received;
                }
            }
        };
        let identity = Identity {
            hostname: "linux-1".to_owned(),
            host_key: "PEM\n".to_owned(),
            authorized_key: "ssh-ed25519 AAAA\n".to_owned(),
            proxy: None,
        };
        let mut agent = Agent::new(ours);
        tokio::join!(agent.become_itself(&identity), guest)
    }

    #[tokio::test]
    async fn every_guest_is_told_who_it_is_with_a_seed_of_its_own() {
        let (ready, one) = identified("READY\n").await;
        ready.unwrap();
        let commands: Vec<&str> = one.iter().filter_map(|line| line.split(' ').next()).collect();
        let all = ["TIME", "SEED", "HOSTNAME", "MACHINE-ID", "HOST-KEY", "AUTHORIZED-KEY", "GO"];
        assert_eq!(commands, all);
        assert_eq!(one[4], "HOST-KEY UEVNCg==");
        assert_eq!(one[3].len(), "MACHINE-ID ".len() + 32);
        let (_, other) = identified("READY\n").await;
        assert!(one[1] != other[1] && one[3] != other[3], "a seed is used twice");
    }

    #[tokio::test]
    async fn a_script_comes_in_parts_and_its_lines_come_back() {
        let answers = async |answers: &'static str| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let guest = async {
                let mut script = Vec::new();
                let mut lines = BufReader::new(theirs).lines();
                while let Some(line) = lines.next_line().await.unwrap().filter(|line| line != "RUN") {
                    assert!(line.len() < LONGEST, "{}", line.len());
                    let part = line.strip_prefix("SCRIPT ").map(|part| Base64::decode_vec(part).unwrap());
                    script.extend(part.unwrap_or_default());
                }
                lines.into_inner().write_all(answers.as_bytes()).await.unwrap();
                script
            };
            let mut agent = Agent::new(ours);
            let script = "x".repeat(3 * PART);
            let (ran, received) = tokio::join!(agent.run(&script, Some("http://10.0.2.100:3128")), guest);
            assert_eq!(received, script.as_bytes());
            ran
        };
        assert_eq!(answers("SAID pulling\nSAID \nSAID done\nRAN\n").await.unwrap(), ["pulling", "done"]);
        let flood = format!("{}RAN\n", format!("SAID {}\n", "x".repeat(10_000)).repeat(500)).leak();
        let kept: usize = answers(flood).await.unwrap().iter().map(String::len).sum();
        assert!(kept <= MOST_OUTPUT && kept > MOST_OUTPUT / 2, "{kept}");
        let old = answers("FAILED unknown command `SCRIPT`\n").await.unwrap_err();
        assert_eq!(old.to_string(), OLD_IMAGE);
        let failed = answers("FAILED no /bin/sh\n").await.unwrap_err();
        assert_eq!(failed.to_string(), "the guest could not carry out a command: no /bin/sh");
    }

    #[tokio::test]
    async fn a_guest_that_fails_or_lies_is_quoted_in_one_clean_line() {
        let (failed, _) = identified("FAILED no \u{1b}[31mkey\n").await;
        assert_eq!(failed.unwrap_err().to_string(), "the guest could not carry out a command: no key");
        let (lied, _) = identified("WARM\n").await;
        assert_eq!(lied.unwrap_err().to_string(), "the guest answered `WARM` instead of `READY`");
    }
}
