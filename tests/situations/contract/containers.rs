//! Kind: the job log has what a script in a container wrote, in its order, and ends with the script.

use std::time::{Duration, Instant};

use greenroom::port::connector::{Stage, StageEnd};

use super::world::{Guest, WAYS, inside, is_inside};
use crate::linked::support::never;
use crate::pace::Pace;

/// As in GitLab's Docker executor: a test's errors stand beside the test.
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
