//! Output that is faster than its reader.

use std::time::Duration;

use super::caller::{Caller, Task};
use super::{memory_of, only_link, said, until_ready};
use crate::linked::sshd::Sshd;

/// Windows, pipes and buffers of the reader and of the forwarding process.
const MEMORY: u64 = 8 << 20;

#[tokio::test]
async fn a_reader_that_sleeps_costs_the_guest_time_and_nobody_memory() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    until_ready(&sshd).await;
    let link = only_link(&sshd);
    let before = memory_of(link, "VmRSS");
    let script = "head -c 100000000 /dev/zero\n".to_owned();
    let caller = Caller::start(&sshd, "sleepy", Task::Sleepy(script, Duration::from_secs(3)), |_| {});
    let report = caller.finish().await;
    assert_eq!((report.said.as_str(), report.taken), ("Exited(0)", 100_000_000));
    let grown = memory_of(link, "VmHWM").saturating_sub(before);
    eprintln!("the link: {} kB more; its caller: {} kB more", grown >> 10, report.grown >> 10);
    assert!(grown < MEMORY && report.grown < MEMORY, "{grown} {}", report.grown);
    assert_eq!(only_link(&sshd), link);
}
