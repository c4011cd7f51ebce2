//! Locks that the kernel releases.

use std::fmt;

/// A kernel lock ([`Lock`]), released when it is dropped, also by kill -9.
pub trait Held: fmt::Debug {}

pub type Lock = Box<dyn Held>;
