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

/// No message is longer, in bytes.
const LONGEST: usize = 64 << 10;
/// No message brings more descriptors.
const MOST_GIVEN: usize = 4;

/// One end of a conversation.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    heard: Vec<u8>,
    given: VecDeque<OwnedFd>,
}

impl Line {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, heard: Vec::new(), given: VecDeque::new() }
    }

    /// The process at the other end; where it listened, the one that did.
    pub(super) fn peer(&self) -> io::Result<tokio::net::unix::UCred> {
        self.stream.peer_cred()
    }

    /// Says something, and gives copies of descriptors with it.
    pub(super) async fn say(&self, message: &impl Serialize, give: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut text = serde_json::to_vec(message)?;
        text.push(b'\n');
        let mut sent = 0;
        while sent < text.len() {
            let rest = &text[sent..];
            // They go with the first byte.
            let give = if sent == 0 { give } else { &[] };
            sent += self.stream.async_io(Interest::WRITABLE, || send(&self.stream, rest, give)).await?;
        }
        Ok(())
    }

    /// The next message; `None`: the other end has gone. Dropping the future loses nothing.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let rest = self.heard.split_off(end + 1);
                let text = std::mem::replace(&mut self.heard, rest);
                return Ok(Some(serde_json::from_slice(&text)?));
            }
            if self.heard.len() > LONGEST {
                return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
            }
            let (heard, given) = (&mut self.heard, &mut self.given);
            let stream = &self.stream;
            let got = stream.async_io(Interest::READABLE, || receive(stream, heard, given)).await;
            match got {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next of the descriptors that came.
    pub(super) fn given(&mut self) -> Option<OwnedFd> {
        self.given.pop_front()
    }

    /// The descriptor that came after so many others, which stay.
    pub(super) fn take_given(&mut self, others: usize) -> Option<OwnedFd> {
        self.given.remove(others)
    }

    /// Has the other end gone? Asked without waiting.
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_GIVEN))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !give.is_empty() && !control.push(SendAncillaryMessage::ScmRights(give)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors for a message"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

fn receive(stream: &UnixStream, heard: &mut Vec<u8>, given: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_GIVEN))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4096];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?.bytes;
    heard.extend_from_slice(&bytes[..got]);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            given.extend(descriptors);
        }
    }
    Ok(got)
}
