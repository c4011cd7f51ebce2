//! Findings of `doctor` from calls of the program. None of the calls makes a machine.

use greenroom_core::ids::PoolName;
use greenroom_core::text::clean_line;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::{Demand, ProviderError};

use super::External;
use crate::cloud::api::Api as _;
use crate::external::kit;
use crate::external::protocol::answers::{
    CapabilitiesAnswer, ExamineAnswer, FindingAnswer, HostKeySource, Level,
};
use crate::external::protocol::{ExamineFields, Verb};
use crate::external::settings::Settings;

/// Longest message of the program's, in characters.
const SHOWN: usize = 300;

pub(super) async fn examine(api: &External, demand: &Demand) -> Vec<Finding> {
    let pool = &api.pool;
    let settings = &api.settings;
    let call_failed = |verb, error| failed(pool, settings, verb, &error);
    let known = match api.capabilities().await {
        Ok(known) => known,
        Err(error) => return vec![call_failed(Verb::Capabilities, error)],
    };
    let mut found = of_capabilities(pool, settings, &known, demand);
    if let Err(error) = api.machines().await {
        found.push(call_failed(Verb::List, error));
    } else {
        let passed_on = serde_json::to_value(&settings.passed_on).unwrap_or_default();
        found.extend(kit::cheap::findings(&api.program, passed_on, pool, &api.program.how.path).await);
    }
    if known.has(Verb::Examine) {
        let fields = ExamineFields { max_instances: demand.max_instances, instances: demand.recorded };
        match api.ask::<ExamineAnswer>(Verb::Examine, fields).await {
            Ok(answer) => found.extend(answer.findings.iter().map(of_program)),
            Err(error) => found.push(call_failed(Verb::Examine, error)),
        }
    }
    found
}

/// A verb of the program's that failed.
pub(super) fn failed(pool: &PoolName, settings: &Settings, verb: Verb, error: &ProviderError) -> Finding {
    let (code, what) = match verb {
        Verb::Capabilities => ("external-capabilities", "does not say what it can do"),
        Verb::List => ("external-list", "cannot list machines"),
        _ => ("external-examine", "cannot examine its platform"),
    };
    Finding {
        code,
        severity: Severity::Error,
        message: format!("the program of pool `{pool}` {what}: {error}"),
        remedy: Some(format!("correct the verb `{verb}` of `{}`", settings.program.display())),
    }
}

/// Contradictions between the table and the program's capabilities, and capabilities that the program lacks.
fn of_capabilities(
    pool: &PoolName,
    settings: &Settings,
    known: &CapabilitiesAnswer,
    demand: &Demand,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut find = |code, severity, message: String, remedy: &str| {
        found.push(Finding { code, severity, message, remedy: Some(remedy.to_owned()) });
    };
    let name = clean_line(known.name.as_bytes(), 60);
    let has = |named: &str| known.offerings.iter().any(|offering| offering.name == named);
    let named = settings.common.offerings.iter().map(|offering| offering.name.as_str());
    let unknown: Vec<&str> = named.filter(|named| !known.offerings.is_empty() && !has(named)).collect();
    if !unknown.is_empty() {
        let message =
            format!("`{name}` does not have these offerings of pool `{pool}`: {}", unknown.join(", "));
        let all: Vec<&str> = known.offerings.iter().map(|offering| offering.name.as_str()).collect();
        let remedy = format!("set `offerings` to some of {}", all.join(", "));
        find("external-offering", Severity::Error, message, &remedy);
    }
    for (key, way, is_set, what) in [
        ("host_key", HostKeySource::Operator, settings.host_key.is_some(), "the host key"),
        (
            "host_key_ca",
            HostKeySource::Certificate,
            !settings.host_key_ca.is_empty(),
            "who signs the host keys",
        ),
    ] {
        if known.host_key == way && !is_set {
            let message = format!("`{name}` expects the operator to state {what} of pool `{pool}`");
            let remedy = format!("set `{key}` in the provider's table");
            find("external-host-key", Severity::Error, message, &remedy);
        } else if known.host_key != way && is_set {
            let message =
                format!("`{key}` of pool `{pool}` has no effect: `{name}` says how host keys are learned");
            let remedy = format!("remove `{key}` from the provider's table");
            find("external-host-key", Severity::Warning, message, &remedy);
        }
    }
    if known.host_key == HostKeySource::Console && !known.has(Verb::Console) {
        let message = format!("`{name}` shows host keys on consoles, but does not have the verb `console`");
        find("external-host-key", Severity::Error, message, "add the verb to the program");
    }
    if demand.max_lifetime.is_none() {
        let message = format!(
            "`max_lifetime` of pool `{pool}` is 0: if this runner host is lost for good, its instances keep running and \
             may cost money"
        );
        find("external-no-lifetime", Severity::Warning, message, "remove `max_lifetime` or set a limit");
    } else if !known.lifetime {
        let message =
            format!("machines of pool `{pool}` end by themselves only if their image obeys the user data");
        let remedy = "make the program end machines after `lifetime_s`, and answer `\"lifetime\": true`";
        find("external-lifetime", Severity::Note, message, remedy);
    }
    found
}

/// A finding of the program's own.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::external::protocol::answers;

    fn codes(able: &str, keys: &str, max_lifetime: Option<Duration>) -> Vec<(&'static str, Severity)> {
        let pool = PoolName::new("linux");
        let table = format!("program = \"/p\"\n{keys}").parse().unwrap();
        let known = format!(r#"{{"protocol": 1, "name": "mine"{able}}}"#);
        let known: CapabilitiesAnswer = answers::read(known.as_bytes()).unwrap();
        let demand = Demand { max_instances: 1, recorded: 0, max_lifetime, idle_stopped: 0 };
        let found = of_capabilities(&pool, &Settings::read(&pool, &table).unwrap(), &known, &demand);
        found.iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    #[test]
    fn each_contradiction_has_a_finding() {
        let day = Some(Duration::from_hours(24));
        let offerings = r#", "lifetime": true, "offerings": [{"name": "a"}]"#;
        let key = "host_key = \"ssh-ed25519 AAAA\"";
        let certificate = r#", "lifetime": true, "host_key": "certificate""#;
        let authority = "host_key_ca = \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ\"";
        let host_key = "external-host-key";
        let error = Severity::Error;
        for (able, keys, lifetime, expected) in [
            (offerings, "offerings = \"a\"", day, vec![]),
            (offerings, "offerings = [\"a\", \"b\"]", day, vec![("external-offering", error)]),
            ("", "", day, vec![("external-lifetime", Severity::Note)]),
            (offerings, "", None, vec![("external-no-lifetime", Severity::Warning)]),
            (offerings, key, day, vec![(host_key, Severity::Warning)]),
            (r#", "lifetime": true, "host_key": "operator""#, key, day, vec![]),
            (r#", "lifetime": true, "host_key": "operator""#, "", day, vec![(host_key, error)]),
            (certificate, authority, day, vec![]),
            (certificate, "", day, vec![(host_key, error)]),
            (certificate, key, day, vec![(host_key, Severity::Warning), (host_key, error)]),
            (r#", "lifetime": true, "host_key": "console""#, "", day, vec![(host_key, error)]),
        ] {
            assert_eq!(codes(able, keys, lifetime), expected, "{able} {keys}");
        }
    }
}
