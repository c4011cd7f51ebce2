//! What became of inserts: the operations behind them.
//!
//! Compute Engine accepts a machine before it has looked for a place. The operation says in the end whether there was one;
//! all launches of a zone read it in one list.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::{Operation, operation};

use super::ComputeEngine;
use super::errors;
use super::launch_spec::LaunchSpec;
use crate::port::clock::Clock;
use crate::port::provider::ProviderError;
use crate::provider::cloud::api::LaunchStatus;
use crate::provider::cloud::shared::Shared;

/// How old a list may be: little beside the seconds that a refusal takes.
const AGE: Duration = Duration::from_millis(500);
const FILTER: &str = "operationType = \"insert\"";

/// The last inserts of each zone, as they were listed last.
pub(super) struct Inserts {
    clock: Rc<dyn Clock>,
    zones: RefCell<BTreeMap<String, Rc<Shared<Vec<Operation>>>>>,
}

impl std::fmt::Debug for Inserts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inserts").field("zones", &self.zones).finish_non_exhaustive()
    }
}

impl Inserts {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, zones: RefCell::default() }
    }

    /// What became of an order.
    pub(super) async fn fate(
        &self,
        engine: &ComputeEngine,
        order: &LaunchSpec,
    ) -> Result<LaunchStatus, ProviderError> {
        let zone = Rc::clone(self.zones.borrow_mut().entry(order.zone.clone()).or_default());
        let list = async |_| engine.operations(&order.zone, FILTER).await;
        let last = zone.within(AGE, &*self.clock, list).await?;
        let of_order =
            |operation: &&Operation| operation.client_operation_id.as_ref() == Some(&order.request_id);
        Ok(last.iter().find(of_order).map_or(LaunchStatus::Unknown, |operation| fate(operation, order)))
    }
}

/// As its operation says.
pub(super) fn fate(operation: &Operation, order: &LaunchSpec) -> LaunchStatus {
    match errors::of_operation(operation, &order.place) {
        Some(error) => LaunchStatus::Refused(error),
        None if operation.status == Some(operation::Status::Done) => LaunchStatus::Confirmed,
        None => LaunchStatus::Pending,
    }
}
