//! The keeper's own reports: the address at which it serves metrics, and its notices.

use std::path::Path;

use greenroom_core::ids::PoolName;
use greenroom_core::notice::{Delivery, NoticeState, Notices};
use greenroom_core::time::{Pretty, Stamp};
use serde_json::{Value, json};

use super::metrics::server::served_address;
use super::notify;
use super::read_model::KeeperStatus;
use super::ui::plural;
use super::when::rfc3339;

/// The keeper's own reports, as the files of a state directory have them.
#[derive(Debug, Default)]
pub(super) struct Reporting {
    /// The address at which a running keeper serves metrics.
    metrics: Option<String>,
    notices: Notices,
}

impl Reporting {
    pub(super) fn read(root: &Path, keeper: &KeeperStatus) -> Self {
        // A keeper that was killed leaves its address.
        let runs = !keeper.is_absent();
        let address = served_address(root).filter(|_| runs);
        Self { metrics: address, notices: notify::read(root) }
    }

    pub(super) fn serves_metrics(&self) -> bool {
        self.metrics.is_some()
    }

    /// A sentence for each part that there is.
    pub(super) fn lines(&self, now: Stamp) -> Vec<String> {
        let metrics = self.metrics.as_ref().map(|address| format!("metrics: served at {address}"));
        let notices = deliveries(&self.notices, now).map(|text| format!("notices: {text}"));
        metrics.into_iter().chain(notices).collect()
    }

    /// The delivery of the notices about a pool, as long as their reasons last, in sentences.
    pub(super) fn of_pool(&self, pool: &PoolName, now: Stamp) -> Vec<String> {
        let told = self.notices.of_pool(pool.as_str()).into_iter();
        told.map(|(event, state)| match state {
            NoticeState::Delivered(at) => {
                format!("the notice `{event}` was delivered {} ago", Pretty(now.age_of(at)))
            }
            NoticeState::Waiting => format!("the notice `{event}` waits for delivery"),
            NoticeState::GivenUp => format!("the notice `{event}` was not delivered, and is given up"),
        })
        .collect()
    }

    /// Field names are stable.
    pub(super) fn json(&self) -> Value {
        let delivered = self.notices.last_delivery();
        let failed = self.notices.last_failure();
        json!({
            "metrics": self.metrics,
            "notices": {
                "waiting": self.notices.waiting(),
                "given_up": failed.map_or(0, |(_, dropped)| dropped),
                "last_delivered": delivered.map(|last| json!({
                    "at": rfc3339(last.at),
                    "event": last.kind.word(),
                    "pool": last.pool,
                    "number": last.number,
                })),
                "last_failed": failed.map(|(failure, _)| json!({
                    "at": rfc3339(failure.at),
                    "problem": failure.problem,
                })),
            },
        })
    }
}

/// A sentence about the last delivery, and the number of waiting notices; `None`: there are no notices.
fn deliveries(notices: &Notices, now: Stamp) -> Option<String> {
    let waiting = match notices.waiting() {
        0 => String::new(),
        waiting => format!("; {} waiting", plural(waiting, "notice")),
    };
    if let Some((failure, given_up)) = notices.last_failure() {
        let ago = Pretty(now.age_of(failure.at));
        return Some(format!(
            "the last delivery failed {ago} ago: {}{waiting}, {given_up} given up",
            failure.problem
        ));
    }
    if let Some(Delivery { at, number, kind, pool }) = notices.last_delivery() {
        let pool = pool.as_ref().map(|pool| format!(" of pool `{pool}`")).unwrap_or_default();
        let ago = Pretty(now.age_of(*at));
        return Some(format!("notice {number} (`{}`{pool}) was delivered {ago} ago{waiting}", kind.word()));
    }
    (notices.waiting() > 0).then(|| format!("none delivered yet{waiting}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_core::notation::NOW;
    use greenroom_core::notice::{Condition, NoticeKind};

    use super::*;
    use crate::cli::metrics::server::ADDRESS_FILE;

    fn observed() -> Reporting {
        let message = String::new();
        let help = String::new();
        let pool = Some("vm".to_owned());
        let condition = Condition { kind: NoticeKind::BreakerOpen, pool, instance: None, message, help };
        let mut reporting = Reporting::default();
        reporting.notices.observe(&[condition], Duration::ZERO, NOW);
        reporting
    }

    fn told(reporting: &Reporting) -> [Vec<String>; 2] {
        let now = NOW.plus(Duration::from_mins(3));
        [reporting.lines(now), reporting.of_pool(&PoolName::new("vm"), now)]
    }

    #[test]
    fn an_operator_sees_what_became_of_the_last_notice() {
        let mut reporting = observed();
        assert_eq!(
            told(&reporting),
            [
                ["notices: none delivered yet; 1 notice waiting"],
                ["the notice `breaker-open` waits for delivery"]
            ]
        );
        reporting.notices.failed(NOW, "`/bin/false`: exit status: 1");
        assert_eq!(
            told(&reporting)[0],
            [
                "notices: the last delivery failed 3m ago: `/bin/false`: exit status: 1; 1 notice waiting, 0 given up"
            ]
        );
        reporting.notices.delivered(NOW.plus(Duration::from_mins(1)));
        assert_eq!(
            told(&reporting),
            [
                ["notices: notice 1 (`breaker-open` of pool `vm`) was delivered 2m ago"],
                ["the notice `breaker-open` was delivered 2m ago"]
            ]
        );
        assert_eq!(reporting.of_pool(&PoolName::new("other"), NOW), [""; 0]);
        assert_eq!(reporting.json()["notices"]["last_delivered"]["event"], "breaker-open");
    }

    #[test]
    fn a_notice_that_was_given_up_says_so() {
        let mut reporting = observed();
        while reporting.notices.failed(NOW, "refused").is_none() {}
        assert_eq!(told(&reporting)[1], ["the notice `breaker-open` was not delivered, and is given up"]);
    }

    #[test]
    fn the_address_counts_while_a_keeper_runs() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(ADDRESS_FILE), "127.0.0.1:9252\n").unwrap();
        let lines = |keeper| Reporting::read(root.path(), &keeper).lines(NOW);
        assert_eq!(lines(KeeperStatus::Runs), ["metrics: served at 127.0.0.1:9252"]);
        assert_eq!(lines(KeeperStatus::Absent), [""; 0]);
    }
}
