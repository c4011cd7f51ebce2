//! The contract of `port::wakeups`: messages and signals.

use super::*;

fn deaf(home: &Path) -> (Proc, std::process::ChildStdin) {
    let mut command = child_command("deaf", home);
    command.stdin(Stdio::piped());
    let mut call = Proc::start(command);
    call.hear_word("begun");
    let stdin = call.child.stdin.take().unwrap();
    (call, stdin)
}

#[test]
fn a_sigterm_before_the_wait_is_not_lost_and_stays() {
    let home = home();
    let (mut call, mut stdin) = deaf(home.path());
    signal(call.pid(), Signal::TERM);
    stdin.write_all(b"\n").unwrap();
    call.hear_word("Stop");
    call.hear_word("Stop");
}

#[tokio::test]
async fn hangup_interrupt_and_quit_do_not_stop_a_call() {
    let home = home();
    let (mut call, mut stdin) = deaf(home.path());
    for swallowed in [Signal::HUP, Signal::INT, Signal::QUIT] {
        signal(call.pid(), swallowed);
    }
    let host = operator(&home.path().join("state"));
    host.wake_attempt(&name()).await;
    stdin.write_all(b"\n").unwrap();
    call.hear_word("Message");
    signal(call.pid(), Signal::TERM);
    call.hear_word("Stop");
}

#[tokio::test]
async fn a_wake_up_crosses_processes_within_milliseconds() {
    let home = home();
    let mut call = start("echo", home.path());
    call.hear_word("begun");
    let host = operator(&home.path().join("state"));
    let mut taken: Vec<i64> = Vec::new();
    for _ in 0..100 {
        let sent = nanoseconds();
        host.wake_attempt(&name()).await;
        let woken: i64 = call.hear().parse().unwrap();
        taken.push((woken - sent) / 1000);
    }
    taken.sort_unstable();
    println!("wake-up across processes: median {} us, worst of 100 {} us", taken[50], taken[99]);
    assert!(taken[50] <= 5_000, "{taken:?}");
}
