//! The launch of one machine.

use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;

use super::ComputeEngine;
use super::client::{Clients, answer};
use super::errors::{self, CallKind};
use super::inserts::launch_status;
use super::launch_spec::{LaunchSpec, created_by};
use super::machines;
use crate::cloud::api::{Created, LaunchStatus};
use crate::cloud::machine::MachineState;
use crate::cloud::tags;

/// One call. Its operation is seldom done when the call returns, so its capacity is usually known later.
pub(super) async fn create(engine: &ComputeEngine, spec: &LaunchSpec) -> Result<Created, ProviderError> {
    let clients = engine.clients().await?;
    let insert = clients.instances.insert().set_project(&engine.settings.project).set_zone(&spec.zone);
    let insert = insert.set_request_id(spec.request_id.clone()).set_body(spec.instance.clone());
    let accepted = match answer(Box::pin(insert.send())).await {
        Ok(operation) => operation,
        Err(error) if errors::is(&error, "alreadyExists") => return existing(engine, clients, spec).await,
        Err(error) => return Err(errors::read(&error, CallKind::Create, &spec.place)),
    };
    match launch_status(&accepted, spec) {
        LaunchStatus::Refused(error) => Err(error),
        status => Ok(Created {
            handle: spec.handle(),
            capacity_confirmed: matches!(status, LaunchStatus::Confirmed),
        }),
    }
}

/// Handles a name that is taken. The machine is that of this launch if an earlier answer was lost and Compute Engine no
/// longer has the request.
async fn existing(
    engine: &ComputeEngine,
    clients: &Clients,
    spec: &LaunchSpec,
) -> Result<Created, ProviderError> {
    let handle = spec.handle();
    let get = clients.instances.get().set_project(&engine.settings.project).set_zone(&spec.zone);
    let transient =
        |why: &str| Err(ProviderError::new(ErrorClass::Transient, format!("`{}` {why}", handle.name)));
    let found = match answer(get.set_instance(&handle.name).send()).await {
        Ok(found) => found,
        Err(error) if error.http_status_code() == Some(404) => {
            return transient("is deleted, but its disk still exists");
        }
        Err(error) => return Err(errors::read(&error, CallKind::Create, &spec.place)),
    };
    let label = |name: &str| found.labels.get(name).map(String::as_str);
    if created_by(&found) == Some(&spec.request_id) {
        return Ok(Created {
            capacity_confirmed: machines::machine_state(&found) > MachineState::Accepted,
            handle,
        });
    }
    let wanted = tags::read(|name| spec.instance.labels.get(name).map(String::as_str));
    if wanted.is_some() && tags::read(label) == wanted {
        return transient("of an earlier launch still exists");
    }
    let why = format!("an instance named `{}` exists but does not belong to this owner", handle.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}
