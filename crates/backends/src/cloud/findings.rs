//! Findings of `doctor` that several clouds share: their sentences, the headroom of quotas, and the deviation of clocks.

use std::time::SystemTime;

use greenroom_core::ids::{Generation, InstanceId, OwnerId, PoolName};
use greenroom_core::inventory::Tags;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::{Demand, InstanceKeys, LaunchRequest};

/// The deviation above which `doctor` reports a clock, in seconds: half of the five minutes that EC2 accepts.
const MAX_CLOCK_DEVIATION_S: u64 = 150;

/// The findings about one pool, in the order in which checks add them.
#[derive(Debug)]
pub struct PoolFindings<'a> {
    pool: &'a PoolName,
    found: Vec<Finding>,
}

impl<'a> PoolFindings<'a> {
    pub fn new(pool: &'a PoolName) -> Self {
        Self { pool, found: Vec::new() }
    }

    pub fn into_vec(self) -> Vec<Finding> {
        self.found
    }

    pub fn extend(&mut self, more: impl IntoIterator<Item = Finding>) {
        self.found.extend(more);
    }

    pub fn add(
        &mut self,
        code: &'static str,
        severity: Severity,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let message = message.into();
        let remedy = Some(remedy.into());
        self.found.push(Finding { code, severity, message, remedy });
    }

    /// Reports a pool whose instances have no maximum lifetime. `loss`: what they do if the runner host is lost; `effect`: what
    /// a limit changes.
    pub fn check_lifetime(&mut self, code: &'static str, demand: &Demand, loss: &str, effect: &str) {
        if demand.max_lifetime.is_some() {
            return;
        }
        let pool = self.pool;
        let message =
            format!("`max_lifetime` of pool `{pool}` is 0: if this runner host is lost for good, its {loss}");
        let remedy = format!("remove `max_lifetime` or set a limit: {effect}");
        self.add(code, Severity::Warning, message, remedy);
    }

    /// Reports a runner host whose clock deviates from a cloud's. `ahead_s`: the cloud's clock minus the runner host's.
    /// `service`: whose clock that is, and the consequence.
    pub fn check_clock(
        &mut self,
        code: &'static str,
        severity: Severity,
        ahead_s: Option<i64>,
        service: &str,
    ) {
        if let Some(deviation) = clock_deviation(ahead_s) {
            let message = format!("the runner host's clock is {deviation} {service}");
            self.add(code, severity, message, "synchronize the clock with NTP: `timedatectl set-ntp true`");
        }
    }

    /// Reports that no call is possible.
    pub fn unreachable(&mut self, code: &'static str, service: &str, error: &str, remedy: &str) {
        let message = format!("cannot query {service} for pool `{}`: {error}", self.pool);
        self.add(code, Severity::Error, message, remedy);
    }

    /// Reports calls that a pool needs and may not make, by their purpose.
    pub fn denied_calls(&mut self, code: &'static str, denied: &[(&'static str, String)], remedy: &str) {
        for (purpose, error) in denied {
            let message = format!("pool `{}` is not allowed to {purpose}: {error}", self.pool);
            self.add(code, Severity::Error, message, remedy);
        }
    }

    /// Reports offerings that a launch could not use, with the service's errors.
    pub fn refused_offerings(
        &mut self,
        code: &'static str,
        service: &str,
        refused: &[(String, String)],
        remedy: &str,
    ) {
        for (offerings, error) in group_by_message(refused) {
            let message = format!("{service} would refuse {offerings} of pool `{}`: {error}", self.pool);
            self.add(code, Severity::Error, message, remedy);
        }
    }

    /// Reports quotas that allow fewer machines than the pool may launch.
    pub fn check_quotas(
        &mut self,
        code: &'static str,
        headroom: &[QuotaHeadroom],
        demand: &Demand,
        remedy: &str,
    ) {
        if let Some(message) = shortage(self.pool, headroom, further_instances(demand)) {
            self.add(code, Severity::Warning, message, remedy);
        }
    }

    /// Reports calls that only `doctor` needs and may not make.
    pub fn not_checked(&mut self, code: &'static str, purposes: &[&'static str], remedy: &str) {
        for purpose in purposes {
            let message = format!(
                "doctor is not allowed to {purpose} for pool `{}`; the pool itself works without",
                self.pool
            );
            self.add(code, Severity::Note, message, remedy);
        }
    }
}

/// The number of instances that a pool may launch in addition to its present ones.
pub fn further_instances(demand: &Demand) -> u32 {
    demand.max_instances.saturating_sub(demand.recorded)
}

/// Refusals grouped by their message: a missing image causes one for every offering.
pub fn group_by_message(refused: &[(String, String)]) -> Vec<(String, &str)> {
    let mut grouped: Vec<(Vec<&str>, &str)> = Vec::new();
    for (offering, message) in refused {
        match grouped.iter_mut().find(|(_, known)| known == message) {
            Some((offerings, _)) => offerings.push(offering),
            None => grouped.push((vec![offering], message)),
        }
    }
    let named = |offerings: &[&str]| match offerings {
        [first, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len()),
        _ => offerings.concat(),
    };
    grouped.into_iter().map(|(offerings, message)| (named(&offerings), message)).collect()
}

/// The headroom of a pool's quotas in one place, or for one kind of machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaHeadroom {
    /// The number of further machines.
    pub machines: u32,
    /// The text after that number: `in us-east1 (CPUS)`.
    pub of: String,
}

/// The number of machines, `each` using that much of a quota, that fit into the rest of it.
#[must_use]
pub fn fits(left: f64, each: u32) -> u32 {
    let machines = (left / f64::from(each.max(1))).floor().clamp(0.0, f64::from(u32::MAX));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds")]
    let machines = machines as u32;
    machines
}

/// The message if fewer machines fit than the pool may launch. An empty `headroom` means that no limit is known.
fn shortage(pool: &PoolName, headroom: &[QuotaHeadroom], wanted: u32) -> Option<String> {
    let fit = headroom.iter().fold(0_u32, |sum, one| sum.saturating_add(one.machines));
    if headroom.is_empty() || fit >= wanted {
        return None;
    }
    let each: Vec<_> = headroom.iter().map(|one| format!("{} {}", one.machines, one.of)).collect();
    let each = each.join(", ");
    Some(format!(
        "quotas allow {fit} more instances of pool `{pool}`, but the pool may launch {wanted} more: {each}"
    ))
}

/// The launch request of dry runs.
pub fn sample_request(pool: &PoolName) -> LaunchRequest {
    let generation = Generation::new("doctor");
    let instance = InstanceId::launched(pool, &generation, 0);
    LaunchRequest {
        token: instance.token(1),
        instance,
        tags: Tags { pool: pool.clone(), owner: OwnerId::new("doctor"), generation, number: 0 },
        offering: None,
        keys: InstanceKeys {
            authorized_key: "ssh-ed25519 AAAA".to_owned(),
            host_key: "none".to_owned(),
            host_key_public: "ssh-ed25519 AAAA".to_owned(),
        },
        lifetime: None,
        order: None,
    }
}

/// A cloud's clock minus the runner host's, in seconds, by the `Date` of an answer; `None` if the date is not valid.
pub fn clock_ahead_s(date: &str, now: SystemTime) -> Option<i64> {
    let cloud_s = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let host_s = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    Some(cloud_s.saturating_sub_unsigned(host_s))
}

/// The runner host's deviation, such as `151 s behind`; `None` within the limit.
fn clock_deviation(ahead_s: Option<i64>) -> Option<String> {
    let ahead = ahead_s.filter(|ahead| ahead.unsigned_abs() > MAX_CLOCK_DEVIATION_S)?;
    Some(format!("{} s {}", ahead.unsigned_abs(), if ahead > 0 { "behind" } else { "ahead of" }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refusals_in_the_same_words_are_one() {
        let refused = [("a", "no image"), ("b", "no type"), ("c", "no image")];
        let refused = refused.map(|(offering, message)| (offering.to_owned(), message.to_owned()));
        let wanted = [("a and 1 more".to_owned(), "no image"), ("b".to_owned(), "no type")];
        assert_eq!(group_by_message(&refused), wanted);
    }

    #[test]
    fn a_machine_fits_whole_or_not_at_all() {
        for (left, each, machines) in
            [(7.9, 4, 1), (8.0, 4, 2), (3.0, 4, 0), (-2.0, 4, 0), (5.0, 0, 5), (f64::INFINITY, 1, u32::MAX)]
        {
            assert_eq!(fits(left, each), machines, "{left} / {each}");
        }
    }

    #[test]
    fn rooms_add_up() {
        let pool = PoolName::new("linux");
        let room = |machines, of: &str| QuotaHeadroom { machines, of: of.to_owned() };
        let rooms = [room(2, "in a (CPUS)"), room(3, "in b (CPUS)")];
        assert_eq!(shortage(&pool, &rooms, 5), None);
        let message = shortage(&pool, &rooms, 6);
        let wanted = "quotas allow 5 more instances of pool `linux`, but the pool may launch 6 more: 2 in a \
                      (CPUS), 3 in b (CPUS)";
        assert_eq!(message.as_deref(), Some(wanted));
        assert_eq!(shortage(&pool, &[], 6), None, "no end is known");
        let many = [room(u32::MAX, "in a"), room(1, "in b")];
        assert_eq!(shortage(&pool, &many, u32::MAX), None);
    }

    #[test]
    fn a_date_is_compared_with_ours() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(clock_ahead_s("Thu, 01 Jan 1970 00:20:00 GMT", now), Some(200));
        assert_eq!(clock_ahead_s("Thu, 01 Jan 1970 00:10:00 GMT", now), Some(-400));
        assert_eq!(clock_ahead_s("tomorrow", now), None);
    }

    #[test]
    fn seconds_that_pass_on_the_way_are_no_matter() {
        for (ahead, expected) in [
            (None, None),
            (Some(-150), None),
            (Some(151), Some("151 s behind")),
            (Some(-151), Some("151 s ahead of")),
        ] {
            assert_eq!(clock_deviation(ahead).as_deref(), expected);
        }
    }
}
