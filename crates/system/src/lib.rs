//! Services of the operating system that are no ports.
//!
//! [`process`]: children that outlive a call, and processes that are watched. [`socket_dir`]: Unix sockets with names in a
//! directory. [`threads`]: work that may block, on a bounded number of threads. [`remove`] and [`replace`]: removal of whatever a
//! job left, and files that are replaced as a whole. [`names`]: host names, through the runner host's own `getent`.

pub mod names;
pub mod process;
pub mod remove;
pub mod replace;
pub mod socket_dir;
pub mod threads;

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes of the kernel as lower-case hex: a name that nobody can guess.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let mut buffer = [0_u8; 32];
    let wanted = &mut buffer[..bytes.min(32)];
    let mut filled = 0;
    while filled < wanted.len() {
        filled += getrandom(&mut wanted[filled..], GetRandomFlags::empty())?;
    }
    let digit = |half: u8| char::from_digit(u32::from(half), 16).expect("four bits are a hex digit");
    Ok(wanted.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_names_are_hex_of_the_asked_length_and_differ() {
        let one = random_hex(16).unwrap();
        let two = random_hex(16).unwrap();
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        assert_ne!(one, two);
    }
}
