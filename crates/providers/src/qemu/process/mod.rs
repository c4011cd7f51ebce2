//! The Greenroom processes that run virtual machines, and the helper of `network = "proxy"`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use greenroom_system::names::look_up_blocking;

use crate::supervised::supervisor::note;

mod agent;
mod boot;
mod channel;
mod command;
pub(super) mod exec;
#[cfg(test)]
mod failing_writes;
mod machine;
pub(super) mod qcow2;
mod qmp;
mod supervise;
mod template;

pub(super) use template::disk_of_all as disk_of_templates;

/// The hidden subcommands of `instance qemu`; `arguments` follow it.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let texts: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    match (texts.as_slice(), arguments) {
        (["supervise", "--dir", ..], [_, _, dir]) => supervise::supervise(Path::new(dir)),
        (["template", "--dir", ..], [_, _, dir]) => template::memory::hold(Path::new(dir)),
        (["exec", ..], [_, supervisor, program, rest @ ..]) => exec::exec(supervisor, program, rest),
        (["proxy", target], _) => proxy(target),
        _ => {
            note("usage: greenroom instance qemu supervise --dir DIR");
            ExitCode::from(2)
        }
    }
}

/// The time limit for an address to answer before the next one is tried. The kernel would wait for two minutes.
const PROXY_WITHIN: Duration = Duration::from_secs(5);

/// `instance qemu proxy HOST:PORT`, the helper of `network = "proxy"`: QEMU starts one for each connection of the guest, with the
/// connection as its standard input and output. It connects to one address and to no other.
pub(super) fn proxy(target: &str) -> ExitCode {
    match carry(target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("cannot reach the proxy {target}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn carry(target: &str) -> io::Result<()> {
    let (name, port) = target.rsplit_once(':').ok_or(io::ErrorKind::InvalidInput)?;
    let port = port.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let to = connect(&look_up_blocking(name, port)?)?;
    let write_half = to.try_clone()?;
    let read_half = to;
    thread::spawn(move || {
        // The end of one direction is passed on; the other may continue.
        drop(copy(io::stdin().lock(), &write_half));
        drop(write_half.shutdown(Shutdown::Write));
    });
    copy(read_half, io::stdout().lock())
}

/// Connects to the first address that answers in time.
fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut problem = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(address, PROXY_WITHIN) {
            Ok(to) => return Ok(to),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

/// Copies input to output as it arrives.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        match from.read(&mut bytes)? {
            0 => return Ok(()),
            read => {
                to.write_all(&bytes[..read])?;
                to.flush()?;
            }
        }
    }
}
