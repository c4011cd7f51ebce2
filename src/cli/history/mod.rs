//! `history`: the jobs of a period, one row each.

pub(in crate::cli) mod args;
pub(in crate::cli) mod command;
mod moment;
mod text;
mod view;

#[cfg(test)]
mod tests;
