//! Whether the program and Greenroom agree on the protocol, and what the program refuses.

use std::time::Instant;

use serde_json::{Value, json};

use crate::external::kit::reply::Reply;
use crate::external::kit::session::{Session, read, unusable};
use crate::external::protocol::VERSION;
use crate::external::protocol::answers::CapabilitiesAnswer;
use crate::program::kit::check::{Judged, Verdict, failed};

/// A version that no program has.
const NO_VERSION: u32 = 999;
/// A setting that no program has.
const NO_SETTING: &str = "greenroom_kit_no_such_setting";

/// What the program says of itself; without it, no other check makes sense.
pub(super) async fn capabilities(session: &Session<'_>, pool: &str) -> Judged<CapabilitiesAnswer> {
    let begun = Instant::now();
    let offer = json!({ "protocols": [VERSION] });
    let answer = session.answer("capabilities", pool, &offer).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(verdict) => {
            session.outcomes.record("capabilities", Err(verdict), begun);
            return Err(Verdict::Skipped("`capabilities` gave no usable answer".to_owned()));
        }
    };
    let version = answer.get("protocol").cloned().unwrap_or(Value::Null);
    let is_ours = version == json!(VERSION);
    let chosen =
        if is_ours { Ok(()) } else { failed(format!("version {version}, but only {VERSION} was offered")) };
    session.outcomes.record("protocol-version", chosen, begun);
    if !is_ours {
        return Err(Verdict::Skipped("the program speaks another version of the protocol".to_owned()));
    }
    let read = read::<CapabilitiesAnswer>("capabilities", &answer);
    session.outcomes.record("capabilities", read.as_ref().map(|_| ()).map_err(Clone::clone), begun);
    read.map_err(|_| Verdict::Skipped("`capabilities` is not valid".to_owned()))
}

/// Requests that every program has to refuse.
pub(super) async fn refusals(session: &Session<'_>, pool: &str) {
    session.outcomes.check("protocol-claimed", claimed(session, pool)).await;
    let request = session.request(pool, &json!({})).to_string().into_bytes();
    session.outcomes.check("verb-unknown", session.refuses("greenroom-kit-no-such-verb", request)).await;
    session.outcomes.check("request-unreadable", unreadable(session)).await;
    session.outcomes.check("settings-checked", settings(session, pool)).await;
}

/// Half of a request, as after a crash. Only a warning: Greenroom sends none.
async fn unreadable(session: &Session<'_>) -> Judged {
    let half = b"{\"protocol\": 1, \"pool\": ".to_vec();
    session.refuses("list", half).await.map_err(|verdict| match verdict {
        Verdict::Failed(came) => Verdict::Warned(came),
        other => other,
    })
}

/// Versions that the program cannot have: it refuses, or says which one it has.
async fn claimed(session: &Session<'_>, pool: &str) -> Judged {
    let versions = json!({ "protocol": NO_VERSION, "protocols": [NO_VERSION] });
    match session.call("capabilities", pool, &versions).await {
        Reply::Refused(_) => Ok(()),
        Reply::Answer(answer) if answer["protocol"] == json!(VERSION) => Ok(()),
        Reply::Answer(answer) => {
            let version = answer.get("protocol").cloned().unwrap_or(Value::Null);
            failed(format!("the program claims version {version} of the protocol"))
        }
        Reply::Unusable(check, _) => Err(unusable("capabilities", check)),
    }
}

/// A request with a setting that the program cannot have. Only a warning: some programs take any.
async fn settings(session: &Session<'_>, pool: &str) -> Judged {
    let mut request = session.request(pool, &json!({ "protocols": [VERSION] }));
    request["settings"][NO_SETTING] = json!("1");
    let refused = session.refuses("capabilities", request.to_string().into_bytes()).await;
    refused.map_err(|verdict| match verdict {
        Verdict::Failed(_) => Verdict::Warned(format!("`capabilities` accepted the setting `{NO_SETTING}`")),
        other => other,
    })
}
