//! The choice of the connections without a login that an SSH server keeps. The server of pods (`server/main.rs`)
//! has this file, too.
//!
//! Silent connections must not keep a login away. A new connection is always accepted: if there are too many without a login, a
//! random one of its own source is closed, or one of the source that has the most. A login takes a fraction of a second,
//! so it is rarely the one that is closed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// A peer that has not logged in by then is disconnected.
pub const LOGIN_WITHIN: Duration = Duration::from_secs(30);
/// Connections that may be without a login at the same time.
const MOST: usize = 100;
/// Connections of one source that may be without a login at the same time.
const MOST_OF_SOURCE: usize = 50;

/// The connections without a login.
#[derive(Debug)]
pub struct Waiting<T> {
    all: Vec<(IpAddr, T)>,
    /// The time of the log's last line about a closed connection.
    told: Option<Instant>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { all: Vec::new(), told: None }
    }
}

impl<T> Waiting<T> {
    /// Keeps those without a login.
    pub fn retain(&mut self, waits: impl Fn(&T) -> bool) {
        self.all.retain(|(_, connection)| waits(connection));
    }

    /// Removes the connection that has to be closed before one more of this source comes.
    pub fn make_room(&mut self, source: IpAddr) -> Option<T> {
        self.close_one(source, RandomState::new().build_hasher().finish())
    }

    fn close_one(&mut self, source: IpAddr, dice: u64) -> Option<T> {
        let source = network(source);
        let count = |of: IpAddr| self.all.iter().filter(|(other, _)| *other == of).count();
        let crowded = if count(source) >= MOST_OF_SOURCE {
            source
        } else if self.all.len() >= MOST {
            self.all.iter().map(|(source, _)| *source).max_by_key(|source| count(*source))?
        } else {
            return None;
        };
        let chosen = dice % u64::try_from(count(crowded)).ok()?;
        let mut places = self.all.iter().enumerate().filter(|(_, (source, _))| *source == crowded);
        let (place, _) = places.nth(usize::try_from(chosen).ok()?)?;
        Some(self.all.swap_remove(place).1)
    }

    pub fn add(&mut self, source: IpAddr, connection: T) {
        self.all.push((network(source), connection));
    }

    /// True if the log is to say that a connection was closed: not for each one, because a flood of lines would push out those
    /// before.
    pub fn is_news(&mut self) -> bool {
        let now = Instant::now();
        let is_news = self.told.is_none_or(|told| now.duration_since(told) >= LOGIN_WITHIN);
        if is_news {
            self.told = Some(now);
        }
        is_news
    }
}

/// A host may use every address of its IPv6 network: they are one source.
fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn full(of: &[(u8, usize)]) -> Waiting<(u8, usize)> {
        let mut waiting = Waiting::default();
        for (number, count) in of {
            for which in 0..*count {
                waiting.add(source(*number), (*number, which));
            }
        }
        waiting
    }

    #[test]
    fn a_source_makes_room_for_itself_before_others_do() {
        for (there, new, closed) in [
            (&[(1, 49)][..], 1, None),
            (&[(1, 50)], 1, Some(1)),
            (&[(1, 50)], 2, None),
            (&[(1, 50), (2, 49), (3, 1)], 3, Some(1)),
            (&[(1, 20), (2, 45), (3, 35)], 4, Some(2)),
            (&[(1, 50), (2, 50)], 2, Some(2)),
        ] {
            for dice in [0, 7, u64::MAX] {
                let gone = full(there).close_one(source(new), dice);
                assert_eq!(gone.map(|(number, _)| number), closed, "{there:?} {new}");
            }
        }
    }

    #[test]
    fn chance_decides_among_those_of_a_source() {
        let gone = |dice| full(&[(1, 50)]).close_one(source(1), dice).map(|(_, which)| which);
        assert_eq!((gone(3), gone(53), gone(99)), (Some(3), Some(3), Some(49)));
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2::"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
    }

    #[test]
    fn a_flood_is_one_line_of_the_log() {
        let mut waiting = Waiting::<()>::default();
        assert!(waiting.is_news() && !waiting.is_news());
    }
}
