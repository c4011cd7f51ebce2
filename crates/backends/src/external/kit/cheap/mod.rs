//! The checks that make no machine.

mod empty;
mod protocol;
mod unknown;

use serde_json::json;

use super::session::Session;
use crate::external::protocol::answers::CapabilitiesAnswer;
use crate::program::kit::check::{Judged, skipped};

/// How far the checks may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only verbs that read: for `doctor`, on a pool that is in use.
    Reading,
    /// Also `terminate` and `delete` of what does not exist.
    All,
}

/// Makes the cheap checks. `pool`: a name that no machine has.
pub async fn check(session: &Session<'_>, pool: &str, reach: Reach) -> Judged<CapabilitiesAnswer> {
    let known = protocol::capabilities(session, pool).await?;
    protocol::refusals(session, pool).await;
    empty::check(session, pool, &known, reach).await;
    unknown::check(session, pool, &known, reach).await;
    Ok(known)
}

/// What a machine is called that does not exist.
pub fn no_machine() -> serde_json::Value {
    let name = "greenroom-kit-no-such-machine";
    json!({ "machine": name, "instance": name, "name": name })
}

/// Ends a check of an optional verb that the program does not have.
fn offered(known: &CapabilitiesAnswer, verb: &str) -> Judged {
    if known.verbs.contains(verb) { Ok(()) } else { skipped(format!("the program does not offer `{verb}`")) }
}
