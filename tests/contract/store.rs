//! The contract of `port::store`.
