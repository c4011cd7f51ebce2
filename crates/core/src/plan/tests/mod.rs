//! Tables and laws of the plan.

mod assign;
mod attempts;
mod availability;
mod backoff;
mod checks;
mod health;
mod laws;
mod listing;
mod reconcile;
mod request;
mod retire;
mod scale;
mod settle;
mod tier;
mod warm;
mod why;
