//! The checks that make no machine; `doctor` makes those that only read.

use std::path::Path;
use std::time::{Duration, Instant};

use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::conformance::ends::CallForOne;
use greenroom_providers::conformance::report::{CheckGroup, CheckOutcome};
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, skipped};
use greenroom_providers::conformance::{Limits, Subject, SubjectKind, Watch};
use serde_json::{Value, json};

use super::port::ProgramPort;
use super::program::{ProgramReply, ProgramUnderTest};
use super::{KitSession, read, unusable};
use crate::cloud::tags;
use crate::external::protocol::VERSION;
use crate::external::protocol::answers::{CapabilitiesAnswer, ExamineAnswer, ListAnswer, ResourcesAnswer};

/// A version that no program has.
const NO_VERSION: u32 = 999;
/// A setting that no program has.
const NO_SETTING: &str = "greenroom_kit_no_such_setting";
/// Concurrent calls of `list`.
const CONCURRENT: usize = 3;
/// A machine that does not exist.
pub(super) const NO_MACHINE: &str = "greenroom-kit-no-such-machine";
/// A volume that does not exist.
const NO_VOLUME: &str = "greenroom-kit-no-such-volume";
/// A pool that no operator has.
const NO_POOL: &str = "greenroom-kit-none";

/// How far the checks may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheapReach {
    /// Only verbs that read: for `doctor`, on a pool that is in use.
    Reading,
    /// Also `terminate` and `delete` of what does not exist.
    All,
}

/// Makes the cheap checks. `pool`: a name that no machine has.
pub async fn check(session: &KitSession<'_>, pool: &str, reach: CheapReach) -> Judged<CapabilitiesAnswer> {
    let known = capabilities(session, pool).await?;
    refusals(session, pool).await;
    check_empty(session, pool, &known, reach).await;
    check_unknown(session, pool, &known, reach).await;
    Ok(known)
}

/// Ends a check of an optional verb that the program does not have.
fn offered(known: &CapabilitiesAnswer, verb: &str) -> Judged {
    if known.verbs.contains(verb) { Ok(()) } else { skipped(format!("the program does not offer `{verb}`")) }
}

/// The program's capabilities, without which no other check makes sense.
pub(super) async fn capabilities(session: &KitSession<'_>, pool: &str) -> Judged<CapabilitiesAnswer> {
    let begun = Instant::now();
    let offer = json!({ "protocols": [VERSION] });
    let answer = session.answer("capabilities", pool, &offer).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(verdict) => {
            session.outcomes.record("capabilities", Err(verdict), begun);
            return Err(CheckVerdict::Skipped("`capabilities` gave no usable answer".to_owned()));
        }
    };
    let version = answer.get("protocol").cloned().unwrap_or(Value::Null);
    let is_ours = version == json!(VERSION);
    let chosen =
        if is_ours { Ok(()) } else { failed(format!("version {version}, but only {VERSION} was offered")) };
    session.outcomes.record("protocol-version", chosen, begun);
    if !is_ours {
        return Err(CheckVerdict::Skipped("the program speaks another version of the protocol".to_owned()));
    }
    let read = read::<CapabilitiesAnswer>("capabilities", &answer);
    session.outcomes.record("capabilities", read.as_ref().map(|_| ()).map_err(Clone::clone), begun);
    read.map_err(|_| CheckVerdict::Skipped("`capabilities` is not valid".to_owned()))
}

/// Requests that every program has to refuse.
async fn refusals(session: &KitSession<'_>, pool: &str) {
    session.outcomes.check("protocol-claimed", claimed(session, pool)).await;
    let request = session.request(pool, &json!({})).to_string().into_bytes();
    session.outcomes.check("verb-unknown", session.refuses("greenroom-kit-no-such-verb", request)).await;
    session.outcomes.check("request-unreadable", unreadable(session)).await;
    session.outcomes.check("settings-checked", settings(session, pool)).await;
}

/// Half of a request, as after a crash. Only a warning: Greenroom sends none.
async fn unreadable(session: &KitSession<'_>) -> Judged {
    let half = b"{\"protocol\": 1, \"pool\": ".to_vec();
    session.refuses("list", half).await.map_err(|verdict| match verdict {
        CheckVerdict::Failed(came) => CheckVerdict::Warned(came),
        other => other,
    })
}

/// Versions that the program cannot have: it refuses, or says which one it has.
async fn claimed(session: &KitSession<'_>, pool: &str) -> Judged {
    let versions = json!({ "protocol": NO_VERSION, "protocols": [NO_VERSION] });
    match session.call("capabilities", pool, &versions).await {
        ProgramReply::Refused(_) => Ok(()),
        ProgramReply::Answer(answer) if answer["protocol"] == json!(VERSION) => Ok(()),
        ProgramReply::Answer(answer) => {
            let version = answer.get("protocol").cloned().unwrap_or(Value::Null);
            failed(format!("the program claims version {version} of the protocol"))
        }
        ProgramReply::Unusable(check, _) => Err(unusable("capabilities", check)),
    }
}

/// A request with a setting that the program cannot have. Only a warning: some programs take any.
async fn settings(session: &KitSession<'_>, pool: &str) -> Judged {
    let mut request = session.request(pool, &json!({ "protocols": [VERSION] }));
    request["settings"][NO_SETTING] = json!("1");
    let refused = session.refuses("capabilities", request.to_string().into_bytes()).await;
    refused.map_err(|verdict| match verdict {
        CheckVerdict::Failed(_) => {
            CheckVerdict::Warned(format!("`capabilities` accepted the setting `{NO_SETTING}`"))
        }
        other => other,
    })
}

async fn check_empty(session: &KitSession<'_>, pool: &str, known: &CapabilitiesAnswer, reach: CheapReach) {
    session.outcomes.check("list-of-unknown-pool", empty_list(session, pool)).await;
    session.outcomes.check("list-concurrent", concurrent(session, pool)).await;
    session.outcomes.check("resources-of-unknown-pool", resources(session, pool, known)).await;
    // `doctor` has called it already.
    if reach == CheapReach::All {
        session.outcomes.check("examine", examine(session, pool, known)).await;
    }
}

async fn empty_list(session: &KitSession<'_>, pool: &str) -> Judged {
    let answer = session.answer("list", pool, &json!({})).await?;
    let list: ListAnswer = read("list", &answer)?;
    if !list.complete {
        return failed("`list` answered `\"complete\": false`");
    }
    for listed in &list.machines {
        let came = || format!("the list of the pool `{pool}` has the machine `{}`", listed.machine);
        if listed.tags.get(tags::POOL).is_some_and(|tag| tag == pool) {
            return failed(format!("{}, with its tag", came()));
        }
    }
    Ok(())
}

async fn concurrent(session: &KitSession<'_>, pool: &str) -> Judged {
    let calls = (0..CONCURRENT).map(|_| async { session.answer("list", pool, &json!({})).await });
    for answer in futures_util::future::join_all(calls).await {
        read::<ListAnswer>("list", &answer?)?;
    }
    Ok(())
}

async fn resources(session: &KitSession<'_>, pool: &str, known: &CapabilitiesAnswer) -> Judged {
    offered(known, "resources")?;
    let answer = session.answer("resources", pool, &json!({})).await?;
    let all: ResourcesAnswer = read("resources", &answer)?;
    if !all.complete {
        return failed("`resources` answered `\"complete\": false`");
    }
    match all.resources.first() {
        None => Ok(()),
        Some(first) => {
            failed(format!("`resources` of the pool `{pool}` has the {} `{}`", first.kind, first.id))
        }
    }
}

async fn examine(session: &KitSession<'_>, pool: &str, known: &CapabilitiesAnswer) -> Judged {
    offered(known, "examine")?;
    let answer = session.answer("examine", pool, &json!({ "max_instances": 1, "instances": 0 })).await?;
    read::<ExamineAnswer>("examine", &answer).map(|_| ())
}

/// The calls for what does not exist, which a program has to refuse.
const UNKNOWN: [(&str, CallForOne); 4] = [
    ("endpoint-unknown", CallForOne::Endpoint),
    ("console-unknown", CallForOne::Console),
    ("terminate-unknown", CallForOne::Terminate),
    ("delete-unknown", CallForOne::Delete),
];

async fn check_unknown(session: &KitSession<'_>, pool: &str, known: &CapabilitiesAnswer, reach: CheapReach) {
    let port = ProgramPort::new(session, known.clone(), "root", pool);
    let watch = Watch::default();
    let subject = Subject {
        provider: &port,
        kind: SubjectKind::Program(&session.outcomes),
        limits: Limits { appears: Duration::ZERO, boot: Duration::ZERO, end: Duration::ZERO },
        watch: &watch,
    };
    for (check, call) in UNKNOWN {
        let judged = async {
            if call != CallForOne::Terminate {
                offered(known, call.name())?;
            }
            if matches!(call, CallForOne::Terminate | CallForOne::Delete) {
                allowed(reach)?;
            }
            let id = if call == CallForOne::Delete { NO_VOLUME } else { NO_MACHINE };
            subject.refuses_unknown(call, &InstanceId::new(id)).await
        };
        session.outcomes.check(check, judged).await;
    }
}

/// On a pool that is in use, nothing is called that could end anything.
fn allowed(reach: CheapReach) -> Judged {
    match reach {
        CheapReach::All => Ok(()),
        CheapReach::Reading => skipped("only verbs that read are called"),
    }
}

/// Calls only verbs that read. `capabilities`, which answers, is the caller's to judge.
pub async fn findings(
    program: &dyn ProgramUnderTest,
    settings: Value,
    pool: &PoolName,
    path: &Path,
) -> Vec<Finding> {
    let session = KitSession::new(program, settings);
    // The outcomes say more than the error.
    let _known = check(&session, NO_POOL, CheapReach::Reading).await;
    let outcomes = session.outcomes.all(&[CheckGroup::Calls, CheckGroup::Cheap], "");
    outcomes.iter().filter_map(|outcome| finding(outcome, pool, path)).collect()
}

/// Only broken promises: what makes mistakes hard to find is the author's to know.
fn finding(outcome: &CheckOutcome, pool: &PoolName, path: &Path) -> Option<Finding> {
    let CheckVerdict::Failed(came) = &outcome.verdict else { return None };
    let check = outcome.check;
    let message =
        format!("the program of pool `{pool}` breaks a promise of the protocol, `{}`: {came}", check.name);
    let remedy = format!("{}; then run `greenroom provider test {}`", check.help, path.display());
    Some(Finding { code: "external-promise", severity: Severity::Error, message, remedy: Some(remedy) })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::external::kit::program::{TestedCall, TestedEnd};

    /// Answers every verb with the same exit code, and `capabilities` and `list` well.
    struct Fixed {
        otherwise: i32,
    }

    #[async_trait(?Send)]
    impl ProgramUnderTest for Fixed {
        async fn call(&self, verb: &str, input: Vec<u8>) -> TestedCall {
            assert!(!["terminate", "delete", "launch"].contains(&verb), "{verb} may end or make something");
            let request: Value = serde_json::from_slice(&input).unwrap_or_default();
            let is_known = request["settings"]["greenroom_kit_no_such_setting"].is_null();
            let answer = match verb {
                "capabilities" if is_known => Some(json!({ "protocol": 1, "name": "fixed" })),
                "list" if request.is_object() => Some(json!({ "complete": true, "machines": [] })),
                _ => None,
            };
            let code = answer.as_ref().map_or(self.otherwise, |_| 0);
            let stdout = answer.unwrap_or(json!({ "error": "no" })).to_string().into_bytes();
            TestedCall { end: TestedEnd::Exited(code), stdout, log: String::new(), left: false }
        }
    }

    async fn found(otherwise: i32) -> Vec<Finding> {
        let pool = PoolName::new("linux");
        let path = Path::new("/etc/greenroom/machines");
        findings(&Fixed { otherwise }, json!({}), &pool, path).await
    }

    #[tokio::test]
    async fn a_broken_promise_is_an_error_with_what_to_do() {
        assert_eq!(found(14).await, []);
        assert_eq!(found(1).await, [], "an unknown verb may end in any error");
        let all = found(0).await;
        assert_eq!(
            all.iter().map(|finding| finding.code).collect::<Vec<_>>(),
            ["external-promise"],
            "{all:?}"
        );
        assert!(all[0].message.contains("`verb-unknown`"), "{all:?}");
        let remedy = all[0].remedy.as_deref().unwrap();
        assert!(remedy.ends_with("then run `greenroom provider test /etc/greenroom/machines`"), "{remedy}");
    }
}
