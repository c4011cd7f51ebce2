//! Every key of the configuration but the providers', as data.
//!
//! A key that is missing in these tables is refused. Each key in them is read, is documented in docs/configuration.md,
//! and has its true default; tests check all three.

mod pool;
mod rule;
mod timing;
mod top;

use crate::keys::{Key, KeyTable};

/// A kind of table in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    Top,
    Pool,
    Policy,
    Provider,
    Rule,
    Timing,
}

/// The values of `reuse`, in the order of `core::policy::Reuse`.
pub(super) const REUSE: &[&str] = &["project", "namespace", "any"];

impl Section {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 6] =
        [Self::Top, Self::Pool, Self::Policy, Self::Provider, Self::Rule, Self::Timing];

    /// Its keys, and its purpose.
    pub fn table(self) -> &'static KeyTable {
        match self {
            Self::Top => &top::TOP,
            Self::Pool => &pool::POOL,
            Self::Policy => &pool::POLICY,
            Self::Provider => &pool::PROVIDER,
            Self::Rule => &rule::RULE,
            Self::Timing => &timing::TIMING,
        }
    }

    /// The keys of this kind of table.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        self.table().keys.iter()
    }

    /// Its header in the file.
    pub fn header(self) -> &'static str {
        self.table().header
    }

    /// The header of the table behind one of its keys, if it is one.
    pub(super) fn opened_by(self, key: &Key) -> Option<&'static str> {
        let inner = match (self, key.name) {
            (Self::Top, "timing") => Self::Timing,
            (Self::Top, "pool") => Self::Pool,
            (Self::Top, "rule") => Self::Rule,
            (Self::Pool, "provider") => Self::Provider,
            (Self::Pool, "policy") => Self::Policy,
            _ => return None,
        };
        Some(inner.header())
    }
}

/// Every key with the section that it belongs to.
pub(super) fn all() -> impl Iterator<Item = (Section, &'static Key)> {
    Section::ALL.into_iter().flat_map(|section| section.keys().map(move |key| (section, key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_twice_in_a_section() {
        for section in Section::ALL {
            let keys = section.table().keys;
            for (index, key) in keys.iter().enumerate() {
                let again = keys[index + 1..].iter().any(|other| other.name == key.name);
                assert!(!again, "{section:?} {}", key.name);
            }
        }
    }

    #[test]
    fn each_key_that_is_a_table_says_how_it_is_opened() {
        for (section, key) in all() {
            assert_eq!(section.opened_by(key).is_some(), key.opens_table(), "{section:?} {}", key.name);
        }
    }
}
