//! Tables and laws of the plan.

mod assign;
mod attempts;
mod availability;
mod backoff;
mod early;
mod health;
mod laws;
mod notices;
mod order_laws;
mod orders;
mod random;
mod recheck;
mod reconcile;
mod request;
mod retire;
mod scale;
mod seen;
mod settle;
mod stages;
mod tier;
mod warm;
mod whereabouts;
mod why;
