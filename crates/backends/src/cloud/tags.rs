//! The marks of Greenroom on what it creates in a cloud: tags, and the token of the launch.
//!
//! Names and values of tags fit the strictest cloud (Compute Engine's labels): lower-case letters, digits, hyphens.

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use sha2::{Digest as _, Sha256};

/// The tag by which a pool's resources are listed.
pub const POOL: &str = "greenroom-pool";
/// The tag with the owner of a resource.
pub const OWNER: &str = "greenroom-owner";
const GENERATION: &str = "greenroom-generation";
const NUMBER: &str = "greenroom-number";

/// The reserved prefix of tags.
pub const PREFIX: &str = "greenroom-";

/// The tags as names and values for the cloud.
pub fn written(tags: &Tags) -> [(&'static str, String); 4] {
    [
        (POOL, tags.pool.to_string()),
        (OWNER, tags.owner.to_string()),
        (GENERATION, tags.generation.to_string()),
        (NUMBER, tags.number.to_string()),
    ]
}

/// The tags, as [`written`] writes them, and the instance that they name; `None` if they are not Greenroom's.
pub fn read<'a>(value_of: impl Fn(&str) -> Option<&'a str>) -> Option<(InstanceId, Tags)> {
    let tags = Tags {
        pool: PoolName::parse(value_of(POOL)?).ok()?,
        owner: OwnerId::new(value_of(OWNER)?),
        generation: Generation::new(value_of(GENERATION)?),
        number: value_of(NUMBER)?.parse().ok()?,
    };
    Some((InstanceId::launched(&tags.pool, &tags.generation, tags.number), tags))
}

/// The token by which a cloud recognises a repeated launch, as bytes. Each cloud has its own form for them. They are not
/// secret.
///
/// They differ between owners: two managers in one account may both have a pool `linux`.
pub fn token_digest(owner: &OwnerId, token: &str) -> [u8; 32] {
    Sha256::digest(format!("{owner}/{token}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_anything_less_is_not_ours() {
        let tags = Tags {
            pool: PoolName::new("linux"),
            owner: OwnerId::new("0123456789abcdef"),
            generation: Generation::new("3f9a"),
            number: 12,
        };
        let written = written(&tags);
        let all =
            |name: &str| written.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
        assert_eq!(read(all), Some((InstanceId::new("linux-3f9a-12"), tags.clone())));
        for (missing, _) in &written {
            assert_eq!(read(|name| all(name).filter(|_| name != *missing)), None, "{missing}");
        }
        assert_eq!(read(|name| if name == NUMBER { Some("many") } else { all(name) }), None);
        assert!(written.iter().all(|(name, _)| name.starts_with(PREFIX)));
    }

    #[test]
    fn each_launch_of_each_owner_has_its_own() {
        let one = OwnerId::new("0123456789abcdef");
        let other = OwnerId::new("fedcba9876543210");
        let launch = token_digest(&one, "linux-c0ffee-7/1");
        assert_eq!(launch, token_digest(&one, "linux-c0ffee-7/1"));
        assert_ne!(launch, token_digest(&one, "linux-c0ffee-7/2"));
        assert_ne!(launch, token_digest(&other, "linux-c0ffee-7/1"));
    }

    #[test]
    fn it_stays_what_it_was_when_machines_were_made_by_it() {
        let digest = token_digest(&OwnerId::new("0123456789abcdef"), "linux-c0ffee-7/1");
        assert_eq!(u64::from_be_bytes(*digest.first_chunk().unwrap()), 0x5d3a_42f7_de61_7480);
    }
}
