//! The checks that make no instances: the start, the list, the end.

use std::time::Instant;

use super::Kit;
use crate::fleeting::group::{Group as _, GroupInfo};
use crate::program::kit::check::{Judged, Verdict, failed};

impl Kit {
    /// The group, if the plugin starts and lists it. Otherwise why nothing else can be checked.
    pub async fn check_cheap(&self) -> Judged<GroupInfo> {
        let begun = Instant::now();
        let group = self.answer("Init", self.plugin().info().await);
        self.outcomes.record("start", group.as_ref().map(drop).map_err(Clone::clone), begun);
        let group =
            group.map_err(|_| Verdict::Skipped("the plugin does not start, see `start`".to_owned()))?;
        self.outcomes.record("group-named", named(&group), Instant::now());
        let is_listed = self.outcomes.check("list", async { self.list().await.map(drop) }).await;
        self.outcomes.check("end", self.end()).await;
        self.outcomes.check("start-again", self.started_again(&group)).await;
        if is_listed {
            Ok(group)
        } else {
            Err(Verdict::Skipped("the plugin does not list its group, see `list`".to_owned()))
        }
    }

    async fn end(&self) -> Judged {
        if self.plugin().close().await {
            return Ok(());
        }
        Err(Verdict::Warned("it was killed".to_owned()))
    }

    async fn started_again(&self, first: &GroupInfo) -> Judged {
        let second = self.answer("Init", self.plugin().info().await)?;
        if second.id == first.id {
            return Ok(());
        }
        failed(format!("the group was `{}` first, and `{}` then", first.id, second.id))
    }
}

fn named(group: &GroupInfo) -> Judged {
    if group.id.is_empty() {
        return Err(Verdict::Warned("the group's ID is empty".to_owned()));
    }
    Ok(())
}
