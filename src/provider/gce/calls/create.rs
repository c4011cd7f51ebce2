//! Makes one machine.

use super::ComputeEngine;
use super::client::{Clients, answer};
use super::errors::{self, Asked};
use super::inserts::fate;
use super::launch_spec::{LaunchSpec, made_by};
use super::machines;
use crate::core::failure::ErrorClass;
use crate::port::provider::ProviderError;
use crate::provider::cloud::api::{Created, LaunchStatus};
use crate::provider::cloud::machine::MachineState;
use crate::provider::cloud::tags;

/// One call. Its operation is hardly ever done by then, so what it says of capacity is heard later.
pub(super) async fn create(engine: &ComputeEngine, order: &LaunchSpec) -> Result<Created, ProviderError> {
    let clients = engine.clients().await?;
    let insert = clients.instances.insert().set_project(&engine.settings.project).set_zone(&order.zone);
    let insert = insert.set_request_id(order.request_id.clone()).set_body(order.instance.clone());
    let accepted = match answer(Box::pin(insert.send())).await {
        Ok(operation) => operation,
        Err(error) if errors::is(&error, "alreadyExists") => return existing(engine, clients, order).await,
        Err(error) => return Err(errors::read(&error, Asked::New, &order.place)),
    };
    match fate(&accepted, order) {
        LaunchStatus::Refused(error) => Err(error),
        fate => Ok(Created {
            handle: order.handle(),
            capacity_confirmed: matches!(fate, LaunchStatus::Confirmed),
        }),
    }
}

/// The name is taken: by the machine of this very order, when an earlier answer was lost and Compute Engine has forgotten
/// the request.
async fn existing(
    engine: &ComputeEngine,
    clients: &Clients,
    order: &LaunchSpec,
) -> Result<Created, ProviderError> {
    let handle = order.handle();
    let get = clients.instances.get().set_project(&engine.settings.project).set_zone(&order.zone);
    let transient =
        |why: &str| Err(ProviderError::new(ErrorClass::Transient, format!("`{}` {why}", handle.name)));
    let found = match answer(get.set_instance(&handle.name).send()).await {
        Ok(found) => found,
        Err(error) if error.http_status_code() == Some(404) => {
            return transient("is deleted, but its disk still exists");
        }
        Err(error) => return Err(errors::read(&error, Asked::New, &order.place)),
    };
    let label = |name: &str| found.labels.get(name).map(String::as_str);
    if made_by(&found) == Some(&order.request_id) {
        return Ok(Created {
            capacity_confirmed: machines::machine_state(&found) > MachineState::Accepted,
            handle,
        });
    }
    let wanted = tags::read(|name| order.instance.labels.get(name).map(String::as_str));
    if wanted.is_some() && tags::read(label) == wanted {
        return transient("of an earlier launch still exists");
    }
    let why = format!("an instance named `{}` exists but does not belong to this owner", handle.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}
