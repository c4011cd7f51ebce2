//! What conformance kits have in common: checks, their outcomes, and the report.

pub mod check;
pub mod outcomes;
pub mod poll;
pub mod report;
