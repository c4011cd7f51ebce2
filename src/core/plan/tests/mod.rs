//! Tables and laws of the plan.

mod assign;
mod attempts;
mod brake;
mod reconcile;
mod request;
mod retire;
mod scale;
mod why;
