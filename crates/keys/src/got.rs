//! The value of a key, or why there is none.

use super::problem::Place;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Got<T> {
    Absent,
    /// Not what the key takes; already reported.
    Bad,
    Good(T, Place),
}

impl<T> Got<T> {
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Good(value, _) => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Got<U> {
        match self {
            Self::Absent => Got::Absent,
            Self::Bad => Got::Bad,
            Self::Good(value, place) => Got::Good(change(value), place),
        }
    }

    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Bad)
    }

    /// This one, or if it is missing, the one below it.
    pub fn over<'a>(&'a self, below: &'a Self) -> &'a Self {
        if self.is_absent() { below } else { self }
    }
}

impl<T: Clone + Default> Got<T> {
    pub fn or_default(&self) -> T {
        self.or(T::default())
    }
}

impl<T: Clone> Got<T> {
    pub fn or(&self, default: T) -> T {
        self.value().cloned().unwrap_or(default)
    }
}
