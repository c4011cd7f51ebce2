//! Takes what comes through a stage's pipes to where it belongs.

use std::io;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use crate::port::connector::{Output, Stream};

/// As much as a pipe holds.
const CHUNK: usize = 64 << 10;

/// Both pipes, to their ends.
pub(super) async fn pump(
    stdout: &mut pipe::Receiver,
    stderr: &mut pipe::Receiver,
    output: &mut dyn Output,
) -> io::Result<()> {
    let (mut out, mut err) = (vec![0; CHUNK], Vec::new());
    let (mut out_ended, mut err_ended) = (false, false);
    while !(out_ended && err_ended) {
        tokio::select! {
            read = stdout.read(&mut out), if !out_ended => match read? {
                0 => out_ended = true,
                size => output.write(Stream::Stdout, &out[..size]).await?,
            },
            read = stderr.read_buf(&mut err), if !err_ended => if read? == 0 {
                err_ended = true;
            } else {
                output.write(Stream::Stderr, &err).await?;
                err.clear();
            },
        }
    }
    Ok(())
}
