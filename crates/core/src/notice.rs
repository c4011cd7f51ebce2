//! Notices for operators: which conditions are told, when, and for how long a notice is kept.
//!
//! A condition is told when it begins, and not again within `min_interval`. Notices wait in a bounded queue until they are
//! delivered, with a growing pause after each failure. Nothing decides by notices.

pub mod conditions;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::time::Stamp;

/// Notices that wait for delivery; further ones replace the oldest.
pub const MOST: usize = 100;
/// Tries to deliver one notice.
pub const MOST_TRIES: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The kind of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoticeKind {
    BreakerOpen,
    OrphanFound,
    HostOutOfService,
    KeeperRestarts,
}

impl NoticeKind {
    pub const ALL: [Self; 4] =
        [Self::BreakerOpen, Self::OrphanFound, Self::HostOutOfService, Self::KeeperRestarts];

    pub fn word(self) -> &'static str {
        match self {
            Self::BreakerOpen => "breaker-open",
            Self::OrphanFound => "orphan-found",
            Self::HostOutOfService => "host-out-of-service",
            Self::KeeperRestarts => "keeper-restarts",
        }
    }
}

/// Something that an operator should know, as long as it is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub kind: NoticeKind,
    /// `None`: it concerns no pool.
    pub pool: Option<String>,
    /// The static host.
    pub instance: Option<String>,
    /// A sentence.
    pub message: String,
    /// The remedy, in the imperative.
    pub help: String,
}

impl Condition {
    /// Tells it apart from others. A message may change while the condition lasts.
    fn key(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{} {} {}", self.kind.word(), part(&self.pool), part(&self.instance))
    }
}

/// A condition that began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Counts notices of this state directory, from 1. A repeated delivery has the same number.
    pub number: u64,
    pub at: Stamp,
    pub condition: Condition,
    #[serde(default)]
    pub tries: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    at: Stamp,
    /// The condition is over.
    over: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivered: Option<Stamp>,
}

/// The notices that were delivered, and those that wait. Recorded in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notices {
    #[serde(default)]
    told: BTreeMap<String, Told>,
    #[serde(default)]
    queue: VecDeque<Notice>,
    #[serde(default)]
    last_number: u64,
    /// Notices that were given up since the last delivery.
    #[serde(default)]
    dropped: u64,
    /// No delivery before this.
    #[serde(default)]
    not_before: Option<Stamp>,
    /// The failure of the last delivery; `None`: it did not fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailedDelivery>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_delivery: Option<Delivery>,
}

/// The last notice that was delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub at: Stamp,
    pub number: u64,
    pub kind: NoticeKind,
    pub pool: Option<String>,
}

/// The state of a notice's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeState {
    Waiting,
    Delivered(Stamp),
    GivenUp,
}

/// A delivery that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDelivery {
    pub at: Stamp,
    /// The problem, without a secret.
    pub problem: String,
}

impl Notices {
    /// Takes all conditions that hold now; true if anything changed.
    pub fn observe(&mut self, conditions: &[Condition], min_interval: Duration, now: Stamp) -> bool {
        let before = self.clone();
        for condition in conditions {
            let told = self.told.get(&condition.key());
            if told.is_some_and(|told| !told.over || now.age_of(told.at) < min_interval) {
                continue;
            }
            self.told.insert(condition.key(), Told { at: now, over: false, delivered: None });
            self.last_number += 1;
            let number = self.last_number;
            let condition = condition.clone();
            self.queue.push_back(Notice { number, at: now, condition, tries: 0 });
            if self.queue.len() > MOST {
                self.queue.pop_front();
                self.dropped += 1;
            }
        }
        let keys: Vec<String> = conditions.iter().map(Condition::key).collect();
        self.told.retain(|key, told| {
            if !keys.contains(key) {
                told.over = true;
            } else if told.over && now.age_of(told.at) >= min_interval {
                told.over = false;
            }
            !told.over || now.age_of(told.at) < min_interval
        });
        *self != before
    }

    /// The notice to deliver now, and how many were given up before it.
    pub fn due(&self, now: Stamp) -> Option<(&Notice, u64)> {
        let rests = self.not_before.is_some_and(|until| !now.reached(until.seen_from(now)));
        self.queue.front().filter(|_| !rests).map(|notice| (notice, self.dropped))
    }

    /// Number of notices that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// The first notice was delivered.
    pub fn delivered(&mut self, now: Stamp) {
        if let Some(Notice { number, condition, .. }) = self.queue.pop_front() {
            if let Some(told) = self.told.get_mut(&condition.key()) {
                told.delivered = Some(now);
            }
            let Condition { kind, pool, .. } = condition;
            self.last_delivery = Some(Delivery { at: now, number, kind, pool });
        }
        self.dropped = 0;
        self.not_before = None;
        self.last_failure = None;
    }

    pub fn last_delivery(&self) -> Option<&Delivery> {
        self.last_delivery.as_ref()
    }

    /// The events that last in a pool and were told, each with what became of its notice.
    pub fn of_pool(&self, pool: &str) -> Vec<(&str, NoticeState)> {
        let lasting = self.told.iter().filter(|(_, told)| !told.over);
        let here = lasting.filter_map(|(key, told)| {
            let (event, rest) = key.split_once(' ')?;
            let waits = || self.queue.iter().any(|notice| notice.condition.key() == *key);
            let state = match told.delivered {
                Some(at) => NoticeState::Delivered(at),
                None if waits() => NoticeState::Waiting,
                None => NoticeState::GivenUp,
            };
            (rest.split(' ').next() == Some(pool)).then_some((event, state))
        });
        here.collect()
    }

    /// The failure of the last delivery, and the number of notices that were given up since the last success.
    pub fn last_failure(&self) -> Option<(&FailedDelivery, u64)> {
        self.last_failure.as_ref().map(|failure| (failure, self.dropped))
    }

    /// The first notice was not delivered. Returns it if it is given up.
    pub fn failed(&mut self, now: Stamp, problem: &str) -> Option<Notice> {
        self.last_failure = Some(FailedDelivery { at: now, problem: problem.to_owned() });
        let first = self.queue.front_mut()?;
        first.tries += 1;
        let pause = FIRST_PAUSE.saturating_mul(1 << (first.tries - 1).min(16)).min(LONGEST_PAUSE);
        self.not_before = Some(now.plus(pause));
        if first.tries < MOST_TRIES {
            return None;
        }
        self.dropped += 1;
        self.queue.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::NOW;

    const MINUTE: Duration = Duration::from_mins(1);

    fn condition(pool: &str) -> Condition {
        let message = "launches are paused".to_owned();
        let help = "run `greenroom explain`".to_owned();
        Condition {
            kind: NoticeKind::BreakerOpen,
            pool: Some(pool.to_owned()),
            instance: None,
            message,
            help,
        }
    }

    fn observe(notices: &mut Notices, pools: &[&str], after: Duration) -> usize {
        let conditions: Vec<Condition> = pools.iter().map(|pool| condition(pool)).collect();
        let before = notices.waiting();
        notices.observe(&conditions, MINUTE * 10, NOW.plus(after));
        notices.waiting() - before
    }

    #[test]
    fn a_condition_is_told_when_it_begins_and_again_after_the_interval() {
        let mut notices = Notices::default();
        assert_eq!(observe(&mut notices, &["a"], MINUTE), 1);
        assert_eq!(observe(&mut notices, &["a", "b"], MINUTE * 2), 1, "another pool");
        assert_eq!(observe(&mut notices, &["a"], MINUTE * 60), 0, "it lasts");
        assert_eq!(observe(&mut notices, &[], MINUTE * 61), 0);
        assert_eq!(observe(&mut notices, &["a"], MINUTE * 62), 1, "the last one was an hour ago");
        assert_eq!(observe(&mut notices, &[], MINUTE * 63), 0);
        assert_eq!(observe(&mut notices, &["a"], MINUTE * 64), 0, "it flaps");
        assert_eq!(observe(&mut notices, &["a"], MINUTE * 73), 1, "it flapped, and lasts");
        assert_eq!(observe(&mut notices, &["a"], MINUTE * 99), 0);
    }

    #[test]
    fn what_is_over_is_forgotten_after_the_interval_and_only_changes_count() {
        let mut notices = Notices::default();
        let interval = MINUTE * 10;
        let mut changes = |conditions: &[Condition], minute: u32| {
            notices.observe(conditions, interval, NOW.plus(MINUTE * minute))
        };
        assert!(changes(&[condition("a")], 1), "it begins");
        assert!(!changes(&[condition("a")], 2), "it lasts");
        assert!(changes(&[], 3), "it is over");
        assert!(!changes(&[], 10), "its interval is not");
        assert!(changes(&[], 11), "it is forgotten");
        assert!(!changes(&[], 12), "nothing is left");
    }

    #[test]
    fn a_failed_delivery_waits_longer_each_time_and_is_given_up() {
        let mut notices = Notices::default();
        observe(&mut notices, &["a", "b"], Duration::ZERO);
        let mut now = NOW;
        for tries in 1..MOST_TRIES {
            assert_eq!(notices.failed(now, "refused"), None, "{tries}");
            let pause = FIRST_PAUSE.saturating_mul(1 << (tries - 1)).min(LONGEST_PAUSE);
            assert_eq!(
                notices.due(now.plus(pause.saturating_sub(Duration::from_millis(1)))),
                None,
                "{tries}"
            );
            assert!(notices.due(now.plus(pause)).is_some(), "{tries}");
            now = now.plus(LONGEST_PAUSE);
            assert_eq!(notices.due(now).expect("it is due").0.tries, tries);
        }
        assert_eq!(notices.failed(now, "refused").expect("it is given up").number, 1);
        now = now.plus(LONGEST_PAUSE);
        let (next, dropped) = notices.due(now).expect("the next one");
        assert_eq!((next.number, dropped), (2, 1));
        assert_eq!(
            notices.last_failure().map(|(failure, dropped)| (failure.problem.as_str(), dropped)),
            Some(("refused", 1))
        );
        notices.delivered(now);
        assert_eq!(notices.last_failure(), None);
        assert_eq!((notices.waiting(), notices.dropped), (0, 0));
    }

    #[test]
    fn a_pool_shows_what_became_of_the_notices_of_what_lasts() {
        let mut notices = Notices::default();
        observe(&mut notices, &["a"], Duration::ZERO);
        let event = NoticeKind::BreakerOpen.word();
        assert_eq!(notices.of_pool("a"), [(event, NoticeState::Waiting)]);
        assert_eq!(notices.of_pool("b"), []);
        notices.delivered(NOW);
        assert_eq!(notices.of_pool("a"), [(event, NoticeState::Delivered(NOW))]);
        observe(&mut notices, &["a", "b"], MINUTE);
        for _ in 0..MOST_TRIES {
            notices.failed(NOW, "refused");
        }
        assert_eq!(notices.of_pool("b"), [(event, NoticeState::GivenUp)]);
        observe(&mut notices, &["b"], MINUTE * 2);
        assert_eq!(notices.of_pool("a"), [], "it is over");
    }

    #[test]
    fn so_many_are_kept_and_the_others_counted() {
        let mut notices = Notices::default();
        let pools: Vec<String> = (0..MOST + 7).map(|number| format!("p{number}")).collect();
        let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
        observe(&mut notices, &pools, Duration::ZERO);
        assert_eq!(notices.waiting(), MOST);
        let (first, dropped) = notices.due(NOW).expect("it is due");
        assert_eq!((first.number, dropped), (8, 7));
    }

    #[test]
    fn the_file_keeps_everything() {
        let mut notices = Notices::default();
        observe(&mut notices, &["a"], Duration::ZERO);
        notices.failed(NOW, "refused");
        let text = serde_json::to_string(&notices).expect("it is written");
        assert_eq!(serde_json::from_str::<Notices>(&text).expect("it is read"), notices);
        for kind in NoticeKind::ALL {
            assert_eq!(serde_json::to_string(&kind).expect("a word"), format!("\"{}\"", kind.word()));
        }
    }
}
