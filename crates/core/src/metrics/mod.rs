//! Metrics of the pools, in Prometheus' text format and in OpenMetrics.
//!
//! Everything is computed from records and reports when it is read, so the command and the keeper's endpoint show the same.
//! No metric has a label for a job or an instance: the number of series is bounded by the configuration.
//!
//! `prometheus-client`, the official library, writes OpenMetrics only, and its histograms count in the process. Those of
//! a pool are recorded. So a small writer of both formats (`exposition.rs`) stands here.

pub mod catalogue;
pub mod exposition;
pub mod pool;

pub use catalogue::Metric;
pub use exposition::{Exposition, Format};
