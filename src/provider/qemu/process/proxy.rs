//! The helper of `network = "proxy"`: QEMU starts one for each connection of the guest, with the connection as its
//! standard input and output. It knows one address and reaches no other.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;
use std::thread;

use crate::provider::supervisor::note;

/// `instance qemu proxy HOST:PORT`.
pub(super) fn proxy(target: &str) -> ExitCode {
    match carry(target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("the proxy {target} cannot be reached: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn carry(target: &str) -> io::Result<()> {
    let mut to = TcpStream::connect(target)?;
    let mut from = to.try_clone()?;
    let up = thread::spawn(move || {
        // An end of one direction is passed on; the other may go on.
        drop(io::copy(&mut io::stdin().lock(), &mut to));
        drop(to.shutdown(Shutdown::Write));
    });
    // Unbuffered: what came is passed on as it came.
    let mut out = fs_err::OpenOptions::new().write(true).open("/proc/self/fd/1")?;
    io::copy(&mut from, &mut out)?;
    drop(up);
    Ok(())
}
