//! Lines of bounded length from a peer that is not trusted to end them.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

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

#[cfg(test)]
mod tests {
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
}
