//! Tests of what waiting jobs wait for.

use std::time::Duration;

use crate::ids::InstanceId;
use crate::notation::{NOW, World, ago, attempt, instance, table, waits, waits_in, world};
use crate::obstacle::{Cause, Lasting, Obstacle};
use crate::plan::by_record;

#[test]
fn each_reason_is_given_where_it_is_the_reason() {
    table(
        waits,
        &[
            ("waits 8", "a8: i1 is booting"),
            ("booting 5s; waits 8", "a8: i1 is booting"),
            ("checking 5s; waits 8", "a8: i1 is booting"),
            ("hosts | static cleaning 5s; waits 8", "a8: h1 is being cleaned"),
            ("hosts | static held 5m by 7; waits 8", "a8: no static host is free"),
            (
                "hosts | static out-of-service 5m; waits 8",
                "a8: the pool's only host is unusable: h1 is out of service: broken",
            ),
            (
                "hosts | static out-of-service 5m of b; static out-of-service 5m; waits 8",
                "a8: all 2 hosts of the pool are out of service: h1, last used by group/b, is out of service: broken",
            ),
            (
                "hosts | static held 5m by 7; static out-of-service 5m; waits 8",
                "a8: no static host is free, and 1 of 2 is unusable: h2 is out of service: broken",
            ),
            ("hosts | static checking 5m; waits 8", "a8: h1 is being checked"),
            ("hosts | static checking 5m; static held 5m by 7; waits 8", "a8: h1 is being checked"),
            ("max 1 | draining 5s; waits 8", "a8: i1 is being terminated to make room"),
            ("max 1 | held 5m by 7; waits 8", "a8: all 1 instances in use, limit 1 (`max_instances`)"),
            ("launching 0 | waits 8", "a8: 0 launches in progress, limit 0"),
            ("rate 1, recent 1 5s | waits 8", "a8: `launches_per_minute` is reached"),
            (
                "drained | booting 5s; waits 8",
                "a8: the operator drained the pool (`greenroom pool resume` resumes it)",
            ),
            ("moved | idle 5m; waits 8", "a8: moved"),
            ("full | waits 8", "a8: no launch can be recorded: disk full"),
            ("full | idle 5m; waits 8", ""),
            ("reap | waits 8", "a8: the keeper's next reconcile pass is pending"),
            (
                "lifetime 59m | waits 8 timeout 1h",
                "a8: the job's timeout of 1h exceeds the lifetime of an instance (59m, `max_lifetime`)",
            ),
            ("lifetime 1h, launching 0 | waits 8 timeout 1h", "a8: 0 launches in progress, limit 0"),
            ("idle 5m; waits 8", ""),
        ],
    );
}

/// The reasons why jobs wait while the keeper's last try to reach `id` met this.
fn waits_while(text: &str, id: &str, cause: Cause) -> String {
    let mut world = world(text);
    let obstacle = Obstacle { cause, at: "a:22".to_owned(), detail: "why".to_owned() };
    let since = ago(Duration::from_secs(9));
    world.observed.obstacles.insert(instance(id), Lasting { obstacle, since, tries: 3 });
    waits_in(&world.plan().report)
}

#[test]
fn what_the_keeper_met_takes_the_place_of_a_boot() {
    let denied = "a:22 denies the login: why";
    for (text, id, cause, on) in [
        ("booting 9s; waits 8", "i1", Cause::LoginDenied, format!("a8: i1 at {denied}")),
        ("booting 9s; waits 8", "i1", Cause::Silent, "a8: i1 is booting".to_owned()),
        ("checking 9s; waits 8", "i1", Cause::SlowShell, waits_of("i1", Cause::SlowShell)),
        ("resuming 9s; waits 8", "i1", Cause::SlowLogin, waits_of("i1", Cause::SlowLogin)),
        (
            "hosts | static checking 9s; waits 8",
            "h1",
            Cause::LoginDenied,
            format!("a8: the pool's only host is unusable: h1 at {denied}"),
        ),
        (
            "hosts | static checking 9s; static out-of-service 5m; waits 8",
            "h1",
            Cause::Silent,
            "a8: all 2 hosts of the pool are unusable: h2 is out of service: broken".to_owned(),
        ),
        (
            "hosts | static checking 9s; static held 5m by 7; waits 8",
            "h1",
            Cause::Silent,
            "a8: no static host is free, and 1 of 2 is unusable: h1 does not respond at a:22: why".to_owned(),
        ),
    ] {
        assert_eq!(waits_while(text, id, cause), on, "{text}");
    }
}

/// The sentence about an instance.
fn waits_of(id: &str, cause: Cause) -> String {
    let obstacle = Obstacle { cause, at: "a:22".to_owned(), detail: "why".to_owned() };
    format!("a8: {}", obstacle.sentence(&InstanceId::new(id)))
}

#[test]
fn jobs_ahead_are_counted_and_only_those_that_wait_for_the_same() {
    table(
        waits,
        &[
            (
                "max 1 | held 5m by 7; waits 8; waits 9; waits 10",
                "a8: all 1 instances in use, limit 1 (`max_instances`); \
                 a9: all 1 instances in use, limit 1 (`max_instances`), 1 job ahead; \
                 a10: all 1 instances in use, limit 1 (`max_instances`), 2 jobs ahead",
            ),
            (
                "max 2 | held 5m by 7; booting 5s; waits 8; waits 9",
                "a8: i2 is booting; a9: all 2 instances in use, limit 2 (`max_instances`)",
            ),
            (
                "max 2 | held 5m by 7; idle 5m named 6; waits 8",
                "a8: all 1 instances in use, limit 2 (`max_instances`)",
            ),
        ],
    );
}

#[test]
fn an_instance_on_its_way_is_promised_to_as_many_jobs_as_it_will_serve() {
    let limit = "all 1 instances in use, limit 1 (`max_instances`)";
    table(
        waits,
        &[
            ("max 1, cap 2 | booting 5s; waits 8; waits 9", "a8: i1 is booting; a9: i1 is booting"),
            (
                "max 1, cap 2 | booting 5s; waits 8; waits 9 of b; waits 10",
                &format!("a8: i1 is booting; a9: {limit}; a10: i1 is booting"),
            ),
            (
                "max 1, cap 2 | booting 5s uses 1; waits 8; waits 9",
                &format!("a8: i1 is booting; a9: {limit}"),
            ),
            ("max 1, cap 2, any | booting 5s; waits 8; waits 9 of b", "a8: i1 is booting; a9: i1 is booting"),
            (
                "hosts, bound | static cleaning 5s of b; waits 8",
                "a8: h1, the pool's only host, is bound to another trust domain",
            ),
            ("hosts | static cleaning 5s of b; waits 8", "a8: h1 is being cleaned"),
            ("hosts, bound | static cleaning 5s of b; waits 8 of b", "a8: h1 is being cleaned"),
            // No promise to a job that the pool could not keep.
            (
                "max 1, lifetime 1h | booting 5s; waits 8 timeout 2h; waits 9",
                "a8: the job's timeout of 2h exceeds the lifetime of an instance (1h, `max_lifetime`); \
                 a9: i1 is booting",
            ),
            ("hosts, lifetime 1h | static cleaning 5s; waits 8 timeout 2h", "a8: h1 is being cleaned"),
            ("launching 0 | refused 1m; waits 8", "a8: 0 launches in progress, limit 0"),
        ],
    );
}

#[test]
fn the_record_alone_tells_most_reasons() {
    let by_record = |text: &str| {
        let world = world(text);
        let on = by_record(&world.state, &attempt(8), NOW);
        on.map_or_else(String::new, |on| on.to_string())
    };
    table(
        by_record,
        &[
            ("max 1 | held 5m by 7; waits 8", "all 1 instances in use, limit 1 (`max_instances`)"),
            ("hosts | static held 5m by 7; waits 8", "no static host is free"),
            ("booting 5s; waits 8", "p-g-1 is booting"),
            ("waits 8", ""),
            ("drained | waits 8", "the operator drained the pool (`greenroom pool resume` resumes it)"),
            ("waits 9", ""),
        ],
    );
}

#[test]
fn a_job_that_no_host_may_ever_serve_is_told_so() {
    let never = "a8: all 2 hosts of the pool are bound to other trust domains";
    let wait = "a8: no static host is free";
    let one = "static idle 5m of b";
    let other = "static idle 5m of c";
    let with = |settings: &str, items: &str| {
        waits(&format!("hosts, bound{settings} | {one}; {items}; waits 8 of a"))
    };
    for (settings, items, on) in [
        ("", other, never),
        ("", "static held 5m by 7 of c", never),
        ("", "static held 5m closing 7 of c", never),
        ("", "static cleaning 5s of c", never),
        ("", "static out-of-service 5m of c", never),
        ("", "static idle 5m of a protected", never),
        // Its own domain's, or nobody's yet: it may serve the job later.
        (
            "",
            "static out-of-service 5m of a",
            "a8: the only host for this job is unusable: h2, last used by group/a, is out of service: broken",
        ),
        (
            "",
            "static out-of-service 5m",
            "a8: the only host for this job is unusable: h2 is out of service: broken",
        ),
        (
            "",
            "static out-of-service 5m of a; static out-of-service 5m of a",
            "a8: all 2 hosts for this job are out of service: h2, last used by group/a, is out of service: broken",
        ),
        ("", "static held 5m by 7 of a", wait),
        ("", "static idle 5m of c; host", wait),
        // The list does not show whether there is another host.
        (", partial", other, wait),
        (", unlisted", other, wait),
        (", drained", other, "a8: the operator drained the pool (`greenroom pool resume` resumes it)"),
    ] {
        assert_eq!(with(settings, items), on, "{settings} {items}");
    }
    assert_eq!(waits(&format!("hosts | {one}; {other}; waits 8 of a")), "a8: h1 is being cleaned");
    // A grant that the job may yet give back unused binds nothing.
    let mut world = world(&format!("hosts, bound | {one}; static held 5s by 7; waits 8 of c"));
    let waits = |world: &World| world.plan().report.waiting_on(&attempt(8)).map(ToString::to_string);
    assert_eq!(waits(&world).as_deref(), Some("all 2 hosts of the pool are bound to other trust domains"));
    world.seen(7).used = false;
    assert_eq!(waits(&world).as_deref(), Some("no static host is free"));
}
