//! The lines of the job log while a job's containers are prepared.

use greenroom_core::container::settings::PullPolicy;
use greenroom_core::text::size;
use greenroom_core::time::Pretty;
use greenroom_engine::container::ContainerProgress;
use greenroom_engine::container::debug::{skipped, written};

/// One line for each step of progress.
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

    use super::*;

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
