//! Kind: the job log has what a script wrote, in its order, and ends with the script.

use std::time::{Duration, Instant};

use greenroom_core::execution::{Shell, StageShell};
use greenroom_ports::connector::{Reader, Stage, StageEnd};
use greenroom_testkit::pace::Pace;

use super::sshd::{Set, Sshd};
use super::support::{kill, never, number, stage};

/// A stage as a pool has it by default.
fn joined(shell: Shell, script: impl AsRef<[u8]>) -> Stage {
    Stage { reader: Reader::Shell(shell.into()), separate_stderr: false, ..stage(shell, script) }
}

/// A compiler's errors stood before the lines that announced its calls.
#[tokio::test]
async fn lines_of_both_streams_come_in_the_order_in_which_the_script_wrote_them() {
    let sshd = Sshd::start().await;
    let script = "for i in $(seq 200); do echo out $i; echo err $i >&2; done; exit 3\n";
    let expected = (1..=200).map(|i| format!("out {i}\nerr {i}\n")).collect::<Vec<_>>().concat();
    for shell in [Shell::Bash, Shell::Sh] {
        for _ in 0..3 {
            let (end, kept) = sshd.run(joined(shell, script), never()).await;
            assert_eq!((end.unwrap(), kept.err().as_str()), (StageEnd::Exited(3), ""), "{shell}");
            assert_eq!(kept.out(), expected, "{shell}");
        }
    }
}

/// The profile of a login sets `PATH`, prints a greeting and reads.
#[tokio::test]
async fn a_login_shells_environment_is_that_of_every_stage_and_its_output_of_none() {
    let profile = "echo greeting; echo greeting >&2; read -r line; export PATH=$PATH:/opt/ci/bin ODD=\"it's\n two\"\n\
                   umask 027; trap 'echo bye' EXIT; set -e; echo x >>~/reads\n";
    let sshd = Sshd::start().await;
    for name in [".bash_profile", ".profile"] {
        std::fs::write(sshd.path("home").join(name), profile).unwrap();
    }
    std::fs::write(sshd.path("home").join(".bash_logout"), "echo logout; exit 5\n").unwrap();
    let script = "printf '%s|' \"${PATH##*:}\" \"$ODD\"; umask; exit 4\n";
    for shell in [Shell::Bash, Shell::Sh] {
        let login = |login_shell| StageShell { login_shell, ..shell.into() };
        for _ in 0..3 {
            let stage = Stage { reader: Reader::Shell(login(true)), ..joined(shell, script) };
            let (end, kept) = sshd.run(stage, never()).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(4), "{shell}: {kept:?}");
            assert_eq!(
                (kept.out().as_str(), kept.err().as_str()),
                ("/opt/ci/bin|it's\n two|0027\n", ""),
                "{shell}"
            );
        }
        let (end, kept) = sshd.run(joined(shell, script), never()).await;
        assert_eq!(end.unwrap(), StageEnd::Exited(4));
        assert!(!kept.out().contains("/opt/ci/bin") && kept.out().contains("||"), "{kept:?}");
    }
}

/// A profile that waits, or ends in another shell, is named.
#[tokio::test]
async fn a_login_profile_that_does_not_come_to_its_end_is_named() {
    for profile in ["sleep 60\n", "exec dash\n", "exit 0\n", "exec sleep 60\n"] {
        let sshd = Sshd::start().await;
        std::fs::write(sshd.path("home").join(".profile"), profile).unwrap();
        let shell = StageShell { login_shell: true, ..Shell::Bash.into() };
        let hurried = Stage {
            reader: Reader::Shell(shell),
            start_within: Duration::from_secs(4),
            ..joined(Shell::Bash, "echo ran\n")
        };
        let (end, kept) = sshd.run(hurried, never()).await;
        let error = end.unwrap_err().to_string();
        assert!(
            error.contains("a profile of the account, such as `~/.profile`, waits, exits or starts"),
            "{error}"
        );
        assert_eq!((kept.out().as_str(), kept.err().as_str()), ("", ""), "{profile}");
    }
}

/// `npm start &` went on writing to the log, and the job ran into its timeout.
#[tokio::test]
async fn a_background_process_that_talks_does_not_hold_the_stage() {
    let sshd = Sshd::with(Set { linger: Duration::from_secs(2), ..Set::default() }).await;
    // What talks without a pause may keep a busy machine from finding its name in time.
    for (script, name, pauses) in [
        ("(while :; do echo talk; sleep 0.1; done) & echo pid=$!; exit 6\n", "bash", true),
        ("(while :; do echo talk; done) & echo pid=$!; exit 6\n", "bash", false),
        ("sleep 600 & echo pid=$!; printf 'no line break'; exit 6\n", "sleep", true),
    ] {
        let (begun, pace) = (Instant::now(), Pace::watch());
        let (end, kept) = sshd.run(joined(Shell::Bash, script), never()).await;
        assert_eq!(end.unwrap(), StageEnd::Exited(6), "{script}");
        let took = begun.elapsed();
        assert!(took < pace.stretched(Duration::from_secs(12)), "{script}: {took:?}");
        let pid = number(&kept.out(), "pid");
        kill(pid);
        let line = kept.err();
        assert!(
            line.trim_start().starts_with("greenroom: ")
                && line.contains(" of the script still holds its output"),
            "{line}"
        );
        let named = line.contains(&format!("background process `{name}` (pid {pid})"));
        assert!(named || !pauses, "{script}: {line}");
    }
}
