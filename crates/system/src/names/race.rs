//! Connects to the first of several addresses that accepts ("happy eyeballs", RFC 8305).
//!
//! An address that drops packets must not delay the others, so each further address is tried 250 ms after the one before,
//! or as soon as that one has failed. The first families alternate.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How long an address is tried alone.
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried at most.
const MOST: usize = 16;

/// Each address that failed, with its error, in the order in which they failed.
pub type Failures = Vec<(SocketAddr, io::Error)>;

/// Connects to the first address that accepts. `noted` gets each address as it is tried, and again with its error.
pub async fn connect(
    addresses: &[SocketAddr],
    mut noted: impl FnMut(SocketAddr, Option<&io::Error>),
) -> Result<TcpStream, Failures> {
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

/// The same as one I/O error: that of the first address that failed.
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
    use std::net::TcpListener;

    use super::*;

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
