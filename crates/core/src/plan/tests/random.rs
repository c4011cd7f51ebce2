//! Random worlds, written as lines: a failing case prints as one.

use proptest::prelude::*;

fn span() -> impl Strategy<Value = String> {
    prop_oneof![(0..90_u32).prop_map(|s| format!("{s}s")), (1..40_u32).prop_map(|m| format!("{m}m")),]
}

fn project() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

fn protection() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", " protected"])
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words)
}

/// Something after an item; usually nothing.
fn maybe(text: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::option::weighted(0.25, text).prop_map(|t| t.map_or_else(String::new, |t| format!(" {t}")))
}

fn status() -> impl Strategy<Value = String> {
    prop_oneof![
        one_of(&["starting", "stopping", "running", "suspended", "gone", "denied"]).prop_map(str::to_owned),
        span().prop_map(|s| format!("missing {s}")),
        span().prop_map(|s| format!("missing {s} denied")),
    ]
}

fn hindrance() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("old".to_owned()),
        Just("busy".to_owned()),
        Just("announced".to_owned()),
        (1..20_u32).prop_map(|s| format!("failing {s}s")),
        (200..210_u32, one_of(&["named", "user"])).prop_map(|(job, word)| format!("{word} {job}")),
    ]
}

/// `number` gives the jobs of different items different IDs.
fn item(number: usize) -> impl Strategy<Value = String> {
    let empty = one_of(&[
        "requested",
        "unknown",
        "refused",
        "booting",
        "checking",
        "idle",
        "idle",
        "idle",
        "suspending",
        "stopped",
        "resuming",
        "draining",
    ]);
    let host = one_of(&["static checking", "static idle", "static cleaning", "static out-of-service"]);
    let held = one_of(&["held", "held", "draining", "static held", "static out-of-service"]);
    let uses = (1..4_u32).prop_map(|uses| format!("uses {uses}"));
    let row = one_of(&["", "", "", " unbegun", " unbegun twice", " unchecked", " unbegun twice unchecked"]);
    let bound = (project(), protection(), row)
        .prop_map(|(project, protection, row)| format!("of {project}{protection}{row}"));
    let job = 10 * (number + 1);
    let word = one_of(&["by", "by", "by", "closing"]);
    let other = one_of(&["orphan", "stranger", "foreign", "host", "orphan"]);
    let waits = (project(), protection(), one_of(&["10m", "1h", "2h"]), any::<bool>());
    prop_oneof![
        6 => (prop_oneof![4 => empty, 1 => host], span(), maybe(uses.clone()), maybe(bound), maybe(status()), maybe(hindrance()))
            .prop_map(|(phase, age, uses, bound, status, hindrance)| {
                let bound = if phase.ends_with("idle") { bound } else { String::new() };
                format!("{phase} {age}{uses}{bound}{status}{hindrance}")
            }),
        4 => (held, span(), word, 1..3_usize, maybe(uses), (project(), protection()), maybe(status()), maybe(hindrance()))
            .prop_map(move |(phase, age, word, jobs, uses, (project, protection), status, hindrance)| {
                let jobs: Vec<String> = (0..jobs).map(|n| (job + n).to_string()).collect();
                let jobs = jobs.join(",");
                format!("{phase} {age} {word} {jobs} cap 3{uses} of {project}{protection}{status}{hindrance}")
            }),
        1 => (other, span()).prop_map(|(kind, age)| format!("{kind} {age}")),
        4 => (waits, span()).prop_map(move |((project, protection, timeout, dead), age)| {
            let dead = if dead && timeout == "2h" { " dead" } else { "" };
            format!("waits {job} {age} of {project}{protection} timeout {timeout}{dead}")
        }),
    ]
}

fn settings() -> impl Strategy<Value = String> {
    let limits = (0..9_u32, 0..5_u32, 1..4_u32, prop::option::of(1..4_u32));
    let reuse = one_of(&["", ", any", ", namespace"]);
    let more = one_of(&[
        "",
        "",
        "",
        ", lifetime 1h",
        ", lifetime 20m",
        ", launching 1",
        ", rate 2, recent 1 20s",
        ", drained",
        ", bound",
        ", hosts",
        ", failures 2 3s",
        ", failures 6 2m",
        ", failures 6 6m",
        ", idle_time 0s",
        ", tier 1",
        ", tier 2",
        ", tier 3, unsuspended 2 3s",
        ", tier 2, unsuspended 6 6m",
        ", tier 2, idle_time 0s",
        ", tier 2 no",
        ", tier 2 unknown",
        ", tier 2, drained",
        ", tier 2, lifetime 20m",
        ", repeats",
        ", factor 0.7",
        ", offerings 2",
        ", offerings 2, out c1 20s",
        ", offerings 2, out c1 20s, quota c2 1m",
    ]);
    let listing =
        one_of(&["", "", "", "", ", partial", ", nowhere", ", unlisted", ", list 20s", ", reap", ", full"]);
    (limits, reuse, more, listing).prop_map(|((max, target, cap, uses), reuse, more, listing)| {
        let uses = uses.map_or_else(String::new, |uses| format!(", uses {uses}"));
        format!("max {max}, target {target}, cap {cap}{uses}{reuse}{more}{listing}")
    })
}

/// A whole world, as a line.
pub(super) fn a_world() -> impl Strategy<Value = String> {
    let items = (0..9_usize).prop_flat_map(|count| (0..count).map(item).collect::<Vec<_>>());
    (settings(), items).prop_map(|(settings, items)| format!("{settings} | {}", items.join("; ")))
}

/// Jobs with orders, and instances that were launched for a job. `number` as in `item`.
fn order(number: usize) -> impl Strategy<Value = String> {
    const PHASES: &[&str] = &["requested", "unknown", "refused", "booting", "checking", "idle"];
    let job = 1_000 + number;
    let waits = move |age: String| format!("waits {job} {age} orders ruby");
    let instance = move |(phase, age, status, hindrance): (&str, String, String, String)| {
        format!("{phase} {age} for {job}{status}{hindrance}")
    };
    let instances = || (one_of(PHASES), span(), maybe(status()), maybe(hindrance())).prop_map(instance);
    prop_oneof![
        3 => span().prop_map(waits),
        2 => instances(),
        4 => (instances(), span()).prop_map(move |(instance, age)| format!("{instance}; {}", waits(age))),
        1 => span().prop_map(move |age| format!("held {age} by {job} for {job}")),
    ]
}

/// A whole world, as a line, of a provider that makes orders.
pub(super) fn a_world_with_orders() -> impl Strategy<Value = String> {
    let items = (0..4_usize).prop_flat_map(|count| (0..count).map(item).collect::<Vec<_>>());
    let orders = (1..5_usize).prop_flat_map(|count| (0..count).map(order).collect::<Vec<_>>());
    (settings(), items, orders).prop_map(|(settings, items, orders)| {
        let all: Vec<String> = items.into_iter().chain(orders).collect();
        format!("orders, {settings} | {}", all.join("; "))
    })
}

#[test]
fn every_random_world_can_be_built() {
    use crate::notation::world;
    proptest!(ProptestConfig::with_cases(200), |(line in a_world())| {
        prop_assert_eq!(crate::invariants::check(&world(&line).state), vec![]);
    });
}
