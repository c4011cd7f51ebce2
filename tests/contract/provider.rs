//! Providers under their contract.

#![cfg(test)]

mod local;
mod suite;

pub(crate) use suite::*;
