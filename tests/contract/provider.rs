//! The contract of `port::provider`.
