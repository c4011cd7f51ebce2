//! Providers under their contract.

#![cfg(test)]

mod local;
