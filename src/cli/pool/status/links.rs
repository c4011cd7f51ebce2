//! The links of a pool's instances, for `pool status` and `doctor`.

use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::time::Stamp;
use greenroom_ssh::link::{Figures, FoundLink, LinkStatus};
use serde::Serialize;

use crate::cli::fields;
use crate::cli::ui::Rows;
use crate::cli::when::{When, whole};

/// The width, in columns, from which the time and the process are shown, too.
const ROOMY: usize = 100;

/// The process that holds the connection of a job slot.
#[derive(Debug, Serialize)]
pub(super) struct LinkView {
    /// The job slot of the instance, from 1.
    slot: u32,
    pid: Option<u32>,
    /// `connecting`, `idle`, `shell-waits`, `busy`, `closing` or `unresponsive`; figures are null in the last two.
    #[serde(serialize_with = "fields::word")]
    state: &'static str,
    #[serde(serialize_with = "fields::moment")]
    connected: Option<Stamp>,
    #[serde(serialize_with = "fields::seconds")]
    connected_for_s: Option<Duration>,
    /// The round trip to the instance, in microseconds.
    round_trip_us: Option<u64>,
    /// Memory of its own, in bytes.
    memory_bytes: Option<u64>,
    /// Number of stages that it has run.
    stages: Option<u64>,
}

impl LinkView {
    pub(super) fn of(found: &FoundLink, when: &When) -> Self {
        let (state, figures) = match &found.answer {
            LinkStatus::Figures(figures) => (state(figures), Some(figures)),
            LinkStatus::Closing => ("closing", None),
            LinkStatus::Unresponsive => ("unresponsive", None),
        };
        let connected_for = figures.and_then(connected_for);
        Self {
            slot: found.slot + 1,
            pid: found.pid,
            state,
            connected: connected_for.map(|age| when.before(age)),
            connected_for_s: connected_for,
            round_trip_us: figures.and_then(|figures| figures.round_trip_us),
            memory_bytes: figures.and_then(|figures| figures.memory),
            stages: figures.map(|figures| figures.stages),
        }
    }
}

fn state(figures: &Figures) -> &'static str {
    match figures {
        Figures { connected_ms: None, .. } => "connecting",
        Figures { busy: true, .. } => "busy",
        Figures { shell_waits: true, .. } => "shell waits",
        Figures { .. } => "idle",
    }
}

fn connected_for(figures: &Figures) -> Option<Duration> {
    figures.connected_ms.map(Duration::from_millis)
}

/// The command that kills a link that does not respond.
pub(in crate::cli) fn end(pid: u32) -> String {
    format!("kill -9 {pid}")
}

/// A sentence with the number of links, their memory, and how many do not respond.
pub(in crate::cli) fn summary<'a>(links: impl Iterator<Item = &'a FoundLink>) -> String {
    let answers: Vec<&LinkStatus> = links.map(|link| &link.answer).collect();
    if answers.is_empty() {
        return "none".to_owned();
    }
    let figures = || {
        answers.iter().filter_map(|answer| match answer {
            LinkStatus::Figures(figures) => Some(figures),
            LinkStatus::Closing | LinkStatus::Unresponsive => None,
        })
    };
    let mut parts = vec![answers.len().to_string()];
    let taken: u64 = figures().filter_map(|figures| figures.memory).sum();
    if taken > 0 {
        parts.push(format!("{} of memory", memory(taken)));
    }
    if let Some(longest) = figures().filter_map(connected_for).max() {
        parts.push(format!("the oldest connected for {}", whole(longest)));
    }
    let trips: Vec<u64> = figures().filter_map(|figures| figures.round_trip_us).collect();
    if let (Some(least), Some(most)) = (trips.iter().min(), trips.iter().max()) {
        let least = round_trip(*least);
        let most = round_trip(*most);
        parts.push(if least == most {
            format!("round trip {most}")
        } else {
            format!("round trips of {least} to {most}")
        });
    }
    match answers.iter().filter(|answer| matches!(answer, LinkStatus::Unresponsive)).count() {
        0 => {}
        1 => parts.push("1 does not respond".to_owned()),
        silent => parts.push(format!("{silent} do not respond")),
    }
    parts.join(", ")
}

/// A row for each link, and one with dashes for each instance that has none.
pub(super) fn table<'a>(
    instances: impl Iterator<Item = (&'a InstanceId, &'a [LinkView])>,
    when: &When,
    width: usize,
) -> String {
    let is_roomy = width >= ROOMY;
    let mut header = vec!["LINK OF", "SLOT", "FOR", "ROUND TRIP", "MEMORY", "STAGES", "STATE"];
    if is_roomy {
        header.insert(2, "PID");
        header.insert(3, "SINCE");
    }
    let mut rows = Rows::new(&header);
    for (instance, links) in instances {
        if links.is_empty() {
            let dashes = std::iter::repeat_n("-".to_owned(), header.len() - 1);
            rows.row(std::iter::once(instance.to_string()).chain(dashes).collect(), Vec::new());
        }
        for link in links {
            let mut cells = vec![
                instance.to_string(),
                link.slot.to_string(),
                or_dash(link.connected_for_s.map(whole)),
                or_dash(link.round_trip_us.map(round_trip)),
                or_dash(link.memory_bytes.map(memory)),
                or_dash(link.stages),
                link.state.to_owned(),
            ];
            if is_roomy {
                cells.insert(2, or_dash(link.pid));
                cells.insert(3, or_dash(link.connected.map(|since| when.clock(since))));
            }
            rows.row(cells, beneath(link));
        }
    }
    rows.render(width)
}

fn beneath(link: &LinkView) -> Vec<String> {
    match (link.state, link.pid) {
        ("unresponsive", Some(pid)) => {
            vec![format!("does not respond; the next stage kills it, or run `{}`", end(pid))]
        }
        ("unresponsive", None) => vec!["does not respond, and accepts no calls".to_owned()],
        _ => Vec::new(),
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// Microseconds, to two digits that count.
fn round_trip(us: u64) -> String {
    let ms = us / 1000;
    let rest = us % 1000;
    match ms {
        0 => format!("0.{:02} ms", rest / 10),
        1..10 => format!("{ms}.{} ms", rest / 100),
        _ => format!("{ms} ms"),
    }
}

/// A number of bytes, in the nearest unit below.
fn memory(bytes: u64) -> String {
    let kib = bytes >> 10;
    let mib = bytes >> 20;
    match mib {
        0 => format!("{kib} KiB"),
        1..10 => format!("{mib}.{} MiB", (kib % 1024) * 10 / 1024),
        _ => format!("{mib} MiB"),
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use greenroom_core::ids::PoolName;
    use greenroom_core::policy::Policy;
    use greenroom_ssh::link::Survey;

    use super::*;
    use crate::cli::fixture::{EventFixture, id, pool, when};
    use crate::cli::pool::status::{StatusInput, as_json, render};
    use crate::cli::read_model::KeeperStatus;

    /// A link of slot 1 that has served for two minutes and more.
    pub(in crate::cli) fn figures() -> Figures {
        Figures {
            pid: 4711,
            connected_ms: Some(140_300),
            round_trip_us: Some(154),
            memory: Some(412 << 10),
            stages: 7,
            busy: true,
            shell_waits: false,
        }
    }

    pub(in crate::cli) fn found(slot: u32, answer: LinkStatus) -> FoundLink {
        FoundLink { slot, pid: Some(4711 + slot), answer }
    }

    /// Three instances: one is busy on two slots of three, one has a link that hangs, one boots.
    fn several() -> (EventFixture, Survey) {
        let mut story =
            EventFixture::of(Policy { max_instances: 4, capacity_per_instance: 3, ..Policy::default() });
        story.ready(1, 1.0).ready(2, 2.0).launched(12, 170.0);
        let waits = Figures {
            busy: false,
            shell_waits: true,
            connected_ms: Some(97_000_000),
            round_trip_us: Some(31_040),
            memory: Some((3 << 20) + (600 << 10)),
            stages: 0,
            ..figures()
        };
        let survey = Survey::from_iter([
            (id(1), found(0, LinkStatus::Figures(figures()))),
            (id(1), found(1, LinkStatus::Figures(waits))),
            (id(1), found(2, LinkStatus::Closing)),
            (id(2), found(0, LinkStatus::Unresponsive)),
        ]);
        (story, survey)
    }

    fn input<'a>(pool: &'a PoolName, story: &'a EventFixture, links: Option<&'a Survey>) -> StatusInput<'a> {
        StatusInput {
            pool,
            state: &story.state,
            report: None,
            keeper: &KeeperStatus::Runs,
            links,
            containers: None,
        }
    }

    fn shown(width: usize) -> String {
        let (story, survey) = several();
        render(input(&pool(), &story, Some(&survey)), &when(192.0), width)
    }

    #[test]
    fn each_link_has_its_row_in_80_columns() {
        let text = shown(80);
        let head = "  links: 4, 3.9 MiB of memory, the oldest connected for 1d 2h, round trips of\n    \
                    0.15 ms to 31 ms, 1 does not respond\n";
        assert!(text.contains(head), "{text}");
        let expected = "
LINK OF        SLOT  FOR     ROUND TRIP  MEMORY   STAGES  STATE
linux-7f3a-1   1     2m 20s  0.15 ms     412 KiB  7       busy
linux-7f3a-1   2     1d 2h   31 ms       3.5 MiB  0       shell waits
linux-7f3a-1   3     -       -           -        -       closing
linux-7f3a-2   1     -       -           -        -       unresponsive
    does not respond; the next stage kills it, or run `kill -9 4711`
linux-7f3a-12  -     -       -           -        -       -
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_wide_terminal_shows_the_process_and_since_when() {
        let text = shown(140);
        let row = "linux-7f3a-1   1     4711  14:00:51             2m 20s  0.15 ms     412 KiB  7       busy\n\
                   linux-7f3a-1   2     4712  2026-11-19 11:06:32  1d 2h   31 ms       3.5 MiB  0       shell waits\n";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn json_has_links_only_where_they_were_asked() {
        let (story, survey) = several();
        let json = |links| as_json(input(&pool(), &story, links), &when(192.0));
        assert!(json(None)["instances"][0].get("links").is_none());
        let instances = json(Some(&survey))["instances"].clone();
        let expected = serde_json::json!({
            "slot": 1,
            "pid": 4711,
            "state": "busy",
            "connected": "2026-11-20T13:00:51Z",
            "connected_for_s": 140,
            "round_trip_us": 154,
            "memory_bytes": 421_888,
            "stages": 7,
        });
        assert_eq!(instances[0]["links"][0], expected);
        assert_eq!(instances[0]["links"][1]["state"], "shell-waits");
        assert_eq!(instances[1]["links"][0]["state"], "unresponsive");
        assert_eq!(instances[2]["links"], serde_json::json!([]));
    }

    #[test]
    fn figures_keep_two_digits_and_a_pool_without_links_has_none() {
        for (us, text) in [(7, "0.00 ms"), (154, "0.15 ms"), (1_940, "1.9 ms"), (250_900, "250 ms")] {
            assert_eq!(round_trip(us), text);
        }
        for (kib, text) in [(0, "0 KiB"), (1023, "1023 KiB"), (1946, "1.9 MiB"), (90 << 10, "90 MiB")] {
            assert_eq!(memory(kib << 10), text);
        }
        assert_eq!(summary(std::iter::empty()), "none");
        let one = found(0, LinkStatus::Figures(figures()));
        let expected = "1, 412 KiB of memory, the oldest connected for 2m 20s, round trip 0.15 ms";
        assert_eq!(summary(std::iter::once(&one)), expected);
    }
}
