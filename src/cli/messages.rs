//! The lines of the job log while a job waits for its instance, and while its containers are prepared.

use std::time::Duration;

use greenroom_core::availability::Unavailable;
use greenroom_core::container::image::NEEDS;
use greenroom_core::container::settings::PullPolicy;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::report::{FailedBoot, WaitingOn};
use greenroom_core::start::StartAccount;
use greenroom_core::text::size;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_engine::container::ContainerProgress;
use greenroom_engine::container::debug::{skipped, written};
use greenroom_engine::progress::{BootStep, Progress};
use greenroom_manager::gitlab::stage::Stage;

use super::when::whole;

/// The highest number of unavailable offerings that a line names.
const OFFERINGS_NAMED: usize = 3;

/// The line about one step of [`Progress`] on the way to an instance.
pub(super) fn progress(pool: &PoolName, progress: &Progress, now: Stamp) -> String {
    match progress {
        Progress::Waiting { on, usual_boot } => waiting(pool, on, *usual_boot, now),
        Progress::Unavailable(offerings) => unavailable(offerings, now),
        Progress::Boot { instance, offering, step, after } => {
            let word = match (step, offering) {
                (BootStep::Launched, Some(offering)) => format!("launched ({offering})"),
                (BootStep::Launched, None) => "launched".to_owned(),
                (BootStep::Reachable, _) => "reachable".to_owned(),
            };
            format!("{instance} {word} after {}", Pretty(*after))
        }
        Progress::BootFailed(boot) => failed(boot),
        Progress::Unfit { instance, reason } => format!("{instance} gets no more jobs: {reason}"),
        Progress::NoKeeper { problem } => {
            format!("pool `{pool}` is not being refilled: cannot start a keeper ({problem})")
        }
        Progress::Broken { instance, problem } => {
            format!("{instance} does not respond ({problem}): trying another instance")
        }
        Progress::Held { problem } => format!("{problem}: trying again"),
    }
}

fn waiting(pool: &PoolName, on: &WaitingOn, usual_boot: Option<Duration>, now: Stamp) -> String {
    let usually = usual_boot.map(|boot| format!(", usually {}", Pretty(boot))).unwrap_or_default();
    match on {
        WaitingOn::Boot { instance } => {
            format!("no idle instance in pool `{pool}`: booting {instance}{usually}")
        }
        WaitingOn::Resume { instance } => {
            format!("no idle instance in pool `{pool}`: resuming {instance}, which was stopped")
        }
        WaitingOn::Backoff { until, .. }
        | WaitingOn::Paused { until, .. }
        | WaitingOn::OwnLaunch { until, .. }
        | WaitingOn::Rate { until } => {
            format!("waiting: {on}; next try in {}", Pretty(now.until(*until)))
        }
        WaitingOn::NoOffering { until, .. } => {
            format!("waiting: {on}, next try in {}", whole(now.until(*until)))
        }
        WaitingOn::Limit { .. }
        | WaitingOn::Room { .. }
        | WaitingOn::Launching { .. }
        | WaitingOn::OrderedLaunches { .. }
        | WaitingOn::Cleaning { .. }
        | WaitingOn::Unreachable { .. }
        | WaitingOn::StageCheck { .. }
        | WaitingOn::Recheck { .. }
        | WaitingOn::Drained { .. }
        | WaitingOn::Moved { .. }
        | WaitingOn::Disk { .. }
        | WaitingOn::Elsewhere { .. }
        | WaitingOn::Obstructed { .. }
        | WaitingOn::HostCheck { .. }
        | WaitingOn::NoHost { .. }
        | WaitingOn::Bound { .. }
        | WaitingOn::TooLong { .. }
        | WaitingOn::NextPass => format!("waiting: {on}"),
    }
}

/// The offerings that a launch skipped; many are shortened to the first few.
fn unavailable(offerings: &[Unavailable], now: Stamp) -> String {
    let line = |passed: &Unavailable| format!("{passed}, next try in {}", whole(now.until(passed.until)));
    let mut shown: Vec<String> = offerings.iter().take(OFFERINGS_NAMED).map(line).collect();
    let more = offerings.len().saturating_sub(OFFERINGS_NAMED);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join("; ")
}

/// A sentence about a failed boot, followed by the last lines of its console.
fn failed(boot: &FailedBoot) -> String {
    let mut text = boot.sentence();
    if !boot.console.is_empty() {
        text.push_str("; the last lines of its console:");
    }
    for line in &boot.console {
        text.push_str("\n  | ");
        text.push_str(line);
    }
    text
}

/// The last line of a wait.
pub(super) fn ready(instance: &InstanceId, waited: Duration, account: StartAccount) -> String {
    format!("instance {instance} ready in {} ({account})", Pretty(waited))
}

/// The line after [`ready`], if nothing verified the instance.
pub(super) fn first_use(instance: &InstanceId, fingerprint: &str) -> String {
    format!("{instance} presented host key {fingerprint} on its first connection; nothing verified it")
}

/// The reasons for which a job's services do not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoServices {
    /// The job names no image, and only jobs with an image run in containers.
    NamesNoImage,
    /// The pool runs no containers.
    RunsNoContainers,
    /// The pool makes no pods for jobs.
    MakesNoOrders,
}

/// The line about a job with services that runs on an instance without them, with the reason.
pub(super) fn services_ignored(pool: &PoolName, services: usize, lacking: NoServices) -> String {
    let what = match services {
        1 => "the job's service is ignored".to_owned(),
        more => format!("the job's {more} services are ignored"),
    };
    let why = match lacking {
        NoServices::NamesNoImage => {
            "the job names no image and runs on the instance itself: set `image:`".to_owned()
        }
        NoServices::RunsNoContainers => {
            format!("pool `{pool}` runs no containers: its operator can add `[pool.{pool}.containers]`")
        }
        NoServices::MakesNoOrders => format!(
            "pool `{pool}` runs no services: its operator can set `image_from_job` in `[pool.{pool}.provider]`"
        ),
    };
    format!("{what}, because {why}")
}

/// A job whose service no instance of its pool can run. `others`: the pools that can.
pub(super) fn needs_privileges(service: &str, pool: &PoolName, others: &[PoolName]) -> String {
    let others: Vec<String> = others.iter().map(|other| format!("`{other}`")).collect();
    let place = match others.as_slice() {
        [] => "a pool of virtual machines that runs jobs in containers could run this job".to_owned(),
        [one] => format!("pool {one} can run this job, if the operator's rules choose it"),
        more => format!("pools {} can run this job, if the operator's rules choose one", more.join(", ")),
    };
    format!("service `{service}` {NEEDS}, and pool `{pool}` has none: {place}")
}

/// The end of a stage that a signal killed. The job's author knows only the scripts of the job.
pub(super) fn killed(stage: &Stage, signal: &str) -> String {
    let script = if stage.is_job_script() {
        "the script".to_owned()
    } else {
        format!("GitLab Runner's script `{stage}`")
    };
    format!("{script} was killed by SIG{signal}")
}

/// The line about one step of the preparation of a job's containers ([`ContainerProgress`]).
pub(super) fn container_progress(progress: &ContainerProgress) -> String {
    match progress {
        ContainerProgress::Remark(remark) => remark.clone(),
        ContainerProgress::Pulling { image, policy, login, again } => {
            let again = if *again { " again" } else { "" };
            let lacking = match policy {
                PullPolicy::Always | PullPolicy::Never => "",
                PullPolicy::IfNotPresent => ", which the instance lacks",
            };
            let with = login.map(|source| format!(", with the credentials from {source}"));
            format!("pulling image `{image}`{again}{lacking}{}", with.unwrap_or_default())
        }
        ContainerProgress::Received { image, bytes: Some(bytes), after } => {
            format!("pulling image `{image}`: {} after {}", size(*bytes), Pretty(*after))
        }
        ContainerProgress::Received { image, bytes: None, after } => {
            format!(
                "pulling image `{image}`: no data after {}; the registry may limit the rate",
                Pretty(*after)
            )
        }
        ContainerProgress::Pending { image, after } => {
            format!("pulling image `{image}`: not complete after {}", Pretty(*after))
        }
        ContainerProgress::Pulled { image, bytes, after, .. } => {
            format!("image `{image}` ready after {} ({} unpacked)", Pretty(*after), size(*bytes))
        }
        ContainerProgress::Present { image, .. } => format!("image `{image}` is on the instance already"),
        ContainerProgress::Removed { image, unused } => {
            let unused = unused.map_or("which no job has used".to_owned(), |unused| {
                format!("which no job has used for {}", Pretty(unused))
            });
            format!("removed image `{image}`, {unused}: less than `min_free_space` was free")
        }
        ContainerProgress::PullFailed { image, why } => format!("image `{image}` was not pulled: {why}"),
        ContainerProgress::ServiceUp { service, after } => {
            format!("service `{service}` answers after {}", Pretty(*after))
        }
        ContainerProgress::ServiceAwaited { service, waited } => {
            format!("service `{service}` does not answer yet after {}", Pretty(*waited))
        }
        ContainerProgress::ServiceExited { service, status, after } => {
            format!("warning: service `{service}` exited after {} with status {status}", Pretty(*after))
        }
        ContainerProgress::ServiceSilent { service, waited } => format!(
            "warning: no port of service `{service}` answers after {} (`wait_for_services`); the job goes on",
            Pretty(*waited)
        ),
        ContainerProgress::ServiceUnstarted { service, why } => {
            format!("warning: service `{service}` did not start: {why}")
        }
        ContainerProgress::ServiceLog { service, line } => format!("  {service} | {line}"),
        ContainerProgress::ServiceWrote { service, at, line } => written(service, at, line),
        ContainerProgress::ServiceSkipped { service, bytes } => skipped(service, *bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_core::availability::Refusal;
    use greenroom_core::failure::{ErrorClass, Failure};
    use greenroom_core::ids::OfferingName;
    use greenroom_core::instance::DrainReason;
    use greenroom_core::obstacle;
    use greenroom_core::start::Start;
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn now() -> Stamp {
        Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 }
    }

    fn say(on: WaitingOn, usual_boot: Option<Duration>) -> String {
        progress(&PoolName::new("linux"), &Progress::Waiting { on, usual_boot }, now())
    }

    #[test]
    fn a_killed_script_is_named_by_its_author() {
        assert_eq!(killed(&Stage::AfterScript, "KILL"), "the script was killed by SIGKILL");
        assert_eq!(
            killed(&Stage::GetSources, "TERM"),
            "GitLab Runner's script `get_sources` was killed by SIGTERM"
        );
    }

    #[test]
    fn services_that_are_ignored_are_said_to_be() {
        let pool = PoolName::new("linux");
        assert_eq!(
            services_ignored(&pool, 1, NoServices::RunsNoContainers),
            "the job's service is ignored, because pool `linux` runs no containers: its operator can add \
             `[pool.linux.containers]`"
        );
        assert_eq!(
            services_ignored(&pool, 2, NoServices::NamesNoImage),
            "the job's 2 services are ignored, because the job names no image and runs on the instance itself: set \
             `image:`"
        );
        assert_eq!(
            services_ignored(&pool, 1, NoServices::MakesNoOrders),
            "the job's service is ignored, because pool `linux` runs no services: its operator can set `image_from_job` in \
             `[pool.linux.provider]`"
        );
    }

    #[test]
    fn a_service_without_privileges_says_which_pool_has_them() {
        let pool = |name: &str| PoolName::new(name);
        let begin = "service `docker:dind` needs a privileged container, and pool `pods` has none: ";
        for (others, place) in [
            (vec![], "a pool of virtual machines that runs jobs in containers could run this job"),
            (vec![pool("vm")], "pool `vm` can run this job, if the operator's rules choose it"),
            (
                vec![pool("a"), pool("b")],
                "pools `a`, `b` can run this job, if the operator's rules choose one",
            ),
        ] {
            assert_eq!(needs_privileges("docker:dind", &pool("pods"), &others), format!("{begin}{place}"));
        }
    }

    #[test]
    fn a_warm_start_is_one_line() {
        let account = StartAccount {
            start: Start::Warm,
            idle_for: Duration::from_secs(192),
            others: 0,
            resume_time: Duration::ZERO,
        };
        let line = ready(&InstanceId::new("linux-7f3a"), Duration::from_millis(14), account);
        assert_eq!(line, "instance linux-7f3a ready in 14 ms (warm, idle for 3m 12s)");
    }

    #[test]
    fn a_boot_says_how_long_it_usually_takes() {
        let boot = WaitingOn::Boot { instance: InstanceId::new("linux-1") };
        assert_eq!(
            say(boot.clone(), Some(Duration::from_secs(26))),
            "no idle instance in pool `linux`: booting linux-1, usually 26 s"
        );
        assert_eq!(say(boot, None), "no idle instance in pool `linux`: booting linux-1");
        let step = Progress::Boot {
            instance: InstanceId::new("linux-1"),
            offering: None,
            step: BootStep::Reachable,
            after: Duration::from_millis(23_940),
        };
        assert_eq!(progress(&PoolName::new("linux"), &step, now()), "linux-1 reachable after 23.9 s");
    }

    #[test]
    fn a_waiting_job_reads_each_cause() {
        for (obstacle, sentence) in obstacle::samples::each() {
            let instance = InstanceId::new("h1");
            assert_eq!(
                say(WaitingOn::Obstructed { instance, obstacle }, None),
                format!("waiting: {sentence}")
            );
        }
        let hosts = obstacle::samples::hosts();
        let text = hosts.to_string();
        assert_eq!(say(WaitingOn::NoHost { unusable: Some(hosts) }, None), format!("waiting: {text}"));
    }

    #[test]
    fn a_failed_boot_shows_the_end_of_its_console() {
        let mut boot = FailedBoot {
            instance: InstanceId::new("linux-1"),
            at: now(),
            reason: DrainReason::NeverReady,
            cause: None,
            console: vec!["no root".to_owned(), "panic".to_owned()],
        };
        let say =
            |boot: &FailedBoot| progress(&PoolName::new("linux"), &Progress::BootFailed(boot.clone()), now());
        assert!(
            say(&boot).ends_with("; the last lines of its console:\n  | no root\n  | panic"),
            "{}",
            say(&boot)
        );
        boot.console.clear();
        assert_eq!(say(&boot), format!("linux-1 did not come up: {}", DrainReason::NeverReady));
    }

    #[test]
    fn a_launch_says_which_offering_it_took_and_why_none_before() {
        let offering = |number: u32| OfferingName::new(format!("us-east1-{number} n2d-standard-4"));
        let out = |number, class| Unavailable {
            offering: offering(number),
            refusal: Refusal { at: now(), times: 1, failure: Failure { class, message: "no".to_owned() } },
            until: now().plus(Duration::from_millis(130_700)),
        };
        let stock = || ErrorClass::NoCapacity { scope: "zone".into() };
        let tell = |step: Progress| progress(&PoolName::new("linux"), &step, now());
        assert_eq!(
            tell(Progress::Unavailable(vec![out(1, stock()), out(2, ErrorClass::Quota)])),
            "us-east1-1 n2d-standard-4: no capacity, next try in 2m 10s; us-east1-2 n2d-standard-4: quota reached: no, \
             next try in 2m 10s"
        );
        let many = tell(Progress::Unavailable((0..9).map(|number| out(number, stock())).collect()));
        assert!(many.ends_with("; and 6 more"), "{many}");
        let boot = |step| Progress::Boot {
            instance: InstanceId::new("linux-1"),
            offering: Some(offering(3)),
            step,
            after: Duration::from_millis(3_240),
        };
        assert_eq!(
            tell(boot(BootStep::Launched)),
            "linux-1 launched (us-east1-3 n2d-standard-4) after 3.2 s"
        );
        assert_eq!(tell(boot(BootStep::Reachable)), "linux-1 reachable after 3.2 s");
        let Unavailable { offering, refusal, until } = out(4, stock());
        assert_eq!(
            say(WaitingOn::NoOffering { until, offering, failure: refusal.failure, count: 2 }, None),
            "waiting: all 2 offerings are unavailable; us-east1-4 n2d-standard-4: no capacity, next try in 2m 10s"
        );
    }

    #[test]
    fn a_pause_says_why_and_until_when() {
        let failure =
            Failure { class: ErrorClass::NoCapacity { scope: "eu-west-1".into() }, message: String::new() };
        let until = now().plus(Duration::from_secs(200));
        assert_eq!(
            say(WaitingOn::Paused { until, failures: 5, failure }, None),
            "waiting: the pool is paused after 5 failed launches in a row (last: no capacity (eu-west-1)); \
             next try in 3m 20s"
        );
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_step_is_one_sentence() {
        let image = || "ruby:3.3".to_owned();
        let service = || "db".to_owned();
        let after = Duration::from_millis(3_240);
        for (progress, line) in [
            (
                ContainerProgress::Pulling {
                    image: image(),
                    policy: PullPolicy::Always,
                    login: None,
                    again: true,
                },
                "pulling image `ruby:3.3` again",
            ),
            (
                ContainerProgress::Pulling {
                    image: image(),
                    policy: PullPolicy::IfNotPresent,
                    login: Some("DOCKER_AUTH_CONFIG"),
                    again: false,
                },
                "pulling image `ruby:3.3`, which the instance lacks, with the credentials from DOCKER_AUTH_CONFIG",
            ),
            (
                ContainerProgress::Received { image: image(), bytes: Some(45 * MIB), after },
                "pulling image `ruby:3.3`: 45 MiB after 3.2 s",
            ),
            (
                ContainerProgress::Received { image: image(), bytes: None, after },
                "pulling image `ruby:3.3`: no data after 3.2 s; the registry may limit the rate",
            ),
            (
                ContainerProgress::Pending { image: image(), after },
                "pulling image `ruby:3.3`: not complete after 3.2 s",
            ),
            (
                ContainerProgress::ServiceAwaited { service: service(), waited: after },
                "service `db` does not answer yet after 3.2 s",
            ),
            (
                ContainerProgress::Pulled { image: image(), digest: None, bytes: 4000, after },
                "image `ruby:3.3` ready after 3.2 s (4 KiB unpacked)",
            ),
            (
                ContainerProgress::Removed { image: image(), unused: Some(after) },
                "removed image `ruby:3.3`, which no job has used for 3.2 s: less than `min_free_space` was free",
            ),
            (
                ContainerProgress::Removed { image: image(), unused: None },
                "removed image `ruby:3.3`, which no job has used: less than `min_free_space` was free",
            ),
            (
                ContainerProgress::ServiceExited { service: service(), status: "3".to_owned(), after },
                "warning: service `db` exited after 3.2 s with status 3",
            ),
            (
                ContainerProgress::ServiceWrote {
                    service: service(),
                    at: "03:04:05".to_owned(),
                    line: "  ready".to_owned(),
                },
                "  db 03:04:05 |   ready",
            ),
            (
                ContainerProgress::ServiceLog { service: service(), line: "no disk".to_owned() },
                "  db | no disk",
            ),
        ] {
            assert_eq!(container_progress(&progress), line);
        }
    }
}
