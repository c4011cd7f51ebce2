//! The links: whether each responds, and has a recorded instance.

use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_ports::finding::Finding;
use greenroom_ssh::link::{FoundLink, LinkStatus, Survey};

use super::code;
use crate::cli::pool::status::links::{end, summary};
use crate::cli::ui::plural;

/// Findings about the links of a pool. `state`: `None` if it cannot be read.
pub(super) fn check(pool: &PoolName, state: Option<&PoolState>, survey: &Survey) -> Vec<Finding> {
    let silent = survey.all().filter(|(_, link)| link.answer == LinkStatus::Unresponsive);
    let mut found: Vec<Finding> = silent.map(|(instance, link)| unresponsive(pool, instance, link)).collect();
    found.extend(state.and_then(|state| orphaned(pool, state, survey)));
    found
}

/// A summary of the links of a pool, if it has any.
pub(super) fn line(pool: &PoolName, survey: &Survey) -> Option<String> {
    let mut links = survey.all().map(|(_, link)| link).peekable();
    links.peek()?;
    Some(format!("links of pool `{pool}`: {}", summary(links)))
}

fn unresponsive(pool: &PoolName, instance: &str, link: &FoundLink) -> Finding {
    let what = format!("the link of instance {instance} of pool `{pool}`{} does not respond", process(link));
    let remedy = match link.pid {
        Some(pid) => format!(
            "if a job hangs there, run `{}`, which fails its stage; otherwise do nothing: the next stage replaces \
             the link",
            end(pid)
        ),
        None => {
            "kill its process, one of those named `greenroom link`; jobs run without it meanwhile".to_owned()
        }
    };
    code::LINK_UNRESPONSIVE.found(what, remedy)
}

fn orphaned(pool: &PoolName, state: &PoolState, survey: &Survey) -> Option<Finding> {
    let others = survey.of_others(state.instances.keys());
    (!others.is_empty()).then(|| {
        let names: Vec<String> =
            others.iter().map(|(instance, link)| format!("{instance}{}", process(link))).collect();
        code::LINK_ORPHANED.noted(format!(
            "pool `{pool}` has {} of instances that are no longer recorded (they exit with their connections): {}",
            plural(others.len(), "link"),
            names.join(", ")
        ))
    })
}

fn process(link: &FoundLink) -> String {
    link.pid.map_or(String::new(), |pid| format!(" (process {pid})"))
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_core::policy::Policy;

    use super::*;
    use crate::cli::fixture::{EventFixture, id, pool};
    use crate::cli::pool::status::links::tests::{figures, found};

    fn state() -> PoolState {
        EventFixture::of(Policy::default()).ready(1, 1.0).state.clone()
    }

    fn messages(survey: &Survey) -> Vec<String> {
        check(&pool(), Some(&state()), survey).iter().map(ToString::to_string).collect()
    }

    fn problems() -> Survey {
        Survey::from_iter([
            (id(1), found(0, LinkStatus::Unresponsive)),
            (id(1), FoundLink { pid: None, ..found(1, LinkStatus::Unresponsive) }),
            (id(7), found(2, LinkStatus::Closing)),
        ])
    }

    #[test]
    fn links_that_answer_are_told_in_a_line_and_are_no_finding() {
        let survey = Survey::from_iter([(id(1), found(0, LinkStatus::Figures(figures())))]);
        assert_eq!(messages(&survey), [""; 0]);
        let expected = "links of pool `linux`: 1, 412 KiB of memory, the oldest connected for 2m 20s, round trip 0.15 ms";
        assert_eq!(line(&pool(), &survey).unwrap(), expected);
        assert_eq!(line(&pool(), &Survey::default()), None);
    }

    #[test]
    fn a_link_that_hangs_and_one_without_an_instance_are_named_with_their_processes() {
        let found = messages(&problems());
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].contains("linux-7f3a-1 of pool `linux` (process 4711) does not respond"),
            "{found:#?}"
        );
        assert!(found[0].contains("`kill -9 4711`"), "{found:#?}");
        assert!(found[1].contains("`greenroom link`"), "{found:#?}");
        assert!(found[2].starts_with("note [link-orphaned]: pool `linux` has 1 link of"), "{found:#?}");
        assert!(found[2].ends_with(": linux-7f3a-7 (process 4713)"), "{found:#?}");
    }

    #[test]
    fn without_a_state_nothing_is_said_of_instances() {
        let found = check(&pool(), None, &problems());
        assert!(found.iter().all(|finding| finding.code == "link-unresponsive"), "{found:#?}");
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        check(&pool(), Some(&state()), &problems())
    }
}
