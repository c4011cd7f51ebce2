//! Forwards the data in a stage's pipes to its output.

use std::io::{self, ErrorKind};

use greenroom_ports::connector::{Output, Stream};
use rustix::pipe::{SpliceFlags, splice};
use tokio::net::unix::pipe;

/// The capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Size of a copy where `splice` fails. A pipe with any room has room for a page.
const PAGE: usize = 4 << 10;

/// Forwards both pipes to their ends.
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
                out_ended = forward(stdout, Stream::Stdout, output).await?;
            }
            ready = stderr.readable(), if !err_ended => {
                ready?;
                err_ended = forward(stderr, Stream::Stderr, output).await?;
            }
        }
    }
    Ok(())
}

/// Forwards some of a pipe's data; true if the pipe has ended.
async fn forward(pipe: &pipe::Receiver, stream: Stream, output: &mut dyn Output) -> io::Result<bool> {
    if let Some(sink) = output.descriptor(stream)
        && let Ok(moved) = splice(pipe, None, sink, None, CHUNK, SpliceFlags::NONBLOCK)
    {
        return Ok(moved == 0);
    }
    // Either the pipe is empty, or the sink is full, has no reader, or is an append-only file. Reading detects the
    // first case; writing handles the others.
    let mut page = [0; PAGE];
    match pipe.try_read(&mut page) {
        Ok(0) => Ok(true),
        Ok(size) => output.write(stream, &page[..size]).await.map(|()| false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
