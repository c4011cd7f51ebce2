//! The value of a key, or why there is none: it is absent, or a [`ValueError`].

use std::borrow::Cow;

use crate::problem::Place;

/// The reason a key does not take a value of the right type.
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
    /// An entry of the value has the right form, and cannot be used.
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

/// The value of a key in a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Got<T> {
    /// The key is missing. Its declared default, if it has one.
    Absent(Option<T>),
    /// The value is not what the key takes; the mistake is already reported. The declared default of the key, if it has one.
    Bad(Option<T>),
    Good(T, Place),
}

impl<T> Got<T> {
    /// The given value.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent(_) | Self::Bad(_) => None,
        }
    }

    /// The given value.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent(_) | Self::Bad(_) => None,
        }
    }

    /// The given value, or the declared default if the key has one.
    pub fn effective(&self) -> Option<&T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent(default) | Self::Bad(default) => default.as_ref(),
        }
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Got<U> {
        match self {
            Self::Absent(default) => Got::Absent(default.map(change)),
            Self::Bad(default) => Got::Bad(default.map(change)),
            Self::Good(value, place) => Got::Good(change(value), place),
        }
    }

    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent(_))
    }

    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Bad(_))
    }

    /// Returns this one, or if it is missing, the one below it.
    pub fn over<'a>(&'a self, below: &'a Self) -> &'a Self {
        if self.is_absent() { below } else { self }
    }
}

impl<T: Clone + Default> Got<T> {
    /// The given value, or that of its type.
    pub fn or_default(&self) -> T {
        self.or(T::default())
    }
}

impl<T: Clone> Got<T> {
    /// The given value, or this one: for a key whose default depends on something else than its table.
    pub fn or(&self, default: T) -> T {
        self.value().cloned().unwrap_or(default)
    }

    /// The given value, or the declared default of the key, which must have one.
    pub fn or_declared(&self) -> T {
        let value = self.effective().cloned();
        value.expect("only keys with a declared default are read this way; tests read each without a value")
    }
}
