//! A Unix stream that carries lines of JSON, and descriptors beside them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum length of a message, in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum number of descriptors in a message.
const MOST_DESCRIPTORS: usize = 4;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    received: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Line {
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
            sent += self.stream.async_io(Interest::WRITABLE, || send(&self.stream, rest, give)).await?;
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
            let (received, descriptors) = (&mut self.received, &mut self.descriptors);
            let stream = &self.stream;
            let count = stream.async_io(Interest::READABLE, || receive(stream, received, descriptors)).await;
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

fn send(stream: &UnixStream, bytes: &[u8], give: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !give.is_empty() && !control.push(SendAncillaryMessage::ScmRights(give)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors for a message"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

fn receive(
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
