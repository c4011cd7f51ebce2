//! Streams to QEMU, to a guest and between Greenroom's processes: lines of bounded length, and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncRead, AsyncReadExt, Interest};
use tokio::net::UnixStream;

/// Reads lines. A read can be dropped without losing bytes.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    /// In bytes, without the line's end.
    longest: usize,
    read: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, longest: usize) -> Self {
        Self { reader, longest, read: Vec::new() }
    }

    /// The next line without its end. The end of the stream is an error, and so is a line that is too long.
    pub(super) async fn next(&mut self) -> io::Result<String> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.read[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                return Ok(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned());
            }
            searched = self.read.len();
            if searched > self.longest {
                let what = format!("a line is longer than {} bytes", self.longest);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            if self.reader.read_buf(&mut self.read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Sends a few bytes together with a descriptor. So few bytes are sent as a whole or not at all.
pub(super) async fn send_descriptor(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let descriptors = [descriptor];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        Ok(sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?)
    });
    if sent.await? == bytes.len() {
        return Ok(());
    }
    Err(io::ErrorKind::WriteZero.into())
}

/// Receives some bytes, none at the end, and the descriptor that was sent with them.
pub(super) async fn receive_descriptor(
    stream: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let received = stream.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let read = recvmsg(stream.as_fd(), &mut [IoSliceMut::new(bytes)], &mut beside, flags)?.bytes;
        let descriptor = beside.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((read, descriptor))
    });
    received.await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[tokio::test]
    async fn lines_are_cut_at_their_ends_and_nothing_is_lost_between_them() {
        let mut lines = Lines::new(&b"one\r\ntwo\n\nthr"[..], 8);
        for expected in ["one", "two", ""] {
            assert_eq!(lines.next().await.unwrap(), expected);
        }
        assert_eq!(lines.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_line_without_end_is_an_error() {
        let endless = [b'x'; 100];
        let error = Lines::new(&endless[..], 10).next().await.unwrap_err();
        assert!(error.to_string().contains("longer than 10 bytes"), "{error}");
    }

    #[tokio::test]
    async fn a_file_arrives_and_the_end_is_seen() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        send_descriptor(&here, b"+", file.as_fd()).await.unwrap();
        drop(here);
        let mut bytes = [0; 8];
        let (read, arrived) = receive_descriptor(&there, &mut bytes).await.unwrap();
        assert_eq!(&bytes[..read], b"+");
        let mut arrived = std::fs::File::from(arrived.unwrap());
        arrived.rewind().unwrap();
        let mut text = String::new();
        arrived.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(receive_descriptor(&there, &mut bytes).await.unwrap().0, 0);
    }
}
