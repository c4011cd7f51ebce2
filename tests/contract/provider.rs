//! Providers under their contract.

#![cfg(test)]

mod here;
mod local;
mod suite;

pub(crate) use suite::*;
