//! Jobs in containers: what a job asks for, what a pool allows, and what follows from both.

pub mod account;
pub mod alias;
pub mod auth;
pub mod daemon;
pub mod engine;
pub mod failure;
pub mod image;
pub mod judge;
pub mod limits;
pub mod name;
pub mod ordering;
pub mod pattern;
pub mod place;
pub mod platform;
pub mod pull;
pub mod refusal;
pub mod registries;
pub mod report;
pub mod request;
pub mod settings;
pub mod soundness;
pub mod spec;
pub mod variables;
