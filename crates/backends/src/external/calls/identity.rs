//! Which instance a machine is, by its tags or by its name.

use std::collections::BTreeMap;

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_core::text::hex;

use crate::cloud::{idempotency, tags};

/// The tag with the token of the launch.
pub(super) const TOKEN: &str = "greenroom-token";

/// A machine's name: that of its instance, and the owner.
pub(super) fn name(instance: &InstanceId, owner: &OwnerId) -> String {
    format!("{instance}-{owner}")
}

/// The tags of a name; `None`: Greenroom did not make it.
pub(super) fn of_name(name: &str) -> Option<(InstanceId, Tags)> {
    let (rest, owner) = name.rsplit_once('-')?;
    let (rest, number) = rest.rsplit_once('-')?;
    let (pool, generation) = rest.rsplit_once('-')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    // An owner is 16 digits: a name that people gave is hardly one.
    if owner.len() != 16 || !is_hex(owner) || !is_hex(generation) {
        return None;
    }
    let tags = Tags {
        pool: PoolName::parse(pool).ok()?,
        owner: OwnerId::new(owner),
        generation: Generation::new(generation),
        number: number.parse().ok()?,
    };
    Some((InstanceId::launched(&tags.pool, &tags.generation, tags.number), tags))
}

/// The token of a launch, as machines show it.
pub(super) fn token(owner: &OwnerId, token: &str) -> String {
    hex(&idempotency::digest(owner, token)[..16])
}

/// The tags of a launch.
pub(super) fn written(of: &Tags, shown_token: &str) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        tags::written(of).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    all.insert(TOKEN.to_owned(), shown_token.to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_other_names_are_not_ours() {
        let owner = OwnerId::new("0123456789abcdef");
        let tags = Tags {
            pool: PoolName::new("linux-big"),
            owner: owner.clone(),
            generation: Generation::new("3f9a01"),
            number: 7,
        };
        let id = InstanceId::launched(&tags.pool, &tags.generation, tags.number);
        let written = name(&id, &owner);
        assert_eq!(written, "linux-big-3f9a01-7-0123456789abcdef");
        assert_eq!(of_name(&written), Some((id, tags)));
        for other in ["", "web-1", "linux-3f9a01-7", "linux-3f9a01-x-0123456789abcdef", "a-b-c-d-e"] {
            assert_eq!(of_name(other), None, "{other}");
        }
    }
}
