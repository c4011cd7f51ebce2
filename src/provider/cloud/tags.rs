//! The tags on everything that is made in a cloud.
//!
//! Names and values keep to what the strictest cloud takes (Compute Engine's labels): lower-case letters, digits, hyphens.

use crate::core::ids::{Generation, InstanceId, OwnerId, PoolName};
use crate::core::inventory::Tags;

/// By this tag a pool's things are listed.
pub const POOL: &str = "greenroom-pool";
const OWNER: &str = "greenroom-owner";
const GENERATION: &str = "greenroom-generation";
const NUMBER: &str = "greenroom-number";

/// An operator's own tags may not begin like this.
pub const PREFIX: &str = "greenroom-";

/// As the cloud keeps them.
pub fn written(tags: &Tags) -> [(&'static str, String); 4] {
    [
        (POOL, tags.pool.to_string()),
        (OWNER, tags.owner.to_string()),
        (GENERATION, tags.generation.to_string()),
        (NUMBER, tags.number.to_string()),
    ]
}

/// As we know them, and the instance that they name; `None`: these are not ours.
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
