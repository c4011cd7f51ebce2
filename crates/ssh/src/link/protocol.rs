//! The protocol between a call and a link: messages, and the Unix stream that carries them ([`LinkStream`]).
//!
//! Each message is one line of JSON, and descriptors travel beside it. A link of another version of this program
//! understands a request's protocol number, whatever else the request contains.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::endpoint::Endpoint;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::millis;
use greenroom_ports::connector::{ConnectError, Reader, StageEnd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Must be raised with every change of these messages.
pub(super) const PROTOCOL: u32 = 6;

/// The specification of a link, which it gets on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkSpec {
    pub(super) instance: String,
    pub(super) at: Endpoint,
    pub(super) settings: super::super::SshSettings,
    /// The directory of the instance's links.
    pub(super) dir: PathBuf,
    pub(super) slot: u32,
    /// Limit to connect, verify and log in.
    #[serde(with = "millis")]
    pub(super) within: Duration,
    /// The keeper's mailbox, to report that the instance's metadata service has announced something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wake: Option<PathBuf>,
}

/// The first message of a conversation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) protocol: u32,
    pub(super) ask: LinkRequest,
    /// The keeper's mailbox, to report that the runner has exited. The runner's pidfd is the last of the descriptors.
    #[serde(default)]
    pub(super) wake: Option<PathBuf>,
}

impl Envelope {
    /// A request without a runner.
    pub(super) fn plain(ask: LinkRequest) -> Self {
        Self { protocol: PROTOCOL, ask, wake: None }
    }
}

/// The requested action.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LinkRequest {
    /// Check that the instance responds now.
    Check {
        at: Endpoint,
        #[serde(with = "millis")]
        within: Duration,
        /// The shell of the stage that follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<Interpreter>,
    },
    /// Run a script. With three descriptors: the script, and pipes for its output.
    Stage {
        at: Endpoint,
        interpreter: Interpreter,
        #[serde(with = "millis")]
        start_within: Duration,
        #[serde(with = "millis")]
        stop_grace: Duration,
        /// True if another stage is expected, so that a shell may wait for it.
        #[serde(default = "yes", skip_serializing_if = "is_true")]
        followed: bool,
        /// The container of a later stage, to be started as soon as it is not in use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ahead: Option<Interpreter>,
        /// The mark of the line that a shell in a container prints when it has read the first line of its input. The rest
        /// follows only then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ready_mark: Option<String>,
        /// The mark of the lines that it prints when it exits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_mark: Option<String>,
        /// True if it prints one, because its two streams are one.
        #[serde(default, skip_serializing_if = "is_false")]
        exit_joined: bool,
    },
    /// Run a command of Greenroom's own. With three descriptors: its input, and pipes for its output. A link of an
    /// earlier version does not know this request, and exits.
    Command {
        at: Endpoint,
        text: String,
        #[serde(with = "millis")]
        start_within: Duration,
        #[serde(with = "millis")]
        stop_grace: Duration,
    },
    /// Report the link's figures.
    Show,
    /// Report what the instance's metadata service answered last.
    Metadata,
    /// Exit as soon as no stage runs.
    End,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_true(flag: &bool) -> bool {
    *flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// The reader of a script, and commands to run before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interpreter {
    #[serde(flatten)]
    pub(super) reader: Reader,
    pub(super) before: String,
}

/// A message from a call while its stage runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Control {
    Stop,
}

/// A link's reply.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LinkReply {
    /// The request is accepted: the first reply to a check or a stage, sent immediately.
    Accepted,
    /// A stage runs here: the call needs another slot.
    Busy,
    /// The link exits now: it is of another version, connects elsewhere, or was told to exit.
    Closing,
    /// The instance answers.
    Answers,
    /// The script is sent from now on.
    Begun,
    /// The stage is being stopped.
    Stopping,
    /// The output did not end with a line break. Sent before the end.
    LineOpen,
    Ended(StageEnd),
    Failed(ConnectError),
    Shown(Figures),
    Metadata(MetadataAnswers),
}

/// Figures of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    pub pid: u32,
    /// Age of its connection, in milliseconds; `None` while it connects.
    pub connected_ms: Option<u64>,
    /// Round trip of the latest ping, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Anonymous memory, in bytes.
    pub memory: Option<u64>,
    /// Number of stages that it has run.
    pub stages: u64,
    /// True while a stage runs.
    pub busy: bool,
    /// True while a shell waits in the guest for the next stage.
    pub shell_waits: bool,
}

/// Maximum length of a message, in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum number of descriptors in a message.
const MOST_DESCRIPTORS: usize = 4;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct LinkStream {
    stream: UnixStream,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl LinkStream {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, received: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Credentials of the process at the other end. On the connecting side, that is the process that listens.
    pub(super) fn peer(&self) -> io::Result<tokio::net::unix::UCred> {
        self.stream.peer_cred()
    }

    /// Sends a message, with copies of descriptors.
    pub(super) async fn send(&self, message: &impl Serialize, give: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        let mut sent = 0;
        while sent < text.len() {
            let rest = &text[sent..];
            // The descriptors go with the first byte.
            let give = if sent == 0 { give } else { &[] };
            sent += self.stream.async_io(Interest::WRITABLE, || send_some(&self.stream, rest, give)).await?;
        }
        Ok(())
    }

    /// Receives the next message; `None` if the other end has closed. Dropping the future loses no data.
    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let text = std::mem::replace(&mut self.received, rest);
                return Ok(Some(serde_json::from_slice(&text)?));
            }
            if self.received.len() > LONGEST {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
            }
            let received = &mut self.received;
            let descriptors = &mut self.descriptors;
            let stream = &self.stream;
            let count =
                stream.async_io(Interest::READABLE, || receive_some(stream, received, descriptors)).await;
            match count {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next received descriptor.
    pub(super) fn next_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Takes the descriptor that follows `others` earlier ones, which stay.
    pub(super) fn take_descriptor(&mut self, others: usize) -> Option<OwnedFd> {
        self.descriptors.remove(others)
    }

    /// True if the other end has closed. Does not wait.
    pub(super) fn is_over(&self) -> bool {
        let mut byte = [0];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.stream, &mut byte[..], peek) {
            Ok((_, 0)) => true,
            Ok(_) => false,
            Err(error) => error != rustix::io::Errno::AGAIN,
        }
    }
}

fn send_some(stream: &UnixStream, bytes: &[u8], give: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !give.is_empty() && !control.push(SendAncillaryMessage::ScmRights(give)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors for a message"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

fn receive_some(
    stream: &UnixStream,
    received: &mut Vec<u8>,
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let count = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?.bytes;
    received.extend_from_slice(&bytes[..count]);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(new) = message {
            descriptors.extend(new);
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use greenroom_core::container::name::ContainerName;
    use greenroom_core::execution::{Shell, StageShell};
    use greenroom_core::golden::{covers, hold, recorded};
    use greenroom_core::metadata::MetadataService;
    use greenroom_ports::connector::Step;

    use super::*;

    fn endpoint() -> Endpoint {
        let text = r#"{"address":"192.0.2.7","port":22,"user":"ci","host_key":"ssh-ed25519 AAAA"}"#;
        serde_json::from_str(text).unwrap()
    }

    fn requests() -> Vec<Envelope> {
        let within = Duration::from_secs(10);
        let stop_grace = Duration::from_secs(5);
        let interpreter =
            Interpreter { reader: Reader::Shell(Shell::Bash.into()), before: "cd /builds".to_owned() };
        let shell = StageShell { shell: Shell::Sh, login_shell: true, separate_stderr: true };
        let login = Interpreter { reader: Reader::Shell(shell), before: String::new() };
        let name = ContainerName::parse("greenroom-a1").unwrap().into();
        let container = Interpreter { reader: Reader::Container(name), before: String::new() };
        let asks = [
            LinkRequest::Check { at: endpoint(), within, next: None },
            LinkRequest::Check { at: endpoint(), within, next: Some(interpreter.clone()) },
            LinkRequest::Check { at: endpoint(), within, next: Some(login) },
            LinkRequest::Stage {
                at: endpoint(),
                interpreter: interpreter.clone(),
                start_within: within,
                stop_grace,
                followed: true,
                ahead: None,
                ready_mark: None,
                exit_mark: None,
                exit_joined: false,
            },
            LinkRequest::Stage {
                at: endpoint(),
                interpreter: interpreter.clone(),
                start_within: within,
                stop_grace,
                followed: false,
                ahead: None,
                ready_mark: None,
                exit_mark: None,
                exit_joined: false,
            },
            LinkRequest::Stage {
                at: endpoint(),
                interpreter,
                start_within: within,
                stop_grace,
                followed: true,
                ahead: Some(container.clone()),
                ready_mark: None,
                exit_mark: None,
                exit_joined: false,
            },
            LinkRequest::Stage {
                at: endpoint(),
                interpreter: container,
                start_within: within,
                stop_grace,
                followed: true,
                ahead: None,
                ready_mark: Some("greenroom-shell-1-".to_owned()),
                exit_mark: Some("greenroom-exit-1-".to_owned()),
                exit_joined: true,
            },
            LinkRequest::Command {
                at: endpoint(),
                text: "exec sh".to_owned(),
                start_within: within,
                stop_grace,
            },
            LinkRequest::Show,
            LinkRequest::Metadata,
            LinkRequest::End,
        ];
        let mut all: Vec<Envelope> = asks.into_iter().map(Envelope::plain).collect();
        all.push(Envelope { wake: Some("/run/keeper".into()), ..Envelope::plain(LinkRequest::Show) });
        all
    }

    fn replies() -> Vec<LinkReply> {
        let at = || "192.0.2.7:22".to_owned();
        let problem = || "it broke".to_owned();
        let figures = Figures {
            pid: 4711,
            connected_ms: Some(5),
            round_trip_us: Some(300),
            memory: Some(512),
            stages: 8,
            busy: true,
            shell_waits: false,
        };
        let unknown = Figures { connected_ms: None, round_trip_us: None, memory: None, ..figures.clone() };
        let failures = [
            ConnectError::Unreachable { at: at(), problem: problem() },
            ConnectError::HostFault { at: at(), problem: problem() },
            ConnectError::timed_out(at(), Duration::from_secs(10)),
            ConnectError::timed_out_in(Step::Login, at(), Duration::from_secs(10)),
            ConnectError::TurnedAway { at: at(), problem: problem() },
            ConnectError::HostKey { at: at(), expected: "SHA256:a".to_owned(), found: "SHA256:b".to_owned() },
            ConnectError::Refused { at: at(), user: "ci".to_owned(), problem: problem() },
            ConnectError::Lost { at: at(), problem: problem(), sent: true },
            ConnectError::NotBegun { at: at(), why: problem() },
            ConnectError::NoContainer { at: at(), why: problem(), if_ran: problem(), by_image: true },
            ConnectError::Local { what: problem() },
        ];
        let ends = [
            StageEnd::Exited(3),
            StageEnd::Signalled("TERM".to_owned()),
            StageEnd::Stopped,
            StageEnd::Impossible("there is no image `debain:13`".to_owned()),
        ];
        let mut all = vec![
            LinkReply::Accepted,
            LinkReply::Busy,
            LinkReply::Closing,
            LinkReply::Answers,
            LinkReply::Begun,
            LinkReply::Stopping,
            LinkReply::LineOpen,
            LinkReply::Shown(figures),
            LinkReply::Shown(unknown),
            LinkReply::Metadata(MetadataAnswers::from([(
                "instance/preempted".to_owned(),
                "TRUE".to_owned(),
            )])),
        ];
        all.extend(ends.map(LinkReply::Ended));
        all.extend(failures.map(LinkReply::Failed));
        all
    }

    /// A link may be of another version than the call that speaks to it.
    #[test]
    fn messages_of_this_protocol_are_read() {
        const REQUESTS: &str = recorded!("link-requests.jsonl");
        const REPLIES: &str = recorded!("link-replies.jsonl");
        hold(REQUESTS, &requests());
        hold(REPLIES, &replies());
        hold(recorded!("link-controls.jsonl"), &[Control::Stop]);
        covers::<LinkRequest>(REQUESTS, r#""?""#);
        covers::<LinkReply>(REPLIES, r#""?""#);
        covers::<StageEnd>(REPLIES, r#""?""#);
        covers::<ConnectError>(REPLIES, r#""?""#);
        let spec = LinkSpec {
            instance: "linux-7f3a09c1-12".to_owned(),
            at: endpoint(),
            settings: super::super::super::SshSettings::new("/var/lib/greenroom/keys"),
            dir: "/var/lib/greenroom/links/linux/linux-7f3a09c1-12".into(),
            slot: 1,
            within: Duration::from_secs(10),
            wake: None,
        };
        let at = Endpoint { metadata: Some(MetadataService::Gce), ..endpoint() };
        let settings = spec.settings.clone();
        let instance = spec.instance.clone();
        let dir = spec.dir.clone();
        let watching = LinkSpec { at, settings, instance, dir, wake: Some("/run/keeper".into()), ..spec };
        hold(recorded!("link-specs.jsonl"), &[spec, watching]);
    }
}
