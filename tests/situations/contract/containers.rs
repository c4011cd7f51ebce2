//! Kind: the job log has what a script in a container wrote, in its order, and ends with the script. A script runs from its
//! first line, or not at all.

use std::fs;
use std::time::{Duration, Instant};

use greenroom_ports::connector::{Stage, StageEnd};
use greenroom_testkit::pace::Pace;

use super::world::{Guest, WAYS, Way, inside, is_inside};
use crate::linked::sshd::Set;
use crate::linked::support::never;

/// The lines stand as in GitLab's Docker executor: a test's errors beside the test.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn lines_of_both_streams_come_in_the_order_in_which_the_script_wrote_them() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done; exit 3\n";
    let expected = (1..=100).map(|i| format!("out {i}\nerr {i}\n")).collect::<Vec<_>>().concat();
    for image in ["ash", "bash", "dash"] {
        let name = Guest::create(image, &[]);
        for way in WAYS {
            let joined = Stage { separate_stderr: false, ..inside(&name, script) };
            let (end, kept) = guest.run(way, joined, never()).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(3), "{way:?} {image}: {kept:?}");
            assert_eq!((kept.out(), kept.err().as_str()), (expected.clone(), ""), "{way:?} {image}");
        }
    }
}

/// A server that the script started in the background goes on writing.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_background_process_that_talks_does_not_hold_the_stage() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let scripts = [
        "(while :; do echo talk; sleep 0.1; done) & echo begun; exit 6\n",
        "trap 'echo own' EXIT; (while :; do echo talk; sleep 0.1; done) & echo begun; exit 6\n",
    ];
    for image in ["ash", "bash"] {
        let name = Guest::create(image, &[]);
        for (way, script) in WAYS.into_iter().flat_map(|way| scripts.map(|script| (way, script))) {
            let (begun, pace) = (Instant::now(), Pace::watch());
            let joined = Stage { separate_stderr: false, ..inside(&name, script) };
            let (end, kept) = guest.run(way, joined, never()).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(6), "{way:?} {image}: {kept:?}");
            assert!(kept.out().contains("begun\n"), "{kept:?}");
            let took = begun.elapsed();
            assert!(took < pace.stretched(Duration::from_secs(9)), "{way:?} {image}: {took:?}");
        }
    }
}

/// Something before the shell reads standard input. Without its first lines, the script would deploy after a failure.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn nothing_of_a_script_runs_when_its_beginning_was_read_by_something_else() {
    if !is_inside() {
        return;
    }
    let guest = Guest::with(Set { first_line: Duration::from_secs(8), ..Set::default() }).await;
    let deployed = guest.sshd.path("deployed");
    fs::create_dir(&deployed).unwrap();
    let volume = format!("--volume={}:/deployed", deployed.display());
    let script = "set -eo pipefail\n:\n:\n:\n:\nfalse\necho ran >>/deployed/it; echo ran\n";
    let run = async |option: &str, way| {
        let name = Guest::create("bash", &[option, &volume]);
        let joined = Stage { separate_stderr: way == Way::Link, ..inside(&name, script) };
        let (end, kept) = guest.run(way, joined, never()).await;
        let said = kept.out() + &kept.err();
        assert_eq!(
            fs::read_dir(&deployed).unwrap().count(),
            0,
            "{way:?} {option}: it went on after `false`: {said}"
        );
        assert!(said.contains("greenroom: no shell in the container has read the first line"), "{said}");
        assert!(!said.contains("ran\n"), "{way:?} {option}: {said}");
        let end = end.unwrap();
        let is_named =
            matches!(&end, StageEnd::Impossible(why) if why.contains("within 8 s: the image's entrypoint"));
        assert!(is_named, "{way:?} {option}: {end:?} {said}");
    };
    let (file, entrypoint) = ("--env=BASH_ENV=/bin/six", "--entrypoint=six");
    tokio::join!(
        run(file, Way::Link),
        run(entrypoint, Way::Link),
        run(file, Way::Connection),
        run(entrypoint, Way::Connection),
    );
}

/// A slow entrypoint is no reason to give up.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_script_waits_for_a_slow_entrypoint() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for image in ["ash", "bash", "dash"] {
        let name = Guest::create(image, &["--entrypoint=slow"]);
        for way in WAYS {
            let (end, kept) = guest.run_in(way, &name, "set -e\necho begun\n(exit 7)\necho never\n").await;
            assert_eq!(end, StageEnd::Exited(7), "{way:?} {image}: {kept:?}");
            assert_eq!((kept.out().as_str(), kept.err().as_str()), ("begun\n", ""), "{way:?} {image}");
        }
    }
}
