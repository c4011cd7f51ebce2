//! What a job ordered, in the status of a pool.

use std::sync::Arc;

use greenroom_core::ids::JobKey;
use greenroom_core::order::Order;
use serde::Serialize;

/// What a job ordered, and which job.
#[derive(Debug, Serialize)]
pub(super) struct OrderedView<'a> {
    job: u64,
    server: &'a str,
    image: &'a str,
    services: &'a [Arc<str>],
}

impl<'a> OrderedView<'a> {
    pub(super) fn of(job: &'a JobKey, order: &'a Order) -> Self {
        Self { job: job.id, server: &job.server, image: &order.image, services: &order.services }
    }
}
