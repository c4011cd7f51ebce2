//! The cheap half of the kit as findings of `doctor`, for a pool that is in use.

use std::path::Path;

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};
use serde_json::Value;

use super::cheap::{self, Reach};
use super::program::Program;
use super::session::Session;
use crate::program::kit::check::{Group, Outcome, Verdict};

/// A pool that no operator has.
const NO_POOL: &str = "greenroom-kit-none";

/// Calls only verbs that read. `capabilities`, which answers, is the caller's to judge.
pub async fn findings(program: &dyn Program, settings: Value, pool: &PoolName, path: &Path) -> Vec<Finding> {
    let session = Session::new(program, settings);
    // The outcomes say more than the error.
    let _known = cheap::check(&session, NO_POOL, Reach::Reading).await;
    let outcomes = session.outcomes.all(&[Group::Calls, Group::Cheap], "");
    outcomes.iter().filter_map(|outcome| finding(outcome, pool, path)).collect()
}

/// Only broken promises: what makes mistakes hard to find is the author's to know.
fn finding(outcome: &Outcome, pool: &PoolName, path: &Path) -> Option<Finding> {
    let Verdict::Failed(came) = &outcome.verdict else { return None };
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
    use crate::external::kit::program::{Called, End};

    /// Answers every verb with the same exit code, and `capabilities` and `list` well.
    struct Fixed {
        otherwise: i32,
    }

    #[async_trait(?Send)]
    impl Program for Fixed {
        async fn call(&self, verb: &str, input: Vec<u8>) -> Called {
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
            Called { end: End::Exited(code), stdout, log: String::new(), left: false }
        }
    }

    async fn found(otherwise: i32) -> Vec<Finding> {
        let (pool, path) = (PoolName::new("linux"), Path::new("/etc/greenroom/machines"));
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
