//! Makes one machine, and finds out whether there was a place for it.

use std::time::Duration;

use google_cloud_compute_v1::model::{Operation, operation};
use google_cloud_gax::options::RequestOptionsBuilder as _;

use super::ComputeEngine;
use super::client::{Clients, answer, within};
use super::errors::{self, Asked};
use super::machines;
use super::order::{Order, made_by};
use crate::core::failure::ErrorClass;
use crate::port::provider::ProviderError;
use crate::provider::cloud::api::Created;
use crate::provider::cloud::machine::Standing;
use crate::provider::cloud::tags;

/// Compute Engine itself ends a wait for an operation after two minutes.
const OPERATION: Duration = Duration::from_secs(130);

/// Two calls: the insert, and the wait for its operation, which knows at once when there is no capacity.
pub(super) async fn create(engine: &ComputeEngine, order: &Order) -> Result<Created, ProviderError> {
    let clients = engine.clients().await?;
    let insert = clients.instances.insert().set_project(&engine.settings.project).set_zone(&order.zone);
    let insert = insert.set_request_id(order.request_id.clone()).set_body(order.instance.clone());
    let accepted = match answer(Box::pin(insert.send())).await {
        Ok(operation) => operation,
        Err(error) if errors::is(&error, "alreadyExists") => return existing(engine, clients, order).await,
        Err(error) => return Err(errors::read(&error, Asked::New, &order.place)),
    };
    // The machine is asked for now: an error of the wait is none of the launch. Lists tell the rest.
    let last = if is_done(&accepted) { accepted } else { wait(engine, clients, order, accepted).await };
    match errors::of_operation(&last, &order.place) {
        Some(error) => Err(error),
        None => Ok(Created { handle: order.handle(), placed: is_done(&last) }),
    }
}

/// What became of the operation of an order.
pub(super) async fn refusal(engine: &ComputeEngine, order: &Order) -> ProviderError {
    let vanished = ProviderError::new(ErrorClass::Transient, "it was accepted and then was gone");
    let Ok(clients) = engine.clients().await else { return vanished };
    let list = clients.operations.list().set_project(&engine.settings.project).set_zone(&order.zone);
    let list = list.set_filter(format!("clientOperationId = \"{}\"", order.request_id));
    let found = answer(list.send()).await.map(|list| list.items).unwrap_or_default();
    found.iter().find_map(|operation| errors::of_operation(operation, &order.place)).unwrap_or(vanished)
}

fn is_done(operation: &Operation) -> bool {
    operation.status == Some(operation::Status::Done)
}

/// The operation as it is after the longest wait; as it was, if nobody says.
async fn wait(engine: &ComputeEngine, clients: &Clients, order: &Order, operation: Operation) -> Operation {
    let wait = clients.operations.wait().set_project(&engine.settings.project).set_zone(&order.zone);
    let wait = wait.set_operation(operation.name.clone().unwrap_or_default()).with_attempt_timeout(OPERATION);
    within(OPERATION, wait.send()).await.unwrap_or(operation)
}

/// The name is taken: by the machine of this very order, when an earlier answer was lost and Compute Engine has forgotten
/// the request.
async fn existing(
    engine: &ComputeEngine,
    clients: &Clients,
    order: &Order,
) -> Result<Created, ProviderError> {
    let handle = order.handle();
    let get = clients.instances.get().set_project(&engine.settings.project).set_zone(&order.zone);
    let transient =
        |why: &str| Err(ProviderError::new(ErrorClass::Transient, format!("`{}` {why}", handle.name)));
    let found = match answer(get.set_instance(&handle.name).send()).await {
        Ok(found) => found,
        Err(error) if error.http_status_code() == Some(404) => {
            return transient("is gone, but its disk is not yet");
        }
        Err(error) => return Err(errors::read(&error, Asked::New, &order.place)),
    };
    let label = |name: &str| found.labels.get(name).map(String::as_str);
    if made_by(&found) == Some(&order.request_id) {
        return Ok(Created { placed: machines::standing(&found) > Standing::Asked, handle });
    }
    let wanted = tags::read(|name| order.instance.labels.get(name).map(String::as_str));
    if wanted.is_some() && tags::read(label) == wanted {
        return transient("of an earlier attempt is still there");
    }
    let why = format!("a machine with the name `{}` is there, and it is not ours", handle.name);
    Err(ProviderError::new(ErrorClass::Invalid, why))
}
