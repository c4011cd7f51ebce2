//! `pool leaks`: resources of the provider that have no record.

pub(in crate::cli) mod command;
pub(in crate::cli) mod last;
mod text;
mod view;

#[cfg(test)]
mod tests;
