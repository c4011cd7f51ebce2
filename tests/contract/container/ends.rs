//! The ends of stages in containers.

use std::time::{Duration, Instant};

use greenroom_core::container::name::ContainerName;
use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Stage, StageEnd};

use super::world::{Guest, WAYS, inside, is_inside};
use crate::linked::support::{never, stage};

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_script_ends_with_its_own_status_in_every_shell() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let plain: &[&str] = &[];
    for (image, options, said) in [
        ("ash", plain, "0 no\n"),
        ("bash", plain, "0 no\n"),
        ("dash", plain, "0 no\n"),
        ("ash", &["--user=1000:1000"], "1000 no\n"),
        ("bash", &["--entrypoint="], "0 no\n"),
        ("ash", &["--entrypoint=[\"\"]"], "0 no\n"),
        ("bash", &["--entrypoint=entry"], "0 yes\n"),
        ("dash", &["--entrypoint=[\"/bin/sh\",\"-c\"]"], "0 no\n"),
    ] {
        let name = Guest::create(image, options);
        for (way, code) in WAYS.into_iter().flat_map(|way| [0, 7, 125, 127, 255].map(|code| (way, code))) {
            let script = format!("echo $(id -u) ${{ENTERED:-no}}; echo err >&2; exit {code}\n");
            let (end, kept) = guest.run_in(way, &name, &script).await;
            assert_eq!(end, StageEnd::Exited(code), "{way:?} {image} {options:?} {kept:?}");
            assert_eq!(
                (kept.out().as_str(), kept.err().as_str()),
                (said, "err\n"),
                "{way:?} {image} {options:?}"
            );
        }
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_script_that_no_shell_reads_is_never_a_success() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for (image, options, why) in [
        ("ash", &["--entrypoint=/bin/echo"][..], "did not start a shell, or a file"),
        ("ash", &["--entrypoint=/bin/cat"], "ended with exit status 1 before"),
        ("ash", &["--entrypoint=three"], "ended with exit status 3 before a shell read the script"),
        ("ash", &["--entrypoint=bad"], "entrypoint `/bin/bad` cannot be started"),
        ("ash", &["--entrypoint=missing"], "entrypoint `missing` cannot be started"),
        ("ash", &["--user=nobody-here"], "lacks the job's user"),
        ("bash", &["--env=BASH_ENV=/bin/quits"], "a file that the shell reads first ended it"),
        ("none", &[], "has no shell"),
        ("none", &["--entrypoint=[\"/bin/tool\",\"env\"]"], "has no shell"),
    ] {
        let name = Guest::create(image, options);
        for way in WAYS {
            let (end, kept) = guest.run(way, inside(&name, "echo it ran\n"), never()).await;
            let (Ok(StageEnd::Impossible(found)) | Err(ConnectError::NoContainer { if_ran: found, .. })) =
                &end
            else {
                panic!("{way:?} {options:?}: {end:?} {kept:?}")
            };
            assert!(found.contains(why), "{way:?} {options:?}: {found}");
        }
    }
    let nowhere = ContainerName::parse("nowhere").unwrap();
    for way in WAYS {
        let (end, _) = guest.run(way, inside(&nowhere, "true\n"), never()).await;
        let Err(ConnectError::NoContainer { why, .. }) = &end else { panic!("{way:?}: {end:?}") };
        assert!(why.to_lowercase().contains("no such container"), "{why}");
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn long_scripts_and_long_outputs_arrive_whole() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let comments = format!("# {}\n", "x".repeat(97)).repeat(30_000);
    let script =
        format!("{comments}yes 123456789 | head -c 1000000 >&2; yes 123456789 | head -c 1000000; exit 9\n");
    for image in ["ash", "bash", "dash"] {
        let name = Guest::create(image, &[]);
        for way in WAYS {
            let (end, kept) = guest.run_in(way, &name, &script).await;
            assert_eq!(end, StageEnd::Exited(9), "{way:?} {image}");
            assert_eq!((kept.stdout.len(), kept.stderr.len()), (1_000_000, 1_000_000), "{way:?} {image}");
        }
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_background_process_ends_with_its_stage() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    for way in WAYS {
        let begun = Instant::now();
        let (end, kept) =
            guest.run_in(way, &name, "sleep 600 & echo x >>/tmp/x; wc -l </tmp/x; exit 3\n").await;
        assert_eq!(end, StageEnd::Exited(3), "{way:?}");
        assert!(begun.elapsed() < Duration::from_mins(1), "{way:?}");
        let lines = WAYS.iter().position(|w| *w == way).unwrap() + 1;
        assert_eq!(kept.out().trim(), lines.to_string(), "the container's files stay");
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_shell_that_cannot_read_a_script_is_named() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for (image, named) in [("ash", false), ("bash", false), ("dash", true)] {
        let name = Guest::create(image, &[]);
        for way in WAYS {
            let (end, kept) = guest.run_in(way, &name, "echo $'it\\'s'\nexit 2\n").await;
            assert_eq!(end, StageEnd::Exited(2), "{way:?} {image}");
            assert_eq!(kept.err().contains("FF_POSIXLY_CORRECT_ESCAPES"), named, "{way:?} {image}: {kept:?}");
        }
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_stage_on_the_guest_itself_may_have_an_open_umask() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for (way, shell) in WAYS.into_iter().flat_map(|way| [Shell::Bash, Shell::Sh].map(|shell| (way, shell))) {
        for (open_umask, expected) in [(true, "0000\n"), (false, "0022\n")] {
            let stage = Stage { open_umask, ..stage(shell, "umask\n") };
            let (end, kept) = guest.run(way, stage, never()).await;
            assert_eq!(
                (end.unwrap(), kept.out().as_str()),
                (StageEnd::Exited(0), expected),
                "{way:?} {shell}"
            );
        }
    }
}
