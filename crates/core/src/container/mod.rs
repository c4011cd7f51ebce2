//! Jobs in containers: what a job asks for, what a pool allows, and what follows from both.

pub mod account;
pub mod engine;
pub mod failure;
pub mod image;
pub mod judge;
pub mod name;
pub mod ordering;
pub mod registries;
pub mod report;
pub mod request;
pub mod settings;
pub mod spec;
pub mod variables;
