//! Notices about instances: scheduled events, and spot instances that EC2 reclaims.
//!
//! EC2 lists both, each in a list of its own. The pool works without them: if one fails, its notices are missing, and nothing
//! else changes. A spot instance's metadata service announces a reclaim, too.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::primitives::DateTime;
use aws_sdk_ec2::types::{EventCode, Filter, InstanceStatus, InstanceStatusEvent, SpotInstanceRequest};
use futures_util::future::join;
use greenroom_core::failure::ErrorClass;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;
use jiff::Timestamp;
use serde_json::Value;

use super::errors;
use crate::cloud::machine::{CloudNotice, Machine, MachineState};

/// Limit for an answer: the list of instances waits for it.
const ANSWER: Duration = Duration::from_secs(5);
/// The time for which an answer serves. EC2 reclaims a spot instance two minutes after the announcement.
pub(super) const INTERVAL: Duration = Duration::from_secs(15);
/// The pause after a failed call.
const PAUSE: Duration = Duration::from_mins(1);
/// The pause after a call that the account may not make.
const PAUSE_DENIED: Duration = Duration::from_mins(5);
/// Maximum length of EC2's description of an event, in characters.
const MAX_DESCRIPTION: usize = 120;

/// The codes of spot requests whose instance EC2 takes back. EC2 sets `instance-terminated-no-capacity`, and closes the
/// request, while the instance still runs for two minutes.
const RECLAIMED: [&str; 5] = [
    "instance-terminated-no-capacity",
    "instance-terminated-by-price",
    "instance-terminated-launch-group-constraint",
    "marked-for-termination",
    "marked-for-stop",
];
const EVENTS: [EventCode; 5] = [
    EventCode::InstanceRetirement,
    EventCode::InstanceStop,
    EventCode::InstanceReboot,
    EventCode::SystemReboot,
    EventCode::SystemMaintenance,
];
/// The beginnings of the descriptions of events that will not happen any more.
const OVER: [&str; 2] = ["[Completed]", "[Canceled]"];

/// InstanceNotices by the ID of the instance.
type ByInstance = BTreeMap<String, CloudNotice>;
type NoticesAnswer = Result<ByInstance, ProviderError>;

/// The notices of one pool's instances.
pub(super) struct InstanceNotices {
    clock: Rc<dyn Clock>,
    events: NoticeList,
    reclaims: NoticeList,
}

/// The notices of one call.
#[derive(Debug, Default)]
struct NoticeList {
    /// The last answer.
    known: RefCell<ByInstance>,
    /// No call before this.
    next: Cell<Option<Stamp>>,
}

impl std::fmt::Debug for InstanceNotices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceNotices")
            .field("events", &self.events)
            .field("reclaims", &self.reclaims)
            .finish_non_exhaustive()
    }
}

impl InstanceNotices {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, events: NoticeList::default(), reclaims: NoticeList::default() }
    }

    /// Adds the notices to the living machines of a list. `has_spot`: whether a living one is a spot instance.
    /// `of_pool`: the filter for the pool's spot requests.
    pub(super) async fn add(
        &self,
        client: &Client,
        of_pool: Filter,
        machines: &mut [Machine],
        has_spot: bool,
    ) {
        let lives = |machine: &Machine| machine.state > MachineState::Stopped;
        if !machines.iter().any(lives) {
            return;
        }
        let clock = &*self.clock;
        let events = self.events.update(clock, scheduled(client));
        let reclaims = async {
            if has_spot {
                self.reclaims.update(clock, reclaimed(client, of_pool)).await;
            }
        };
        Box::pin(join(events, reclaims)).await;
        for machine in machines.iter_mut().filter(|machine| lives(machine)) {
            let id = &machine.handle.name;
            // A reclaim leaves two minutes, an event days.
            machine.notice = self.reclaims.of(id).or_else(|| self.events.of(id));
        }
    }
}

impl NoticeList {
    /// Makes the call, unless the last answer still serves or the last call failed just now.
    async fn update(&self, clock: &dyn Clock, call: impl Future<Output = NoticesAnswer>) {
        if self.next.get().is_some_and(|next| !clock.now().reached(next)) {
            return;
        }
        let pause = match tokio::time::timeout(ANSWER, call).await {
            Ok(Ok(fresh)) => {
                self.known.replace(fresh);
                INTERVAL
            }
            Ok(Err(error)) if *error.class() == ErrorClass::Denied => {
                self.known.take();
                PAUSE_DENIED
            }
            // What EC2 announced before most likely still holds.
            Ok(Err(_)) | Err(_) => PAUSE,
        };
        self.next.set(Some(clock.now().plus(pause)));
    }

    fn of(&self, id: &str) -> Option<CloudNotice> {
        self.known.borrow().get(id).cloned()
    }
}

/// The scheduled events of all instances of the account.
async fn scheduled(client: &Client) -> NoticesAnswer {
    let codes = EVENTS.map(|code| code.as_str().to_owned()).to_vec();
    let affected = Filter::builder().name("event.code").set_values(Some(codes)).build();
    let mut pages = client.describe_instance_status().filters(affected).into_paginator().send();
    let mut found = ByInstance::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| errors::read(&error, ""))?;
        found.extend(page.instance_statuses().iter().filter_map(event_of));
    }
    Ok(found)
}

/// The pool's spot instances that EC2 takes back, and those that it has taken: a request stays listed for a while.
async fn reclaimed(client: &Client, of_pool: Filter) -> NoticesAnswer {
    let codes = RECLAIMED.map(str::to_owned).to_vec();
    let taken = Filter::builder().name("status-code").set_values(Some(codes)).build();
    let list = client.describe_spot_instance_requests().filters(of_pool).filters(taken);
    let mut pages = list.into_paginator().send();
    let mut found = ByInstance::new();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| errors::read(&error, ""))?;
        found.extend(page.spot_instance_requests().iter().filter_map(reclaim_of));
    }
    Ok(found)
}

fn reclaim_of(request: &SpotInstanceRequest) -> Option<(String, CloudNotice)> {
    let code = request.status()?.code()?;
    RECLAIMED.contains(&code).then_some(())?;
    let text = RECLAIM.to_owned();
    Some((request.instance_id()?.to_owned(), CloudNotice { text, at_ms: None }))
}

/// The first event of an instance that is not over.
fn event_of(status: &InstanceStatus) -> Option<(String, CloudNotice)> {
    let is_over = |event: &&InstanceStatusEvent| {
        let description = event.description().unwrap_or_default();
        OVER.iter().any(|over| description.starts_with(over))
    };
    let to_come = status.events().iter().filter(|event| !is_over(event));
    let of_codes = to_come.filter(|event| event.code().is_some_and(|code| EVENTS.contains(code)));
    // One without a time comes first: it may be now.
    let first = of_codes.min_by_key(|event| event.not_before().map(DateTime::secs))?;
    let at_ms = first.not_before().and_then(|at| at.to_millis().ok());
    Some((status.instance_id()?.to_owned(), CloudNotice { text: text(first), at_ms }))
}

fn text(event: &InstanceStatusEvent) -> String {
    let what = match event.code() {
        Some(EventCode::InstanceRetirement) => "will be retired by EC2",
        Some(EventCode::InstanceStop) => "will be stopped by EC2",
        Some(EventCode::InstanceReboot | EventCode::SystemReboot) => "will be rebooted by EC2",
        _ => "will be interrupted by maintenance of EC2",
    };
    let at = event.not_before().and_then(|at| Timestamp::from_second(at.secs()).ok());
    let at = at.map(|at| at.strftime(" at %Y-%m-%d %H:%M UTC").to_string()).unwrap_or_default();
    let description = clean_line(event.description().unwrap_or_default().as_bytes(), MAX_DESCRIPTION);
    let why = if description.is_empty() { String::new() } else { format!(": {description}") };
    format!("{what}{at} (scheduled event{why})")
}

/// EC2 takes a spot instance back, as its list of spot requests says, too.
pub(super) const RECLAIM: &str = "will be reclaimed by EC2 (spot)";
/// EC2's rebalance recommendation, which may come long before, or without anything after it.
const REBALANCE: &str = "may be reclaimed by EC2 at any time (spot, rebalance recommendation)";
/// The values of an action.
const ACTIONS: [&str; 3] = ["terminate", "stop", "hibernate"];

/// The notice in the answers of the metadata service. The instance may have forged them: only what EC2 documents counts, and
/// none of their words is repeated.
pub(super) fn announced(answers: &MetadataAnswers) -> Option<&'static str> {
    let has = |key: &str, field: &str, fits: fn(&str) -> bool| {
        let answer = answers.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
        answer.is_some_and(|answer| answer[field].as_str().is_some_and(fits))
    };
    let is_time = |text: &str| text.parse::<jiff::Timestamp>().is_ok();
    if has("spot/instance-action", "action", |text| ACTIONS.contains(&text)) {
        return Some(RECLAIM);
    }
    has("events/recommendations/rebalance", "noticeTime", is_time).then_some(REBALANCE)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::SpotInstanceStatus;
    use greenroom_core::metadata::MetadataService;
    use greenroom_testkit::clock::ManualClock;

    use super::*;

    /// 2026-12-01 14:00 UTC.
    const DECEMBER: i64 = 1_796_133_600;

    fn event(code: EventCode, description: &str, at: Option<i64>) -> InstanceStatusEvent {
        let event = InstanceStatusEvent::builder().code(code).description(description);
        event.set_not_before(at.map(DateTime::from_secs)).build()
    }

    fn notice(events: &[InstanceStatusEvent]) -> Option<String> {
        let status =
            InstanceStatus::builder().instance_id("i-0abc").set_events(Some(events.to_vec())).build();
        let (id, notice) = event_of(&status)?;
        assert_eq!(id, "i-0abc");
        Some(notice.text)
    }

    #[test]
    fn an_event_is_told_in_words_that_follow_its_name() {
        let degraded = "The instance is running on degraded hardware";
        for (code, description, at, expected) in [
            (
                EventCode::InstanceRetirement,
                degraded,
                Some(DECEMBER),
                "will be retired by EC2 at 2026-12-01 14:00 UTC (scheduled event: The instance is running on \
                 degraded hardware)",
            ),
            (EventCode::InstanceStop, "", None, "will be stopped by EC2 (scheduled event)"),
            (
                EventCode::SystemReboot,
                " two\nlines ",
                None,
                "will be rebooted by EC2 (scheduled event: two lines)",
            ),
            (EventCode::InstanceReboot, "", None, "will be rebooted by EC2 (scheduled event)"),
            (
                EventCode::SystemMaintenance,
                "",
                Some(DECEMBER),
                "will be interrupted by maintenance of EC2 at 2026-12-01 14:00 UTC (scheduled event)",
            ),
        ] {
            assert_eq!(notice(&[event(code, description, at)]).as_deref(), Some(expected));
        }
        let long = notice(&[event(EventCode::InstanceStop, &"x".repeat(999), None)]).unwrap();
        assert!(long.chars().count() < 200, "{long}");
    }

    #[test]
    fn the_first_event_that_is_not_over_counts() {
        let done = event(EventCode::InstanceStop, "[Completed] moved", Some(DECEMBER - 9));
        let canceled = event(EventCode::InstanceStop, "[Canceled] moved", Some(DECEMBER - 9));
        let reboot = event(EventCode::SystemReboot, "", Some(DECEMBER));
        let later = event(EventCode::InstanceRetirement, "", Some(DECEMBER + 60));
        let new = event(EventCode::from("instance-something-new"), "", None);
        assert_eq!(notice(&[]), None);
        assert_eq!(notice(&[done.clone(), canceled.clone(), new]), None);
        let first = notice(&[later, done, reboot, canceled]).unwrap();
        assert!(first.starts_with("will be rebooted by EC2 at 2026-12-01 14:00 UTC"), "{first}");
    }

    #[test]
    fn a_spot_instance_is_reclaimed_by_the_code_of_its_request() {
        let request = |code: &str| {
            let status = SpotInstanceStatus::builder().code(code).build();
            SpotInstanceRequest::builder().instance_id("i-0abc").status(status).build()
        };
        let text = "will be reclaimed by EC2 (spot)".to_owned();
        let expected = ("i-0abc".to_owned(), CloudNotice { text, at_ms: None });
        for code in RECLAIMED {
            assert_eq!(reclaim_of(&request(code)), Some(expected.clone()), "{code}");
        }
        for code in ["fulfilled", "instance-terminated-by-user", "request-canceled-and-instance-running"] {
            assert_eq!(reclaim_of(&request(code)), None, "{code}");
        }
    }

    fn failed(class: ErrorClass) -> NoticesAnswer {
        Err(ProviderError::new(class, "no"))
    }

    #[tokio::test]
    async fn a_call_is_made_again_only_after_a_while() {
        let clock = ManualClock::default();
        let source = NoticeList::default();
        let calls = Cell::new(0);
        let ask = async |answer: NoticesAnswer| {
            let call = async {
                calls.set(calls.get() + 1);
                answer
            };
            source.update(&clock, call).await;
            (calls.get(), source.of("i-1"))
        };
        let notice = CloudNotice { text: "will go".to_owned(), at_ms: None };
        let fresh = || Ok(ByInstance::from([("i-1".to_owned(), notice.clone())]));
        let told = Some(notice.clone());
        assert_eq!(ask(fresh()).await, (1, told.clone()));
        clock.pass(INTERVAL / 2);
        assert_eq!(ask(Ok(ByInstance::new())).await, (1, told.clone()));
        clock.pass(INTERVAL / 2);
        assert_eq!(ask(failed(ErrorClass::Unknown)).await, (2, told.clone()), "it is still announced");
        clock.pass(INTERVAL);
        assert_eq!(ask(fresh()).await, (2, told.clone()));
        clock.pass(PAUSE);
        assert_eq!(ask(failed(ErrorClass::Denied)).await, (3, None));
        clock.pass(PAUSE);
        assert_eq!(ask(fresh()).await, (3, None));
        clock.pass(PAUSE_DENIED);
        assert_eq!(ask(fresh()).await, (4, told));
    }

    const TIME: &str = "2026-12-01T14:00:00Z";

    fn announcement(action: &str, rebalance: &str) -> Option<&'static str> {
        let keys = MetadataService::AwsEc2.keys().iter().map(|key| (*key).to_owned());
        let answers = keys.zip([action, rebalance].map(str::to_owned));
        announced(&answers.filter(|(_, answer)| !answer.is_empty()).collect())
    }

    #[test]
    fn what_ec2_documents_is_a_notice() {
        for action in ACTIONS {
            let answer = format!(r#"{{"action": "{action}", "time": "{TIME}"}}"#);
            assert_eq!(announcement(&answer, ""), Some(RECLAIM));
            assert_eq!(announcement(&answer, &format!(r#"{{"noticeTime": "{TIME}"}}"#)), Some(RECLAIM));
        }
        assert_eq!(announcement("", &format!(r#"{{"noticeTime": "{TIME}"}}"#)), Some(REBALANCE));
        assert_eq!(announcement("", ""), None);
    }

    #[test]
    fn all_else_is_none() {
        for rubbish in ["terminate", "{", "[]", "{}", "null", r#"{"action": 1}"#, r#"{"action": "rm -rf"}"#] {
            assert_eq!(announcement(rubbish, rubbish), None, "{rubbish}");
        }
        for rubbish in [r#"{"noticeTime": "soon"}"#, r#"{"noticeTime": 5}"#, r#"{"action": "terminate"}"#] {
            assert_eq!(announcement("", rubbish), None, "{rubbish}");
        }
    }
}
