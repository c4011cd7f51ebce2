//! Why a value cannot be that of a key.

use std::borrow::Cow;

/// Why a key does not take a value of the right type.
///
/// Its sentence has no subject: [`Table::parsed`](crate::table::Table::parsed) puts the key before it. The variants say what is
/// wrong, so that all keys say it in the same words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value is something else than the key takes.
    #[error("is {found:?}, expected {expected}")]
    Value { found: String, expected: Cow<'static, str> },
    /// An entry of the value is something else than stands there.
    #[error("contains {found:?}, expected {expected}")]
    Entry { found: String, expected: Cow<'static, str> },
    /// The value has the right form, and cannot be used.
    #[error("is {found:?}, {why}")]
    Unusable { found: String, why: Cow<'static, str> },
    /// The same of an entry.
    #[error("contains {found:?}, {why}")]
    UnusableEntry { found: String, why: Cow<'static, str> },
    /// A rule that the value breaks. The value itself is not shown: it may contain a secret, or is a number.
    #[error("must {0}")]
    Rule(Cow<'static, str>),
}

impl ValueError {
    pub fn value(found: impl Into<String>, expected: impl Into<Cow<'static, str>>) -> Self {
        Self::Value { found: found.into(), expected: expected.into() }
    }

    pub fn entry(found: impl Into<String>, expected: impl Into<Cow<'static, str>>) -> Self {
        Self::Entry { found: found.into(), expected: expected.into() }
    }

    pub fn unusable(found: impl Into<String>, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Unusable { found: found.into(), why: why.into() }
    }

    pub fn unusable_entry(found: impl Into<String>, why: impl Into<Cow<'static, str>>) -> Self {
        Self::UnusableEntry { found: found.into(), why: why.into() }
    }

    pub fn rule(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::Rule(rule.into())
    }
}
