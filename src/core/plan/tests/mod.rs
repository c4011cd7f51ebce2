//! Tables and laws of the plan.

mod assign;
mod attempts;
mod brake;
mod laws;
mod matrix;
mod random;
mod reconcile;
mod request;
mod retire;
mod scale;
mod settle;
mod why;
