//! Hands descriptors from process to process over a Unix socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Sends a few bytes together with a descriptor. So few bytes are sent as a whole or not at all.
pub(super) async fn send(stream: &UnixStream, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
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
pub(super) async fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
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
    async fn a_file_arrives_and_the_end_is_seen() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        send(&here, b"+", file.as_fd()).await.unwrap();
        drop(here);
        let mut bytes = [0; 8];
        let (read, arrived) = receive(&there, &mut bytes).await.unwrap();
        assert_eq!(&bytes[..read], b"+");
        let mut arrived = std::fs::File::from(arrived.unwrap());
        arrived.rewind().unwrap();
        let mut text = String::new();
        arrived.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(receive(&there, &mut bytes).await.unwrap().0, 0);
    }
}
