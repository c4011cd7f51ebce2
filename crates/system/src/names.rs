//! Resolves host names to addresses.
//!
//! Uses `getent`, which comes with every C library and queries whatever the runner host is configured for: files, DNS,
//! systemd, LDAP. Greenroom links a C library statically, because it starts so often. That library supports only files
//! and DNS; for the others it would load a second C library, of any version, into the running process.

pub mod race;

use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::process::{Command, Output};

const PROGRAM: &str = "getent";

/// The addresses of a name, in the order in which they should be tried. An IP address is returned as it is, without a
/// process. Fails if the name is unknown, or if `getent` cannot run.
pub async fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(address) = literal(name, port) {
        return Ok(vec![address]);
    }
    let mut command = tokio::process::Command::from(query(name));
    let answer = command.kill_on_drop(true).output().await;
    found(&answer.map_err(explained)?, port)
}

/// The same for a process without a runtime.
pub fn look_up_blocking(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match literal(name, port) {
        Some(address) => Ok(vec![address]),
        None => found(&query(name).output().map_err(explained)?, port),
    }
}

fn query(name: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args([OsStr::new("ahosts"), OsStr::new("--"), OsStr::new(name)]);
    command
}

fn explained(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::NotFound,
            format!("`{PROGRAM}`, which looks up names, is not installed"),
        ),
        _ => error,
    }
}

/// A line for each address and each type of socket: `192.0.2.7 STREAM name`.
fn found(answer: &Output, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for line in String::from_utf8_lossy(&answer.stdout).lines() {
        let address = line.split_ascii_whitespace().next().and_then(|word| literal(word, port));
        addresses.extend(address.filter(|address| !addresses.contains(address)));
    }
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

/// An IP address as people write it. A link-local one contains its interface: `fe80::1%eth0`.
fn literal(text: &str, port: u16) -> Option<SocketAddr> {
    let Some((address, interface)) = text.split_once('%') else {
        return Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, port));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let index = interface.parse().ok().or_else(|| index_of(interface))?;
    Some(SocketAddrV6::new(address, port, 0, index).into())
}

fn index_of(interface: &str) -> Option<u32> {
    let any = std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).ok()?;
    rustix::net::netdevice::name_to_index(any, interface).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    fn answer(text: &str) -> Output {
        Output { status: ExitStatus::from_raw(0), stdout: text.into(), stderr: Vec::new() }
    }

    #[test]
    fn an_address_needs_nobody() {
        for (text, address) in [
            ("192.0.2.7", "192.0.2.7:22"),
            ("::1", "[::1]:22"),
            ("fe80::1%3", "[fe80::1%3]:22"),
            ("fe80::1%lo", "[fe80::1%1]:22"),
        ] {
            assert_eq!(look_up_blocking(text, 22).unwrap(), [address.parse().unwrap()], "{text}");
        }
    }

    #[test]
    fn each_address_counts_once_and_in_order() {
        let said = "2001:db8::7 STREAM ci.example\n2001:db8::7 DGRAM \n192.0.2.7 STREAM \n192.0.2.7 RAW\nrubbish\n\n";
        let addresses = found(&answer(said), 22).unwrap();
        assert_eq!(addresses, ["[2001:db8::7]:22".parse().unwrap(), "192.0.2.7:22".parse().unwrap()]);
    }

    #[test]
    fn a_name_that_nobody_knows_is_an_error() {
        let error = found(&answer(""), 22).unwrap_err();
        assert_eq!(error.to_string(), "the name has no address");
    }

    #[test]
    fn the_machine_is_asked() {
        let local = |address: &SocketAddr| address.ip().is_loopback();
        assert!(look_up_blocking("localhost", 22).unwrap().iter().all(local));
        assert!(look_up_blocking("--help", 22).is_err(), "no name is an option");
        assert!(look_up_blocking("greenroom.invalid", 22).is_err());
    }
}
