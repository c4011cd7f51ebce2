//! Moments and ages as operators read them.

use std::time::Duration;

use greenroom_core::time::{Pretty, Stamp};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The present moment and the time zone of the reader.
#[derive(Debug, Clone)]
pub struct When {
    now: Stamp,
    zone: TimeZone,
}

impl When {
    /// Moments in the time zone of the runner host, or of `TZ`.
    pub fn local(now: Stamp) -> Self {
        Self::in_zone(now, TimeZone::system())
    }

    pub fn in_zone(now: Stamp, zone: TimeZone) -> Self {
        Self { now, zone }
    }

    pub fn now(&self) -> Stamp {
        self.now
    }

    /// `14:03:07`, preceded by the date on any other day than today.
    pub fn clock(&self, at: Stamp) -> String {
        self.written(at, "%H:%M:%S")
    }

    /// `14:03`, preceded by the date on any other day than today.
    pub fn minute(&self, at: Stamp) -> String {
        self.written(at, "%H:%M")
    }

    fn written(&self, at: Stamp, time: &str) -> String {
        let at = self.zoned(at);
        let now = self.zoned(self.now);
        if at.date() == now.date() {
            return at.strftime(time).to_string();
        }
        at.strftime(&format!("%Y-%m-%d {time}")).to_string()
    }

    fn zoned(&self, at: Stamp) -> jiff::Zoned {
        timestamp(at).to_zoned(self.zone.clone())
    }

    /// The moment this long ago.
    pub fn before(&self, age: Duration) -> Stamp {
        self.now.minus(age)
    }

    /// The time that has passed since a moment, in whole seconds.
    pub fn age(&self, at: Stamp) -> Pretty {
        whole(self.now.since(at))
    }

    /// `in 4m 12s`, or `now` if it has passed.
    pub fn left(&self, at: Stamp) -> String {
        match self.now.until(at) {
            Duration::ZERO => "now".to_owned(),
            left => format!("in {}", whole(left)),
        }
    }

    /// `until 14:08:07 (in 4m 12s)`.
    pub fn until(&self, at: Stamp) -> String {
        format!("until {} ({})", self.clock(at), self.left(at))
    }
}

/// A moment as scripts read it: RFC 3339 in UTC, in whole seconds.
pub fn rfc3339(at: Stamp) -> String {
    timestamp(at).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The duration without fractions of a second, unless there is nothing else.
pub fn whole(duration: Duration) -> Pretty {
    match duration.as_secs() {
        0 => Pretty(duration),
        seconds => Pretty(Duration::from_secs(seconds)),
    }
}

/// A wall clock beyond the years of the calendar is shown as the last of them.
fn timestamp(at: Stamp) -> Timestamp {
    let edge = if at.wall_ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(at.wall_ms).unwrap_or(edge)
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn at(utc: &str) -> Stamp {
        let wall: Timestamp = utc.parse().unwrap();
        let wall_ms = wall.as_millisecond();
        Stamp { wall_ms, manager: ManagerId(1), boot: BootId(1), uptime_ms: u64::try_from(wall_ms).unwrap() }
    }

    fn when() -> When {
        When::in_zone(at("2026-11-20T22:30:00Z"), TimeZone::get("Europe/Berlin").unwrap())
    }

    #[test]
    fn today_is_a_time_and_any_other_day_has_its_date() {
        let when = when();
        assert_eq!(when.clock(at("2026-11-20T13:03:07Z")), "14:03:07");
        assert_eq!(when.minute(at("2026-11-20T23:03:07Z")), "2026-11-21 00:03");
    }

    #[test]
    fn ages_and_what_is_left_come_in_whole_seconds() {
        let when = when();
        let then = Stamp { uptime_ms: when.now().uptime_ms - 192_749, ..when.now() };
        assert_eq!(when.age(then).to_string(), "3m 12s");
        assert_eq!(when.age(when.now()).to_string(), "0 ms");
        assert_eq!(when.left(then), "now");
        let due = when.now().plus(Duration::from_secs(252));
        assert_eq!(when.until(due), "until 23:34:12 (in 4m 12s)");
    }

    #[test]
    fn scripts_get_utc() {
        assert_eq!(rfc3339(at("2026-11-20T13:03:07.999Z")), "2026-11-20T13:03:07Z");
        let far = Stamp { wall_ms: i64::MAX, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
        assert!(rfc3339(far).starts_with("9999-"));
    }
}
