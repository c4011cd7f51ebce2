//! What the program says of machines and resources that do not exist.

use serde_json::json;

use super::{Reach, no_machine, offered};
use crate::external::kit::session::Session;
use crate::external::protocol::answers::CapabilitiesAnswer;
use crate::program::kit::check::{Judged, skipped};

pub(super) async fn check(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer, reach: Reach) {
    session.outcomes.check("endpoint-unknown", optional(session, pool, known, "endpoint")).await;
    session.outcomes.check("console-unknown", optional(session, pool, known, "console")).await;
    session.outcomes.check("terminate-unknown", terminate(session, pool, reach)).await;
    session.outcomes.check("delete-unknown", delete(session, pool, known, reach)).await;
}

async fn optional(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer, verb: &str) -> Judged {
    offered(known, verb)?;
    session.refused_as_unknown(verb, pool, &no_machine()).await
}

async fn terminate(session: &Session<'_>, pool: &str, reach: Reach) -> Judged {
    allowed(reach)?;
    session.refused_as_unknown("terminate", pool, &no_machine()).await
}

async fn delete(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer, reach: Reach) -> Judged {
    offered(known, "delete")?;
    allowed(reach)?;
    let none = json!({ "kind": "volume", "id": "greenroom-kit-no-such-volume" });
    session.refused_as_unknown("delete", pool, &none).await
}

/// On a pool that is in use, nothing is called that could end anything.
fn allowed(reach: Reach) -> Judged {
    match reach {
        Reach::All => Ok(()),
        Reach::Reading => skipped("only verbs that read are called"),
    }
}
