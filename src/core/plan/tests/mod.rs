//! Tables and laws of the plan.

mod assign;
mod attempts;
mod availability;
mod brake;
mod laws;
mod random;
mod reconcile;
mod request;
mod retire;
mod scale;
mod settle;
mod why;
