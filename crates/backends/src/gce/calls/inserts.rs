//! Status of launches: the operations of inserts.
//!
//! Compute Engine accepts a launch before it looks for capacity. The operation then shows whether there was any. All
//! launches of a zone share one list of operations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use google_cloud_compute_v1::model::{Operation, operation};
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;

use super::ComputeEngine;
use super::errors;
use super::launch_spec::LaunchSpec;
use crate::cloud::api::LaunchStatus;
use crate::cloud::shared::Shared;

/// Maximum age of a list: short compared with the seconds that a refusal takes.
const AGE: Duration = Duration::from_millis(500);
const FILTER: &str = "operationType = \"insert\"";

/// The latest inserts of each zone, as last listed.
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

    /// Status of a launch.
    pub(super) async fn launch_status(
        &self,
        engine: &ComputeEngine,
        spec: &LaunchSpec,
    ) -> Result<LaunchStatus, ProviderError> {
        let zone = Rc::clone(self.zones.borrow_mut().entry(spec.zone.clone()).or_default());
        let list = async |_| engine.operations(&spec.zone, FILTER).await;
        let last = zone.within(AGE, &*self.clock, list).await?;
        let of_launch =
            |operation: &&Operation| operation.client_operation_id.as_ref() == Some(&spec.request_id);
        Ok(last
            .iter()
            .find(of_launch)
            .map_or(LaunchStatus::Unknown, |operation| launch_status(operation, spec)))
    }
}

/// Status of a launch, by its operation.
pub(super) fn launch_status(operation: &Operation, spec: &LaunchSpec) -> LaunchStatus {
    match errors::of_operation(operation, &spec.place) {
        Some(error) => LaunchStatus::Refused(error),
        None if operation.status == Some(operation::Status::Done) => LaunchStatus::Confirmed,
        None => LaunchStatus::Pending,
    }
}
