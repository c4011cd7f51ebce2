//! Calls of the program for `doctor`. None of them makes a machine.

use greenroom_ports::finding::Finding;
use greenroom_ports::provider::Demand;

use super::External;
use crate::cloud::api::Api as _;
use crate::external::protocol::Verb;
use crate::external::protocol::answers::ExamineAnswer;
use crate::external::protocol::requests::Examine;
use crate::external::{findings, kit};

pub(super) async fn examine(api: &External, demand: &Demand) -> Vec<Finding> {
    let (pool, settings) = (&api.pool, &api.settings);
    let failed = |verb, error| findings::failed(pool, settings, verb, &error);
    let known = match api.capabilities().await {
        Ok(known) => known,
        Err(error) => return vec![failed(Verb::Capabilities, error)],
    };
    let mut found = findings::of_capabilities(pool, settings, &known, demand);
    if let Err(error) = api.machines().await {
        found.push(failed(Verb::List, error));
    } else {
        let passed_on = serde_json::to_value(&settings.passed_on).unwrap_or_default();
        found.extend(kit::doctor::findings(&api.program, passed_on, pool, &api.program.how.path).await);
    }
    if known.has(Verb::Examine) {
        let fields = Examine { max_instances: demand.max_instances, instances: demand.recorded };
        match api.ask::<ExamineAnswer>(Verb::Examine, fields).await {
            Ok(answer) => found.extend(answer.findings.iter().map(findings::of_program)),
            Err(error) => found.push(failed(Verb::Examine, error)),
        }
    }
    found
}
