//! The course of a stage on a guest without faults.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{Connector, Output, RemoteCommand, Stage, StageEnd, Stream};
use greenroom_ports::tail::Tail;
use greenroom_ssh::Ssh;
use greenroom_testkit::pace::Pace;

use super::sshd::{Set, Sshd};
use super::support::{Counted, Kept, eventually, kill, lives, living_of, never, number, stage};

const LOGIN_SHELLS: [Option<&str>; 4] = [None, Some("bash"), Some("busybox ash"), Some("dash")];

#[tokio::test]
async fn a_script_ends_with_its_own_exit_code_in_every_shell() {
    for login in LOGIN_SHELLS {
        let sshd = Sshd::with(Set { login, ..Set::default() }).await;
        for shell in [Shell::Bash, Shell::Sh] {
            for code in [0, 1, 42, 255] {
                let script = format!("echo out; echo err >&2; exit {code}\n");
                let (end, kept) = sshd.run(stage(shell, script), never()).await;
                assert_eq!(end.unwrap(), StageEnd::Exited(code), "{login:?} {shell}");
                assert_eq!(
                    (kept.out().as_str(), kept.err().as_str()),
                    ("out\n", "err\n"),
                    "{login:?} {shell}"
                );
            }
        }
    }
}

#[tokio::test]
async fn busybox_can_be_the_interpreter() {
    let sshd = Sshd::start().await;
    let bin = sshd.path("home");
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|p| fs::exists(p).unwrap());
    let busybox = busybox.expect("this test needs busybox: `apt-get install busybox`");
    std::os::unix::fs::symlink(busybox, bin.join("sh")).unwrap();
    // A login shell whose PATH begins with busybox: `sh` is then its ash.
    sshd.login_through(&format!("PATH={}:$PATH exec sh -c \"$SSH_ORIGINAL_COMMAND\"", bin.display()));
    let script = "readlink /proc/$$/exe; exit 42\n";
    let (end, kept) = sshd.run(stage(Shell::Sh, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(42));
    assert!(kept.out().contains("busybox"), "{kept:?}");
}

#[tokio::test]
async fn a_signal_is_not_an_exit_code() {
    let sshd = Sshd::start().await;
    for signal in ["KILL", "TERM", "SEGV"] {
        let (end, _) = sshd
            .run(stage(Shell::Bash, format!("ulimit -c 0; kill -{signal} $$; sleep 60\n")), never())
            .await;
        assert_eq!(end.unwrap(), StageEnd::Signalled(signal.to_owned()));
    }
}

#[tokio::test]
async fn fifty_megabytes_of_anything_arrive_unharmed_on_their_own_stream() {
    let sshd = Sshd::start().await;
    let mut random = vec![0; 50 << 20];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom").unwrap(), &mut random).unwrap();
    let (one, two) = random.split_at(25 << 20);
    fs::write(sshd.path("one"), one).unwrap();
    fs::write(sshd.path("two"), two).unwrap();
    let script = format!("cat {0}/one & cat {0}/two >&2; wait; exit 7\n", sshd.dir.path().display());
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(7));
    assert!(kept.stdout == one, "{} bytes of standard output", kept.stdout.len());
    assert!(kept.stderr == two, "{} bytes of standard error", kept.stderr.len());
}

#[tokio::test]
async fn what_comes_after_the_exit_status_is_not_lost() {
    let sshd = Sshd::start().await;
    let script = "(sleep 0.4; echo late; echo late >&2) & echo early; exit 3\n";
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(3));
    assert_eq!((kept.out().as_str(), kept.err().as_str()), ("early\nlate\n", "late\n"));
}

#[tokio::test]
async fn a_background_process_holds_the_stage_no_longer_than_it_talks() {
    let sshd = Sshd::with(Set { linger: Duration::from_secs(4), ..Set::default() }).await;
    let (begun, pace) = (Instant::now(), Pace::watch());
    let script = "(for i in 1 2 3 4 5; do sleep 0.2; echo $i; done; exec sleep 600) & echo pid=$!; exit 0\n";
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(0));
    assert!(kept.out().ends_with("5\n"), "{kept:?}");
    let named =
        format!("greenroom: background process `sleep` (pid {}) of the script", number(&kept.out(), "pid"));
    assert!(kept.err().starts_with(&named), "{kept:?}");
    let took = begun.elapsed();
    assert!(took < pace.stretched(Duration::from_secs(9)), "{took:?}");
    let sleeper = number(&kept.out(), "pid");
    assert!(lives(sleeper), "it was left in peace");
    kill(sleeper);
}

#[tokio::test]
async fn a_script_of_forty_megabytes_runs_while_its_output_is_read() {
    let sshd = Sshd::start().await;
    let line = format!(": {}\n", "x".repeat(997));
    let mut script = String::with_capacity(41 << 20);
    for n in 0..40 {
        script.push_str(&line.repeat(1024));
        script = script + "printf %010000d " + &n.to_string() + "\n";
    }
    script.push_str("exit 9\n");
    let (end, kept) = sshd.run(stage(Shell::Sh, script), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(9));
    assert_eq!(kept.stdout.len(), 400_000);
}

#[tokio::test]
async fn a_guest_may_leave_the_rest_of_a_script_unread() {
    let sshd = Sshd::start().await;
    let script = format!("echo enough; exit 3\n{}", "# never read\n".repeat(3_000_000));
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(3), "enough\n"));
}

#[tokio::test]
async fn a_script_that_reads_its_input_finds_it_closed_behind_the_script() {
    let sshd = Sshd::start().await;
    // The form in which the runner writes scripts: the body's input is not the script.
    let script = "(cat; echo body) < /dev/null\necho after\n";
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(0), "body\nafter\n"));
    let (end, kept) = sshd.run(stage(Shell::Bash, "read line || echo end of input\n"), never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(0), "end of input\n"));
}

#[tokio::test]
async fn a_stage_that_closes_its_output_still_ends_with_its_exit_code() {
    let sshd = Sshd::start().await;
    let (end, kept) = sshd.run(stage(Shell::Bash, "exec >&- 2>&-; sleep 0.3; exit 5\n"), never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str(), kept.err().as_str()), (StageEnd::Exited(5), "", ""));
}

#[tokio::test]
async fn what_a_profile_prints_is_no_output_and_never_the_session() {
    // The account's own shell may be bash as well and has run before.
    let profile = "[ -z \"$SEEN\" ] || return; export SEEN=1; echo 4711 >&2; echo hello; echo greenroom-session-00000000000000000000000000000000-1 >&2\n\
                   head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2\n";
    let sshd = Sshd::with(Set { login: Some("bash"), profile, ..Set::default() }).await;
    let (end, kept) = sshd.run(stage(Shell::Bash, "echo script; exit 4\n"), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(4));
    assert_eq!((kept.out().as_str(), kept.err().as_str()), ("script\n", ""));
}

#[tokio::test]
async fn a_profile_that_hangs_is_no_start_and_its_script_never_runs() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    // The account's own shell may be bash as well and has run before.
    let profile = format!(
        "[ -z \"$SEEN\" ] || return; export SEEN=1; echo $$ >{at}/pid; while [ ! -e {at}/go ]; do sleep 0.05; done\n"
    );
    let sshd = Sshd::with(Set { login: Some("bash"), profile: &profile, ..Set::default() }).await;
    let script = format!("echo ran; echo $$ >{at}/ran\n");
    let mut kept = Kept::default();
    let impatient = Stage { start_within: Duration::from_secs(6), ..stage(Shell::Bash, &script) };
    let run = Ssh::new(sshd.settings.clone());
    let end = run.run(&sshd.id, &sshd.at, impatient, &mut kept, never()).await;
    let error = end.unwrap_err().to_string();
    assert!(error.ends_with("the instance did not start the stage within 6 s"), "{error}");
    fs::write(dir.path().join("go"), "").unwrap();
    let shell = fs::read_to_string(dir.path().join("pid")).unwrap().trim().parse().unwrap();
    eventually("the profile's shell ends", || living_of(shell).is_empty()).await;
    assert!(!dir.path().join("ran").exists(), "the script ran after it had been given up");
    let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(0), "ran\n"));
}

#[tokio::test]
async fn nothing_of_ours_is_in_the_output_or_the_environment() {
    let sshd = Sshd::start().await;
    let (_, kept) = sshd.run(stage(Shell::Bash, "env; tr '\\0' ' ' </proc/$$/cmdline\n"), never()).await;
    assert_eq!(kept.err(), "");
    assert!(!kept.out().contains("greenroom"), "{}", kept.out());
    assert!(kept.out().ends_with("bash "), "{}", kept.out());
}

#[tokio::test]
async fn output_that_nobody_takes_holds_the_guest() {
    /// Takes a megabyte, then sleeps.
    struct Slow(u64);
    #[async_trait::async_trait(?Send)]
    impl greenroom_ports::connector::Output for Slow {
        async fn write(&mut self, _: Stream, bytes: &[u8]) -> std::io::Result<()> {
            self.0 += bytes.len() as u64;
            if self.0 > 1 << 20 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    let sshd = Sshd::start().await;
    let counter = sshd.path("written");
    let script = format!(
        "for i in $(seq 1 1000); do head -c 100000 /dev/zero; echo $i >{}; done\n",
        counter.display()
    );
    let mut slow = Slow(0);
    let mut last = (String::new(), 0);
    let at_stall = Rc::new(Cell::new(0_u64));
    let seen = Rc::clone(&at_stall);
    let stalled = super::support::when(move || {
        // The count does not change during a hundred polls of 5 ms each. An empty file is a count that is being
        // written.
        let now = fs::read_to_string(&counter).unwrap_or_default();
        let Ok(count) = now.trim().parse() else { return false };
        last = if last.0 == now { (now, last.1 + 1) } else { (now, 0) };
        seen.set(count);
        last.1 == 100
    });
    let end = sshd.connector().run(&sshd.id, &sshd.at, stage(Shell::Bash, script), &mut slow, stalled).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    // Checked before the stop, which discards the output and lets the guest continue until it is gone.
    let written = at_stall.get();
    assert!(written < 120, "{written} × 100 kB were taken from the guest");
}

#[tokio::test]
async fn a_check_is_passed_by_a_guest_that_runs_commands_and_by_no_other() {
    let sshd = Sshd::start().await;
    sshd.connector().check(&sshd.id, &sshd.at, Duration::from_secs(10)).await.unwrap();
    let nologin = Sshd::with(Set { login: Some("/usr/sbin/nologin"), ..Set::default() }).await;
    let text = nologin
        .connector()
        .check(&nologin.id, &nologin.at, Duration::from_secs(10))
        .await
        .unwrap_err()
        .to_string();
    assert!(text.contains("exit status 1") && text.contains("not available"), "{text}");
}

/// Runs a command; returns its end, and the last part of its output.
async fn command(sshd: &Sshd, text: &str, within: Duration, shared: bool) -> (StageEnd, String) {
    let mut tail = Tail::default();
    let command = RemoteCommand { text, input: "", within, start_within: Duration::ZERO, shared };
    let end = sshd.connector().command(&sshd.id, &sshd.at, command, &mut tail).await.unwrap();
    (end, tail.text())
}

#[tokio::test]
async fn a_commands_output_arrives_while_it_runs() {
    /// Lets the command go on once its first line has arrived.
    struct Answering(PathBuf);
    #[async_trait::async_trait(?Send)]
    impl Output for Answering {
        async fn write(&mut self, _: Stream, bytes: &[u8]) -> std::io::Result<()> {
            assert_eq!(bytes, b"a line\n");
            std::fs::write(&self.0, "")
        }
    }
    let sshd = Sshd::start().await;
    let home = tempfile::tempdir().unwrap();
    let seen = home.path().join("seen");
    let text = format!("echo a line; until [ -e {} ]; do sleep 0.05; done; exit 3", seen.display());
    let within = Duration::from_secs(30);
    let command =
        RemoteCommand { text: &text, input: "", within, start_within: Duration::ZERO, shared: false };
    let end = sshd.connector().command(&sshd.id, &sshd.at, command, &mut Answering(seen)).await.unwrap();
    assert_eq!(end, StageEnd::Exited(3));
}

#[tokio::test]
async fn an_operators_command_returns_its_end_and_what_it_said_last() {
    for (login, shared) in LOGIN_SHELLS.iter().flat_map(|login| [(*login, false), (*login, true)]) {
        let sshd = Sshd::with(Set { login, ..Set::default() }).await;
        let command = |text: &'static str| command(&sshd, text, Duration::from_secs(10), shared);
        let (end, said) =
            command("echo one; printf '\\033[31mtwo\\033[0m\\n' >&2; test \"it's\" = x || exit 9").await;
        assert_eq!(end, StageEnd::Exited(9), "{login:?}");
        assert!(said == "one\ntwo\n" || said == "two\none\n", "{said:?}");
        let (end, said) = command("seq 1 100000").await;
        assert_eq!(end, StageEnd::Exited(0));
        assert!(said.ends_with("99999\n100000\n") && said.len() <= 8192, "{}", said.len());
    }
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_stopped_with_all_it_started() {
    let sshd = Sshd::start().await;
    for shared in [false, true] {
        let pace = Pace::watch();
        // Enough for its first output.
        let within = pace.stretched(Duration::from_millis(600));
        let begun = Instant::now();
        let (end, said) = command(&sshd, "sleep 600 & echo pid=$!; wait", within, shared).await;
        assert_eq!(end, StageEnd::Stopped);
        let took = begun.elapsed();
        assert!(took < within + pace.stretched(Duration::from_millis(2400)), "{took:?}");
        assert!(!lives(number(&said, "pid")));
    }
}

#[tokio::test]
async fn output_without_end_needs_no_memory() {
    let sshd = Sshd::start().await;
    let mut counted = Counted::default();
    let script = "head -c 300000000 /dev/zero\n";
    let end = sshd.connector().run(&sshd.id, &sshd.at, stage(Shell::Sh, script), &mut counted, never()).await;
    assert_eq!((end.unwrap(), counted.0), (StageEnd::Exited(0), 300_000_000));
}

#[tokio::test]
async fn a_failing_output_stops_the_stage_and_is_our_own_fault() {
    struct Full;
    #[async_trait::async_trait(?Send)]
    impl Output for Full {
        async fn write(&mut self, _: Stream, _: &[u8]) -> std::io::Result<()> {
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        }
    }
    let sshd = Sshd::start().await;
    let pid = sshd.path("pid");
    let script = format!("echo $$ >{}; echo hello; sleep 600\n", pid.display());
    let error = sshd
        .connector()
        .run(&sshd.id, &sshd.at, stage(Shell::Bash, script), &mut Full, never())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cannot forward the stage's output"), "{error}");
    assert!(!lives(fs::read_to_string(pid).unwrap().trim().parse().unwrap()));
}

#[tokio::test]
async fn an_empty_script_is_a_script() {
    let sshd = Sshd::start().await;
    let (end, kept) = sshd.run(stage(Shell::Bash, ""), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(0));
    assert_eq!((kept.out().len(), kept.err().len()), (0, 0));
}
