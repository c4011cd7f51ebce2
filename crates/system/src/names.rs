//! Resolves host names to addresses, and connects to the first address that accepts.
//!
//! Uses `getent`, which comes with every C library and queries whatever the runner host is configured for: files, DNS,
//! systemd, LDAP. Greenroom links a C library statically, because it starts so often. That library supports only files
//! and DNS; for the others it would load a second C library, of any version, into the running process.
//!
//! A connection tries the addresses as "happy eyeballs" do (RFC 8305): an address that drops packets must not delay the others, so
//! each further address is tried 250 ms after the one before, or as soon as that one has failed. The first families alternate.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::process::{Command, Output};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

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

/// The addresses of a name, for a process without a runtime.
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

/// The time for which an address is tried alone.
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried at most.
const MOST: usize = 16;

/// Each address that failed, with its error, in the order in which they failed.
pub type ConnectFailures = Vec<(SocketAddr, io::Error)>;

/// Connects to the first address that accepts. `noted` gets each address as it is tried, and again with its error.
pub async fn connect(
    addresses: &[SocketAddr],
    mut noted: impl FnMut(SocketAddr, Option<&io::Error>),
) -> Result<TcpStream, ConnectFailures> {
    let mut left = alternating(addresses).into_iter();
    let mut tried = FuturesUnordered::new();
    let mut failed = Vec::new();
    loop {
        if let Some(address) = left.next() {
            noted(address, None);
            tried.push(async move { (address, TcpStream::connect(address).await) });
        }
        let more = left.len() > 0;
        let next = async { if more { sleep(STAGGER).await } else { pending().await } };
        tokio::select! {
            biased;
            ended = tried.next() => match ended {
                Some((_, Ok(stream))) => return Ok(stream),
                Some((address, Err(error))) => {
                    noted(address, Some(&error));
                    failed.push((address, error));
                }
                None => return Err(failed),
            },
            () = next => {}
        }
    }
}

/// Connects to the first address that accepts, or fails with the error of the first address that failed.
pub async fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    connect(addresses, |_, _| {}).await.map_err(|failed| {
        let first = failed.into_iter().next().map(|(_, error)| error);
        first.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    })
}

/// IPv4 and IPv6 in turn, beginning with the family of the first address; within a family, the order stays.
fn alternating(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else { return Vec::new() };
    let of_first = |address: &&SocketAddr| address.is_ipv6() == first.is_ipv6();
    let (mut one, mut other) =
        (addresses.iter().filter(of_first), addresses.iter().filter(|address| !of_first(address)));
    let mut order = Vec::new();
    loop {
        let before = order.len();
        order.extend(one.next());
        order.extend(other.next());
        if order.len() == before {
            order.truncate(MOST);
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use std::net::TcpListener;

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

    fn all(text: &str) -> Vec<SocketAddr> {
        text.split_whitespace().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate_and_begin_with_the_first() {
        for (given, order) in [
            ("", ""),
            ("192.0.2.1:22", "192.0.2.1:22"),
            (
                "[2001:db8::1]:22 [2001:db8::2]:22 192.0.2.1:22",
                "[2001:db8::1]:22 192.0.2.1:22 [2001:db8::2]:22",
            ),
            ("192.0.2.1:22 192.0.2.2:22 [2001:db8::1]:22", "192.0.2.1:22 [2001:db8::1]:22 192.0.2.2:22"),
        ] {
            assert_eq!(alternating(&all(given)), all(order), "{given}");
        }
        let many: Vec<SocketAddr> = (1..100).map(|last| SocketAddr::from(([192, 0, 2, last], 22))).collect();
        assert_eq!(alternating(&many).len(), MOST);
    }

    #[tokio::test]
    async fn each_address_that_fails_is_reported_and_the_next_one_follows_immediately() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let closed = SocketAddr::from(([127, 0, 0, 2], there.port()));
        let mut seen = Vec::new();
        let begun = std::time::Instant::now();
        let stream = connect(&[closed, there], |at, error| seen.push((at, error.is_some()))).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there);
        assert_eq!(seen, [(closed, false), (closed, true), (there, false)]);
        assert!(begun.elapsed() < STAGGER, "{:?}", begun.elapsed());
        let failed = connect(&[closed, closed], |_, _| {}).await.unwrap_err();
        assert_eq!(failed.len(), 2);
        assert!(failed.iter().all(|(at, error)| *at == closed && error.raw_os_error() == Some(111)));
        assert!(connect(&[], |_, _| {}).await.unwrap_err().is_empty());
        assert_eq!(connect_any(&[]).await.unwrap_err().to_string(), "the name has no address");
    }
}
