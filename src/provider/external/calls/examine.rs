//! Findings of `doctor` that need calls of the program. None of them makes a machine.

use super::External;
use crate::core::text::clean_line;
use crate::port::finding::{Finding, Severity};
use crate::port::provider::Demand;
use crate::provider::cloud::api::Api as _;
use crate::provider::external::protocol::Verb;
use crate::provider::external::protocol::answers::{
    CapabilitiesAnswer, ExamineAnswer, FindingAnswer, HostKey, Level,
};
use crate::provider::external::protocol::requests::Examine;

/// Longest message of the program's, in characters.
const SHOWN: usize = 300;

pub(super) async fn examine(api: &External, demand: &Demand) -> Vec<Finding> {
    let error = |code, message: String, remedy: String| Finding {
        code,
        severity: Severity::Error,
        message,
        remedy: Some(remedy),
    };
    let pool = &api.pool;
    let known = match api.capabilities().await {
        Ok(known) => known,
        Err(problem) => {
            let message = format!("the program of pool `{pool}` does not say what it can do: {problem}");
            let remedy = format!("run `{} capabilities` and correct it", api.program.path.display());
            return vec![error("external-capabilities", message, remedy)];
        }
    };
    let mut found = of_capabilities(api, &known, demand);
    if let Err(problem) = api.machines().await {
        let message = format!("the program of pool `{pool}` cannot list machines: {problem}");
        let remedy = format!("run `{} list` and correct it", api.program.path.display());
        found.push(error("external-list", message, remedy));
    }
    if known.has(Verb::Examine) {
        let fields = Examine { max_instances: demand.max_instances, instances: demand.recorded };
        match api.ask::<ExamineAnswer>(Verb::Examine, fields).await {
            Ok(answer) => found.extend(answer.findings.iter().map(of_program)),
            Err(problem) => {
                let message = format!("the program of pool `{pool}` cannot examine its platform: {problem}");
                let remedy = "correct the verb `examine`, or remove it from `verbs`".to_owned();
                found.push(error("external-examine", message, remedy));
            }
        }
    }
    found
}

/// What the table and the program's capabilities contradict each other in.
fn of_capabilities(api: &External, known: &CapabilitiesAnswer, demand: &Demand) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |code, severity, message: String, remedy: &str| {
        found.push(Finding { code, severity, message, remedy: Some(remedy.to_owned()) });
    };
    let (pool, name) = (&api.pool, clean_line(known.name.as_bytes(), 60));
    let has = |named: &str| known.offerings.iter().any(|offering| offering.name == named);
    let named = api.settings.common.offerings.iter().map(|offering| offering.name.as_str());
    let unknown: Vec<&str> = named.filter(|named| !known.offerings.is_empty() && !has(named)).collect();
    if !unknown.is_empty() {
        let message =
            format!("`{name}` does not have these offerings of pool `{pool}`: {}", unknown.join(", "));
        let all: Vec<&str> = known.offerings.iter().map(|offering| offering.name.as_str()).collect();
        find("external-offering", Severity::Error, message, &format!("name some of {}", all.join(", ")));
    }
    match (known.host_key, &api.settings.host_key) {
        (HostKey::Operator, None) => {
            let message = format!("`{name}` expects the operator to state the host key of pool `{pool}`");
            find("external-host-key", Severity::Error, message, "set `host_key` in the provider's table");
        }
        (HostKey::Operator, Some(_)) | (_, None) => {}
        (_, Some(_)) => {
            let message =
                format!("`host_key` of pool `{pool}` has no effect: `{name}` says how it is learned");
            find(
                "external-host-key",
                Severity::Warning,
                message,
                "remove `host_key` from the provider's table",
            );
        }
    }
    if known.host_key == HostKey::Console && !known.has(Verb::Console) {
        let message = format!("`{name}` shows host keys on consoles, but does not have the verb `console`");
        find("external-host-key", Severity::Error, message, "add the verb to the program");
    }
    if demand.max_lifetime.is_none() {
        let message = format!(
            "`max_lifetime` of pool `{pool}` is 0: if the manager is lost, its instances keep running"
        );
        find("external-no-lifetime", Severity::Warning, message, "set `max_lifetime`");
    } else if !known.lifetime {
        let message =
            format!("machines of pool `{pool}` end by themselves only if their image obeys the user data");
        let remedy = "make the program end machines after `lifetime_s`, and answer `\"lifetime\": true`";
        find("external-lifetime", Severity::Note, message, remedy);
    }
    found
}

fn of_program(finding: &FindingAnswer) -> Finding {
    let line = |text: &String| clean_line(text.as_bytes(), SHOWN);
    Finding {
        code: "external-finding",
        severity: match finding.level {
            Level::Error => Severity::Error,
            Level::Warning => Severity::Warning,
            Level::Note => Severity::Note,
        },
        message: line(&finding.message),
        remedy: finding.help.as_ref().map(line),
    }
}
