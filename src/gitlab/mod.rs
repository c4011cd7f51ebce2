//! The custom-executor contract and nothing else.
