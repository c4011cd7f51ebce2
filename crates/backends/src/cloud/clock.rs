//! A cloud's clock, compared with the runner host's.

use std::time::SystemTime;

/// The deviation above which `doctor` reports a clock: half of the five minutes that EC2 accepts.
pub const OFF_S: u64 = 150;

/// The cloud's clock minus the runner host's, in seconds, by the `Date` of an answer; `None` if the date is not valid.
pub fn ahead_s(date: &str, now: SystemTime) -> Option<i64> {
    let cloud_s = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let host_s = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(cloud_s.saturating_sub_unsigned(host_s))
}

/// The runner host's deviation, worded to follow "the runner host's clock is"; `None` within the limit.
pub fn off(ahead_s: Option<i64>) -> Option<String> {
    let ahead = ahead_s.filter(|ahead| ahead.unsigned_abs() > OFF_S)?;
    Some(format!("{} s {}", ahead.unsigned_abs(), if ahead > 0 { "behind" } else { "ahead of" }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_date_is_compared_with_ours() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(ahead_s("Thu, 01 Jan 1970 00:20:00 GMT", now), Some(200));
        assert_eq!(ahead_s("Thu, 01 Jan 1970 00:10:00 GMT", now), Some(-400));
        assert_eq!(ahead_s("tomorrow", now), None);
    }

    #[test]
    fn seconds_that_pass_on_the_way_are_no_matter() {
        for (ahead, expected) in [
            (None, None),
            (Some(-150), None),
            (Some(151), Some("151 s behind")),
            (Some(-151), Some("151 s ahead of")),
        ] {
            assert_eq!(off(ahead).as_deref(), expected);
        }
    }
}
