//! Guests that make trouble for the shell that waits for the next stage.

use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{Connector, RemoteCommand, Stage, StageEnd};
use greenroom_ssh::link::Linked;
use greenroom_ssh::{Ssh, SshSettings};
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;

use super::{figures, links, memory_of, only_link, runs, said, saying, ticks_of, until_ready};
use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{
    Kept, after, children_of, eventually, kill, linked_through, lives, never, number, stage,
};
use crate::trick::{HOST, Trick, serve};

const WITHIN: Duration = Duration::from_secs(10);

/// The server's process of the link's connection: the parent of its shells.
async fn serving(sshd: &Sshd) -> u32 {
    number(&said(sshd, "echo parent=$PPID\n").await, "parent")
}

#[tokio::test]
async fn a_waiting_shell_that_is_killed_is_replaced() {
    let sshd = Sshd::start().await;
    let parent = serving(&sshd).await;
    let link = only_link(&sshd);
    for _ in 0..3 {
        until_ready(&sshd).await;
        let before = children_of(parent);
        assert_eq!(before.len(), 1, "one shell waits");
        kill(before[0]);
        eventually("another one waits", || children_of(parent).iter().any(|shell| !before.contains(shell)))
            .await;
        assert_eq!(said(&sshd, "echo fine\n").await, "fine\n");
    }
    assert_eq!(only_link(&sshd), link);
}

#[tokio::test]
async fn a_waiting_shell_that_is_killed_again_and_again_is_not_started_without_end() {
    let sshd = Sshd::start().await;
    let parent = serving(&sshd).await;
    let link = only_link(&sshd);
    let (begun, before) = (Instant::now(), ticks_of(link));
    let mut killed = Vec::new();
    while begun.elapsed() < Duration::from_secs(4) {
        for shell in children_of(parent) {
            if !killed.contains(&shell) {
                killed.push(shell);
                kill(shell);
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    eprintln!("{} shells in 4 s, {} ms of CPU", killed.len(), (ticks_of(link) - before) * 10);
    // At 0, 0.2, 0.6, 1.4 and 3 s; and sweepers or the like.
    assert!(killed.len() <= 8, "{killed:?}");
    sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    // It does not wait for the rest to exit.
    let (begun, pace) = (Instant::now(), Pace::watch());
    assert_eq!(said(&sshd, "echo fine\n").await, "fine\n");
    let took = begun.elapsed();
    assert!(took < pace.stretched(Duration::from_secs(2)), "{took:?}");
    assert_eq!(only_link(&sshd), link);
}

#[tokio::test]
async fn a_guest_without_bash_and_pkill_works_on_one_connection() {
    let sshd = Sshd::start().await;
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|p| std::fs::exists(p).unwrap());
    let busybox = busybox.expect("this test needs busybox: `apt-get install busybox`");
    for name in ["sh", "sleep", "mv", "true", "date"] {
        std::os::unix::fs::symlink(busybox, sshd.path("home").join(name)).unwrap();
    }
    // Its PATH contains nothing else.
    let home = sshd.path("home");
    sshd.login_through(&format!("PATH={} exec {busybox} sh -c \"$SSH_ORIGINAL_COMMAND\"", home.display()));
    sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    for n in 0..3 {
        let script = format!("echo {n}; command -v pkill bash && exit 9; exit 0\n");
        let (end, kept) = sshd.run(stage(Shell::Sh, script), never()).await;
        assert_eq!((end.unwrap(), kept.out()), (StageEnd::Exited(0), format!("{n}\n")), "{kept:?}");
    }
    let script = saying(&sshd, "sleep 600 & sleep 600");
    let (end, _) = sshd.run(stage(Shell::Sh, script), runs(&sshd)).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    assert_eq!(crate::linked::support::living_of(super::session(&sshd)), Vec::<u32>::new());
    until_ready(&sshd).await;
    sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
    let log = std::fs::read_to_string(sshd.path("log")).unwrap();
    assert_eq!(log.matches("Accepted publickey").count(), 1, "{log}");
    // A shell that the guest does not have reads no script.
    for _ in 0..2 {
        let (end, kept) = sshd.run(stage(Shell::Bash, "echo hello\n"), never()).await;
        let error = end.unwrap_err().to_string();
        assert!(
            error.contains("exit status 127 before the script began: ") && error.contains("not found"),
            "{error}"
        );
        assert!(kept.err().contains("not found"), "{kept:?}");
    }
    let (end, _) = sshd.run(stage(Shell::Sh, "exit 4\n"), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(4));
}

#[tokio::test]
async fn stages_follow_each_other_on_a_server_with_one_session_or_ten() {
    for config in ["MaxSessions 10", "MaxSessions 1"] {
        let set = Set { config, linger: Duration::from_millis(100), ..Set::default() };
        let sshd = Sshd::with(set).await;
        for n in 0..15 {
            // As `prepare` does, and a stage that comes before the next shell exists.
            sshd.connector()
                .check(&sshd.id, &sshd.at, WITHIN)
                .await
                .unwrap_or_else(|e| panic!("{config}, {n}: {e}"));
            let (end, kept) = sshd.run(stage(Shell::Bash, format!("echo {n}\n")), never()).await;
            assert_eq!(end.unwrap_or_else(|e| panic!("{config}, {n}: {e}")), StageEnd::Exited(0), "{kept:?}");
            assert_eq!(kept.out(), format!("{n}\n"));
        }
        for n in 0..15 {
            let (end, kept) = sshd.run(stage(Shell::Bash, format!("exit {n}\n")), never()).await;
            assert_eq!(end.unwrap_or_else(|e| panic!("{config}, {n}: {e}")), StageEnd::Exited(n), "{kept:?}");
        }
        // A background process keeps the session's output open.
        for n in 0..5 {
            let script = "sleep 600 & echo pid=$!\n";
            let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
            assert_eq!(end.unwrap_or_else(|e| panic!("{config}, {n}: {e}")), StageEnd::Exited(0), "{kept:?}");
            let sleeper = number(&kept.out(), "pid");
            said(&sshd, "true\n").await;
            kill(sleeper);
        }
        for _ in 0..3 {
            let script = saying(&sshd, "sleep 600 & while :; do sleep 0.1; done");
            let (end, _) = sshd.run(stage(Shell::Bash, script), runs(&sshd)).await;
            assert_eq!(end.unwrap(), StageEnd::Stopped);
            assert_eq!(said(&sshd, "echo after\n").await, "after\n");
        }
        sshd.connector().check(&sshd.id, &sshd.at, WITHIN).await.unwrap();
        eprintln!("{config}: {:?}", figures(&sshd).await);
    }
}

/// Memory that a link may use beyond what it had when its connection stood.
const MEMORY: u64 = 6 << 20;
/// The time for which a link is left alone with a hostile guest.
const ALONE: Duration = Duration::from_secs(3);

/// A guest that misbehaves towards the waiting shell, and what reaches it.
struct Trickster {
    dir: tempfile::TempDir,
    linked: Linked,
    id: InstanceId,
    at: Endpoint,
    serving: tokio::task::JoinHandle<()>,
}

impl Trickster {
    async fn start(trick: Trick) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings =
            SshSettings { keepalive: Duration::from_secs(1), ..SshSettings::new(dir.path().join("keys")) };
        let id = InstanceId::new("guest");
        Ssh::new(settings.clone()).keys(&id).await.unwrap();
        let (port, serving) = serve(trick).await;
        let at = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
            user: "ci".to_owned(),
            host_key: HOST.public_key().to_openssh().unwrap(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let linked = linked_through(&settings, dir.path());
        Self { dir, linked, id, at, serving }
    }

    /// Starts a link, which is then alone with the guest.
    async fn link(&self) -> u32 {
        let checking = self.linked.check(&self.id, &self.at, WITHIN);
        // Whether it responds does not matter here.
        let checked = tokio::time::timeout(Duration::from_secs(1), checking).await;
        let found = links(self.dir.path());
        assert_eq!(found.len(), 1, "{checked:?}");
        found[0]
    }

    async fn end(self) {
        self.linked.discard_keys(&self.id).await;
        self.serving.abort();
        eventually("the link ends", || links(self.dir.path()).is_empty()).await;
    }
}

#[tokio::test]
async fn a_waiting_shell_that_floods_or_ends_at_once_costs_a_link_next_to_nothing() {
    for trick in [Trick::WaitingFloods, Trick::WaitingEnds] {
        let guest = Trickster::start(trick).await;
        let link = guest.link().await;
        let (memory, ticks) = (memory_of(link, "VmRSS"), ticks_of(link));
        tokio::time::sleep(ALONE).await;
        let grown = memory_of(link, "VmHWM").saturating_sub(memory);
        let busy = Duration::from_millis(10 * (ticks_of(link) - ticks));
        eprintln!("{trick:?}: {} kB more, {busy:?} of CPU in {ALONE:?}", grown >> 10);
        assert!(grown < MEMORY, "{trick:?}: {grown}");
        assert!(busy < ALONE / 4, "{trick:?}: {busy:?}");
        // A stage that comes now has its end.
        let begun = Instant::now();
        let stop = after(Duration::from_secs(3));
        let stage = Stage { start_within: Duration::from_secs(2), ..stage(Shell::Bash, "true\n") };
        let end = guest.linked.run(&guest.id, &guest.at, stage, &mut Kept::default(), stop).await;
        eprintln!("{trick:?}: a stage then: {end:?}, {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(40), "{trick:?}: {:?}", begun.elapsed());
        guest.end().await;
    }
}

/// Queried eight at a time.
#[tokio::test]
async fn a_guest_that_keeps_an_idle_link_busy_is_left_alone() {
    for trick in [Trick::WaitingAsks, Trick::WaitingOpens] {
        let guest = Trickster::start(trick).await;
        let link = guest.link().await;
        let (memory, begun, before) = (memory_of(link, "VmRSS"), Instant::now(), ticks_of(link));
        let (mut peak, mut ticks) = (0_u64, 0);
        while let Some(now) = lives(link).then(|| memory_of(link, "VmRSS")) {
            (peak, ticks) = (now.max(peak), ticks_of(link));
            if begun.elapsed() > Duration::from_secs(30) {
                // It exits at a tenth of a processor, which it may not get beside much other work.
                let used = Duration::from_millis(10 * (ticks - before));
                assert!(used * 10 < begun.elapsed(), "{trick:?}: it goes on, with {used:?}");
                guest.end().await;
                return skipped("the processor is too busy to keep a link busy");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (grown, busy) = (peak.saturating_sub(memory), Duration::from_millis(10 * ticks));
        eprintln!("{trick:?}: {} kB more and {busy:?} of CPU in {:?}", grown >> 10, begun.elapsed());
        assert!(grown < MEMORY, "{trick:?}: {grown}");
        // The next call starts another.
        assert_ne!(guest.link().await, link);
        guest.end().await;
    }
}

/// The keeper's commands between jobs cost the next job nothing.
#[tokio::test]
async fn a_command_leaves_the_shell_that_waits_for_the_next_job() {
    for config in ["MaxSessions 10", "MaxSessions 1"] {
        let sshd = Sshd::with(Set { config, ..Set::default() }).await;
        let parent = serving(&sshd).await;
        until_ready(&sshd).await;
        let before = children_of(parent);
        assert_eq!(before.len(), 1, "one shell waits");
        for _ in 0..2 {
            let mut kept = Kept::default();
            let command = RemoteCommand {
                text: "exec /bin/sh -s",
                input: "echo checked\n",
                within: WITHIN,
                start_within: WITHIN,
                shared: true,
            };
            let end = sshd.connector().command(&sshd.id, &sshd.at, command, &mut kept).await;
            assert_eq!((end.unwrap(), kept.out()), (StageEnd::Exited(0), "checked\n".to_owned()));
        }
        until_ready(&sshd).await;
        let after = children_of(parent);
        assert_eq!(after.len(), 1, "one shell waits");
        assert_eq!(after == before, config == "MaxSessions 10", "{config}: {before:?} {after:?}");
        assert_eq!(said(&sshd, "echo fine\n").await, "fine\n");
    }
}
