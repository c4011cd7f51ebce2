//! Hundreds of instances on one screen.

use greenroom_core::event::Change;
use greenroom_core::instance::DrainReason;
use greenroom_core::policy::{IdlePolicy, Policy};

use super::*;
use crate::cli::fixture::{EventFixture, id, pool, when};

/// 500 instances: half of them with jobs, one out of service, one unreachable, one draining, eight launching; jobs wait.
fn crowd() -> EventFixture {
    let idle = IdlePolicy { idle_count: 20, ..IdlePolicy::default() };
    let mut story =
        EventFixture::of(Policy { max_instances: 600, max_use_count: None, idle, ..Policy::default() });
    for number in 1..=492 {
        story.ready(number, 0.0);
    }
    for number in 493..=500 {
        story.launched(number, 50.0);
    }
    for number in 1..=250 {
        let name = format!("a{number}");
        story.asks(&name, 4000 + u64::from(number), "acme/shop", 60.0).gets(&name, number, 60.0);
    }
    story.then(70.0, Change::OutOfService { instance: id(300), reason: "the clean command failed".into() });
    story.then(71.0, Change::BecameUnreachable { instance: id(301), reason: "no route".into() });
    story.then(72.0, Change::DrainingBegun { instance: id(302), reason: DrainReason::Expired });
    for job in 1..=30 {
        story.asks(&format!("w{job}"), 9000 + job, "acme/other", 80.0);
    }
    story
}

fn on_screen(story: &EventFixture, lines: Option<usize>, bar: bool) -> String {
    let pool = pool();
    let input = StatusInput {
        pool: &pool,
        state: &story.state,
        report: None,
        keeper: &KeeperStatus::Runs,
        links: None,
        containers: None,
    };
    render_on(input, &when(100.0), (100, lines), bar)
}

#[test]
fn hundreds_of_instances_fit_on_a_screen_that_says_what_it_leaves_out() {
    let story = crowd();
    for lines in [24, 40, 60] {
        let text = on_screen(&story, Some(lines), true);
        assert!(text.lines().count() <= lines, "{lines}: {}\n{text}", text.lines().count());
        assert!(text.contains("greenroom pool status linux --wide"), "{text}");
        assert!(text.contains("more waiting jobs"), "{text}");
    }
    let text = on_screen(&story, Some(40), true);
    for needing_attention in ["linux-7f3a-300", "linux-7f3a-301", "linux-7f3a-302", "no route"] {
        assert!(text.contains(needing_attention), "{needing_attention}: {text}");
    }
    let shown = text.lines().filter(|line| line.starts_with("linux-7f3a-")).count();
    let left_out = format!("… {} more instances (", 500 - shown);
    assert!(text.contains(&left_out) && text.contains("250 ready with jobs"), "{left_out}: {text}");
}

#[test]
fn a_wide_status_has_a_row_for_each_instance_and_job() {
    let text = on_screen(&crowd(), None, false);
    assert_eq!(text.lines().filter(|line| line.starts_with("linux-7f3a-")).count(), 500);
    assert!(!text.contains("more"), "{text}");
}

#[test]
fn few_instances_are_shown_whole_on_the_smallest_screen() {
    let mut story = EventFixture::of(Policy { max_instances: 2, ..Policy::default() });
    story.ready(1, 1.0);
    let (text, wide) = (on_screen(&story, Some(1), false), on_screen(&story, None, false));
    assert_eq!(text, wide);
}

#[test]
fn the_bar_has_a_sign_for_whatever_there_is() {
    let text = on_screen(&crowd(), Some(40), true);
    let bar: Vec<&str> = text.lines().skip(1).take(2).collect();
    let signs = bar[0].strip_prefix("  slots: [").and_then(|rest| rest.strip_suffix(']')).unwrap();
    assert_eq!(signs.len(), 60, "{bar:?}");
    assert_eq!(signs.matches('#').count(), 25, "{bar:?}");
    let mut kinds: Vec<char> = signs.chars().collect();
    kinds.dedup();
    assert_eq!(kinds, ['#', '=', '~', 'x', '.'], "{bar:?}");
    assert_eq!(bar[1], "  # 250 in use, = 239 idle, ~ 8 on their way, x 3 out of use, . 100 not launched");
    let mut few = EventFixture::of(Policy { max_instances: 3, ..Policy::default() });
    few.ready(1, 1.0);
    assert!(on_screen(&few, Some(40), true).contains("  slots: [=..]\n"));
    few.stopped(1, 30.0);
    assert!(on_screen(&few, Some(40), true).contains("  slots: [z..]\n  z 1 stopped, . 2 not launched\n"));
    few.then(40.0, Change::ResumeIntended { instance: id(1) });
    assert!(on_screen(&few, Some(40), true).contains("  slots: [~..]\n"));
}
