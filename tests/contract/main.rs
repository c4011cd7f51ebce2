//! What every adapter of a port must do; run against something real.

mod connector;
mod provider;
mod store;
