//! What the program says of a pool that has no machines.

use serde_json::json;

use super::{Reach, offered};
use crate::cloud::tags;
use crate::external::kit::session::{Session, read};
use crate::external::protocol::answers::{CapabilitiesAnswer, ExamineAnswer, ListAnswer, ResourcesAnswer};
use crate::program::kit::check::{Judged, failed};

/// Concurrent calls of `list`.
const CONCURRENT: usize = 3;

pub(super) async fn check(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer, reach: Reach) {
    session.outcomes.check("list-of-unknown-pool", empty_list(session, pool)).await;
    session.outcomes.check("list-concurrent", concurrent(session, pool)).await;
    session.outcomes.check("resources-of-unknown-pool", resources(session, pool, known)).await;
    // `doctor` has called it already.
    if reach == Reach::All {
        session.outcomes.check("examine", examine(session, pool, known)).await;
    }
}

async fn empty_list(session: &Session<'_>, pool: &str) -> Judged {
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

async fn concurrent(session: &Session<'_>, pool: &str) -> Judged {
    let calls = (0..CONCURRENT).map(|_| async { session.answer("list", pool, &json!({})).await });
    for answer in futures_util::future::join_all(calls).await {
        read::<ListAnswer>("list", &answer?)?;
    }
    Ok(())
}

async fn resources(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer) -> Judged {
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

async fn examine(session: &Session<'_>, pool: &str, known: &CapabilitiesAnswer) -> Judged {
    offered(known, "examine")?;
    let answer = session.answer("examine", pool, &json!({ "max_instances": 1, "instances": 0 })).await?;
    read::<ExamineAnswer>("examine", &answer).map(|_| ())
}
