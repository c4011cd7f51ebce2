//! The events that end a link, and those that do not.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{Connector, StageEnd};
use greenroom_ssh::Ssh;
use greenroom_ssh::link::{LinkSettings, Linked};
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use super::{links, only_link, place, runs, said, saying, signal, until_no_link, until_ready};
use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{Kept, eventually, kill, link_settings, lives, never, stage};

async fn expect_all_gone(sshd: &Sshd) {
    until_no_link(sshd).await;
    eventually("its directory is gone", || !place(sshd).exists()).await;
}

#[tokio::test]
async fn a_link_ends_with_its_connection() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    sshd.cut();
    expect_all_gone(&sshd).await;
    said(&sshd, "true\n").await;
}

#[tokio::test]
async fn a_link_ends_with_the_keys_of_its_instance() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    sshd.connector().discard_keys(&sshd.id).await;
    expect_all_gone(&sshd).await;
}

#[tokio::test]
async fn what_killed_links_left_goes_with_the_keys_of_the_instance() {
    let sshd = Sshd::start().await;
    let script = saying(&sshd, "sleep 600");
    let killing = async {
        runs(&sshd).await;
        kill(only_link(&sshd));
    };
    let ((end, _), ()) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), killing);
    assert!(end.is_err(), "{end:?}");
    assert!(place(&sshd).join("0.lock").exists(), "the note of its stage");
    sshd.connector().discard_keys(&sshd.id).await;
    expect_all_gone(&sshd).await;
    kill(super::session(&sshd));
}

#[tokio::test]
async fn a_link_whose_instance_ends_in_mid_stage_leaves_nothing() {
    let sshd = Sshd::start().await;
    let script = saying(&sshd, "sleep 600");
    let ending = async {
        runs(&sshd).await;
        sshd.connector().discard_keys(&sshd.id).await;
        assert_eq!(links(sshd.dir.path()).len(), 1, "a stage runs");
        sshd.end();
    };
    let ((end, _), ()) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), ending);
    assert!(end.is_err(), "{end:?}");
    expect_all_gone(&sshd).await;
    kill(super::session(&sshd));
}

#[tokio::test]
async fn a_link_ends_when_its_lock_file_is_gone() {
    let sshd = Sshd::with(Set { keepalive: Duration::from_secs(1), ..Set::default() }).await;
    said(&sshd, "true\n").await;
    std::fs::remove_dir_all(place(&sshd)).unwrap();
    let (begun, pace) = (Instant::now(), Pace::watch());
    until_no_link(&sshd).await;
    let took = begun.elapsed();
    assert!(took < pace.stretched(Duration::from_secs(7)), "{took:?}");
}

#[tokio::test]
async fn signals_of_a_terminal_do_not_end_a_link_and_those_of_a_service_do() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let link = only_link(&sshd);
    signal(link, Signal::HUP);
    signal(link, Signal::INT);
    said(&sshd, "true\n").await;
    assert_eq!(only_link(&sshd), link);
    for ending in [Signal::TERM, Signal::QUIT] {
        said(&sshd, "true\n").await;
        signal(only_link(&sshd), ending);
        expect_all_gone(&sshd).await;
    }
}

#[tokio::test]
async fn a_link_told_to_end_finishes_its_stage() {
    for ending in [Signal::TERM, Signal::QUIT] {
        let sshd = Sshd::start().await;
        let gate = sshd.path("gate");
        let wait = format!("until [ -e {} ]; do sleep 0.05; done; echo done; exit 5", gate.display());
        let script = saying(&sshd, &wait);
        let telling = async {
            runs(&sshd).await;
            let link = only_link(&sshd);
            signal(link, ending);
            // Another stage that comes meanwhile has another link.
            assert_eq!(said(&sshd, "echo other\n").await, "other\n");
            assert!(lives(link));
            std::fs::write(&gate, "").unwrap();
            link
        };
        let ((end, kept), link) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), telling);
        assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(5), "done\n"));
        eventually("it ends then", || !lives(link)).await;
    }
}

/// A process that sleeps, in the role of a runner.
struct Runner(Child);

impl Runner {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }

    fn end(&mut self) {
        // It may have been killed already.
        let _gone = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connector for calls of this runner, with a keeper's mailbox.
fn called_by(sshd: &Sshd, runner: &Runner) -> (Linked, UnixDatagram) {
    let pid = Pid::from_raw(runner.0.id().try_into().unwrap()).unwrap();
    // A socket's address holds 108 bytes; the mailbox's path is longer.
    let dir = sshd.path(&"m".repeat(120));
    std::fs::create_dir_all(&dir).unwrap();
    let short = sshd.path("m");
    if !short.exists() {
        std::os::unix::fs::symlink(&dir, &short).unwrap();
    }
    let name = format!("mail-{}", pid.as_raw_nonzero());
    let mailbox = UnixDatagram::bind(short.join(&name)).unwrap();
    mailbox.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let settings = LinkSettings {
        runner: Box::new(move || pidfd_open(pid, PidfdFlags::empty()).ok()),
        mailbox: Some(dir.join(name)),
        ..link_settings(sshd.dir.path())
    };
    (Linked::new(Ssh::new(sshd.settings.clone()), settings), mailbox)
}

/// Waits for the wake-up that a runner is gone; returns how long that took.
fn hinted(mailbox: &UnixDatagram) -> Duration {
    let begun = Instant::now();
    let size = mailbox.recv(&mut [0; 16]).unwrap();
    assert!(size > 0);
    begun.elapsed()
}

async fn run_by(sshd: &Sshd, linked: &Linked, script: &str) -> (StageEnd, String) {
    let mut kept = Kept::default();
    let end = linked.run(&sshd.id, &sshd.at, stage(Shell::Bash, script), &mut kept, never()).await;
    (end.unwrap(), kept.out())
}

#[tokio::test]
async fn a_link_tells_the_keeper_of_its_runners_end_and_goes_with_one_of_its_own_control_group() {
    let sshd = Sshd::start().await;
    for check in [false, true] {
        let mut runner = Runner::start();
        let (linked, mailbox) = called_by(&sshd, &runner);
        if check {
            linked.check(&sshd.id, &sshd.at, Duration::from_secs(10)).await.unwrap();
        } else {
            assert_eq!(run_by(&sshd, &linked, "echo hi\n").await, (StageEnd::Exited(0), "hi\n".to_owned()));
        }
        assert_eq!(links(sshd.dir.path()).len(), 1);
        let pace = Pace::watch();
        runner.end();
        let took = hinted(&mailbox);
        eprintln!("the keeper heard of the runner's end after {took:?} (check: {check})");
        assert!(took < pace.stretched(Duration::from_secs(1)), "{took:?}");
        expect_all_gone(&sshd).await;
    }
}

#[tokio::test]
async fn of_two_runners_the_last_one_counts() {
    let sshd = Sshd::start().await;
    let (mut first, second) = (Runner::start(), Runner::start());
    let (of_first, unheard) = called_by(&sshd, &first);
    let (of_second, _mailbox) = called_by(&sshd, &second);
    run_by(&sshd, &of_first, "true\n").await;
    run_by(&sshd, &of_second, "true\n").await;
    let link = only_link(&sshd);
    first.end();
    unheard.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(unheard.recv(&mut [0; 16]).is_err(), "its job has ended");
    run_by(&sshd, &of_second, "true\n").await;
    assert_eq!(only_link(&sshd), link);
}

/// A control group of this test's own, if one can be made.
struct Group(std::path::PathBuf);

impl Group {
    fn make() -> Option<Self> {
        let name = format!("greenroom-test-{}", std::process::id());
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"];
        let found = roots.into_iter().map(std::path::Path::new).find_map(|root| {
            let group = root.join(&name);
            (root.join("cgroup.procs").exists() && std::fs::create_dir(&group).is_ok()).then_some(group)
        });
        found.map(Self)
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have exited; the kernel may need a moment to notice.
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[tokio::test]
async fn a_link_outside_the_runners_control_group_stays_when_the_runner_goes() {
    let Some(group) = Group::make() else {
        skipped("control groups cannot be made");
        return;
    };
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let link = only_link(&sshd);
    // As if the keeper's service had started it.
    group.take(link);
    let mut runner = Runner::start();
    let (linked, mailbox) = called_by(&sshd, &runner);
    run_by(&sshd, &linked, "true\n").await;
    let pace = Pace::watch();
    runner.end();
    let took = hinted(&mailbox);
    assert!(took < pace.stretched(Duration::from_secs(1)), "{took:?}");
    until_ready(&sshd).await;
    said(&sshd, "true\n").await;
    assert_eq!(only_link(&sshd), link);
    sshd.connector().discard_keys(&sshd.id).await;
    expect_all_gone(&sshd).await;
}
