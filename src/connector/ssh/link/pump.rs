//! Takes what comes through a stage's pipes to where it belongs.

use std::io::{self, ErrorKind};

use rustix::pipe::{SpliceFlags, splice};
use tokio::net::unix::pipe;

use crate::port::connector::{Output, Stream};

/// As much as a pipe holds.
const CHUNK: usize = 64 << 10;
/// What is copied where nothing can be moved. A page has room in a pipe as soon as anything has.
const PAGE: usize = 4 << 10;

/// Both pipes, to their ends.
pub(super) async fn pump(
    stdout: &pipe::Receiver,
    stderr: &pipe::Receiver,
    output: &mut dyn Output,
) -> io::Result<()> {
    let (mut out_ended, mut err_ended) = (false, false);
    while !(out_ended && err_ended) {
        tokio::select! {
            ready = stdout.readable(), if !out_ended => {
                ready?;
                out_ended = pass(stdout, Stream::Stdout, output).await?;
            }
            ready = stderr.readable(), if !err_ended => {
                ready?;
                err_ended = pass(stderr, Stream::Stderr, output).await?;
            }
        }
    }
    Ok(())
}

/// Passes on some of what a pipe holds; true: it has ended.
async fn pass(pipe: &pipe::Receiver, stream: Stream, output: &mut dyn Output) -> io::Result<bool> {
    if let Some(sink) = output.descriptor(stream)
        && let Ok(moved) = splice(pipe, None, sink, None, CHUNK, SpliceFlags::NONBLOCK)
    {
        return Ok(moved == 0);
    }
    // The pipe is empty, or the sink is full, has no reader, or is a file that is only appended to: reading tells the
    // first, and writing knows what to do about the others.
    let mut page = [0; PAGE];
    match pipe.try_read(&mut page) {
        Ok(0) => Ok(true),
        Ok(size) => output.write(stream, &page[..size]).await.map(|()| false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
