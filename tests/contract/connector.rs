//! The contract of `port::connector`.
