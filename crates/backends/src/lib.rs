//! Providers whose calls need a library or a program that only `greenroom-backends` has, one feature for each.
//!
//! Without its feature, a provider reads its table and knows its offerings, for a program that has to start fast; its calls are
//! delegated to the other one. [`cloud`] is the common part of all; [`program`] runs programs of the operator's for [`external`]
//! and [`fleeting`].

#![forbid(unsafe_code)]

pub mod as_json;
pub mod authorities;
pub mod aws_ec2;
pub mod cloud;
pub mod external;
pub mod fleeting;
pub mod gce;
#[cfg(feature = "https")]
pub mod https;
pub mod kubernetes;
pub mod program;
