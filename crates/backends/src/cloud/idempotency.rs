//! The token by which a cloud recognises a repeated launch.

use greenroom_core::ids::OwnerId;
use sha2::{Digest as _, Sha256};

/// The same bytes for the same launch of the same owner only: two managers in one account may both have a pool `linux`.
/// Each cloud has its own form for them. They are not secret.
pub fn digest(owner: &OwnerId, token: &str) -> [u8; 32] {
    Sha256::digest(format!("{owner}/{token}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launch_of_each_owner_has_its_own() {
        let (one, other) = (OwnerId::new("0123456789abcdef"), OwnerId::new("fedcba9876543210"));
        let launch = digest(&one, "linux-c0ffee-7/1");
        assert_eq!(launch, digest(&one, "linux-c0ffee-7/1"));
        assert_ne!(launch, digest(&one, "linux-c0ffee-7/2"));
        assert_ne!(launch, digest(&other, "linux-c0ffee-7/1"));
    }

    #[test]
    fn it_stays_what_it_was_when_machines_were_made_by_it() {
        let digest = digest(&OwnerId::new("0123456789abcdef"), "linux-c0ffee-7/1");
        assert_eq!(u64::from_be_bytes(*digest.first_chunk().unwrap()), 0x5d3a_42f7_de61_7480);
    }
}
