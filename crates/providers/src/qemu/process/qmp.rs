//! QEMU's machine protocol: one JSON object a line, commands answered in order, events in between.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::channel::{self, Lines};

/// Maximum length of an answer, in bytes.
const LONGEST: usize = 256 * 1024;
/// Events that wait until they are read.
const MOST_EVENTS: usize = 1_000;

/// An event of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "event")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) data: Value,
}

/// A connection to QEMU.
#[derive(Debug)]
pub(super) struct Qmp {
    lines: Lines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    last_id: u64,
    /// The events that have not been returned yet.
    events: VecDeque<Event>,
}

impl Qmp {
    /// Waits for QEMU's greeting and enables commands.
    pub(super) async fn begin(stream: UnixStream) -> io::Result<Self> {
        let (reader, writer) = stream.into_split();
        let lines = Lines::new(reader, LONGEST);
        let mut qmp = Self { lines, writer, last_id: 0, events: VecDeque::new() };
        qmp.lines.next().await?;
        qmp.execute("qmp_capabilities", json!({})).await?;
        Ok(qmp)
    }

    /// Executes a command and returns QEMU's answer. A refusal is an error with QEMU's message.
    pub(super) async fn execute(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        let line = self.line(command, &arguments);
        self.writer.write_all(line.as_bytes()).await?;
        self.answer(command).await
    }

    /// Hands QEMU a descriptor under a name.
    pub(super) async fn hand_over(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let line = self.line("getfd", &json!({ "fdname": name }));
        channel::send_descriptor(self.writer.as_ref(), line.as_bytes(), descriptor).await?;
        self.answer("getfd").await.map(drop)
    }

    fn line(&mut self, command: &str, arguments: &Value) -> String {
        self.last_id += 1;
        format!("{}\n", json!({ "execute": command, "arguments": arguments, "id": self.last_id }))
    }

    async fn answer(&mut self, command: &str) -> io::Result<Value> {
        loop {
            let message = self.message().await?;
            // The answer to an abandoned command may still arrive.
            if message["id"] != self.last_id {
                continue;
            }
            if let Some(error) = message["error"]["desc"].as_str() {
                return Err(io::Error::other(format!("QEMU rejected `{command}`: {error}")));
            }
            return Ok(message["return"].clone());
        }
    }

    /// The next message that is not an event; events are queued.
    async fn message(&mut self) -> io::Result<Value> {
        loop {
            let line = self.lines.next().await?;
            let message: Value = serde_json::from_str(&line)?;
            if message.get("event").is_none() {
                return Ok(message);
            }
            // A sound QEMU answers immediately: only one that is out of control sends endless events before.
            if self.events.len() >= MOST_EVENTS {
                return Err(io::Error::other("QEMU sends events instead of an answer"));
            }
            self.events.push_back(serde_json::from_value(message)?);
        }
    }

    /// The next event. The future can be dropped without losing an event.
    pub(super) async fn event(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let line = self.lines.next().await?;
            let message: Value = serde_json::from_str(&line)?;
            if message.get("event").is_some() {
                self.events.push_back(serde_json::from_value(message)?);
            }
        }
    }
}

/// The port of the runner host that leads to the guest's SSH, from the output of `info usernet`.
pub(super) fn forwarded_port(info: &str) -> Option<u16> {
    let line = info.lines().find(|line| line.contains("TCP[HOST_FORWARD]"))?;
    // Protocol and state, descriptor, source address, source port.
    line.split_ascii_whitespace().nth(3)?.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    #[tokio::test]
    async fn events_between_question_and_answer_are_kept() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = async {
            let mut lines = BufReader::new(theirs);
            lines.write_all(b"{\"QMP\": {}}\n").await.unwrap();
            for answer in [
                "{\"return\": {}, \"id\": 1}\n",
                "{\"event\": \"STOP\"}\n{\"return\": 1, \"id\": 0}\n{\"return\": \"yes\", \"id\": 2}\n",
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}, \"id\": 3}\n",
            ] {
                let mut line = String::new();
                lines.read_line(&mut line).await.unwrap();
                lines.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let client = async {
            let mut qmp = Qmp::begin(ours).await.unwrap();
            assert_eq!(qmp.execute("query", json!({})).await.unwrap(), "yes");
            let refused = qmp.execute("other", json!({})).await.unwrap_err().to_string();
            assert_eq!(refused, "QEMU rejected `other`: no such thing");
            assert_eq!(qmp.event().await.unwrap(), Event { name: "STOP".to_owned(), data: Value::Null });
        };
        tokio::join!(qemu, client);
    }

    #[tokio::test]
    async fn events_without_end_take_no_memory() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let qemu = async {
            theirs.write_all(b"{\"QMP\": {}}\n").await.unwrap();
            // Ends when the reader is gone.
            while theirs.write_all(b"{\"event\": \"RTC_CHANGE\"}\n").await.is_ok() {}
        };
        let client = async {
            let refused = Qmp::begin(ours).await.unwrap_err().to_string();
            assert_eq!(refused, "QEMU sends events instead of an answer");
        };
        tokio::join!(qemu, client);
    }

    #[test]
    fn the_port_is_read_from_the_monitors_table() {
        let info = "Hub -1 (net):\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\n  \
                    TCP[HOST_FORWARD]  12       127.0.0.1 40713       10.0.2.15    22     0     0\n";
        assert_eq!(forwarded_port(info), Some(40713));
        assert_eq!(forwarded_port("Hub -1 (net):\n"), None);
    }
}
