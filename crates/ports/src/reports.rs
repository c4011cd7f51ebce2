//! The report of each pool's last pass.

use std::fmt;

use async_trait::async_trait;
use greenroom_core::ids::PoolName;
use greenroom_core::report::Report;

use super::host_error::HostError;

/// The reports of passes. The keeper writes, all processes read: a reader sees a whole report, never a part of one.
#[async_trait(?Send)]
pub trait Reports: fmt::Debug {
    async fn write_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError>;

    async fn read_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError>;
}
