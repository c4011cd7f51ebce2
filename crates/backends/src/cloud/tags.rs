//! The tags on everything that Greenroom creates in a cloud.
//!
//! Names and values fit the strictest cloud (Compute Engine's labels): lower-case letters, digits, hyphens.

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;

/// The tag by which a pool's resources are listed.
pub const POOL: &str = "greenroom-pool";
const OWNER: &str = "greenroom-owner";
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

/// The tags, and the instance that they name; `None` if they are not Greenroom's.
pub fn read<'a>(value_of: impl Fn(&str) -> Option<&'a str>) -> Option<(InstanceId, Tags)> {
    let tags = Tags {
        pool: PoolName::parse(value_of(POOL)?).ok()?,
        owner: OwnerId::new(value_of(OWNER)?),
        generation: Generation::new(value_of(GENERATION)?),
        number: value_of(NUMBER)?.parse().ok()?,
    };
    Some((InstanceId::launched(&tags.pool, &tags.generation, tags.number), tags))
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
}
