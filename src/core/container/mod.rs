//! Jobs in containers: what a job asks for, what a pool allows, and what follows from both.

pub mod name;
pub mod request;
pub mod settings;
pub mod spec;
