//! The plugins' protocol: messages, and calls over a Unix socket.

pub mod client;
pub mod messages;
pub mod services;
