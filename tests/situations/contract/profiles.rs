//! Kind: no part of a script reaches anything but the stage's shell. Profiles that print, read, wait or hand over.

use std::fs;
use std::time::Duration;

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, RemoteCommand, Stage, StageEnd};
use greenroom_ports::tail::Tail;

use super::sshd::{Set, Sshd};
use super::support::{never, stage};

/// The time for a start that must fail.
const SOON: Duration = Duration::from_secs(4);

/// A host whose account's login shell reads this profile, once per login: the account's own shell may be bash as well.
async fn host(profile: &str) -> Sshd {
    let once = format!("[ -z \"$SEEN\" ] || return; export SEEN=1\n{profile}");
    Sshd::with(Set { login: Some("bash"), profile: &once, ..Set::default() }).await
}

/// A script that fails, unless its first lines are missing; it shows each of its shells by a file.
fn script(sshd: &Sshd) -> String {
    let ran = sshd.path("ran").display().to_string();
    format!("set -eo pipefail\n: 2\n: 3\n: 4\n: 5\n: 6\necho a >>{ran}\nfalse\necho CONTINUED\nexit 0\n")
}

/// The stage begins there, all of its script runs, and its output is the script's own.
async fn begins(profile: &str) {
    let sshd = host(profile).await;
    for _ in 0..2 {
        let script = format!("echo out; {}", script(&sshd));
        let (end, kept) = sshd.run(stage(Shell::Bash, script), never()).await;
        assert_eq!(end.unwrap(), StageEnd::Exited(1), "{profile}: {kept:?}");
        assert_eq!((kept.out().as_str(), kept.err().as_str()), ("out\n", ""), "{profile}");
    }
}

/// The stage does not begin on this host, and nothing has run; returns the reason.
async fn begins_nothing(sshd: &Sshd) -> String {
    let hurried = Stage { start_within: SOON, ..stage(Shell::Bash, script(sshd)) };
    let (end, kept) = sshd.run(hurried, never()).await;
    let error = end.unwrap_err();
    let ConnectError::NotBegun { why, .. } = error else { panic!("{error:?}: {kept:?}") };
    assert!(!kept.out().contains("CONTINUED"), "{kept:?}");
    assert!(!sshd.path("ran").exists(), "{why}: a part of the script ran");
    why
}

const HINT: &str = "a login profile that reads standard input, waits, exits or starts another shell";

/// `~/.bashrc` prints a line and reads six lines: it took the script's `set -eo pipefail`, and the failed job was green.
#[tokio::test]
async fn a_profile_that_prints_and_reads_gets_nothing_of_the_script() {
    let sshd = host("echo Welcome\nfor i in 1 2 3 4 5 6; do read -r line; done\n").await;
    let why = begins_nothing(&sshd).await;
    assert!(
        why.contains("within 4 s; the login shell printed `Welcome` instead: ") && why.ends_with(HINT),
        "{why}"
    );
}

/// `echo Welcome; exec zsh`: the other shell executed the script.
#[tokio::test]
async fn another_shell_that_takes_the_place_of_the_login_shell_executes_nothing() {
    for other in ["busybox sh", "dash", "bash --norc"] {
        let sshd = host(&format!("echo Welcome; exec {other}\n")).await;
        let why = begins_nothing(&sshd).await;
        assert!(why.contains("printed `Welcome` instead") && why.ends_with(HINT), "{other}: {why}");
    }
}

/// The profile prints something, and then waits for a file server.
#[tokio::test]
async fn a_profile_that_prints_and_waits_is_no_start() {
    let sshd = host("echo one; echo two >&2; echo; exec sleep 60\n").await;
    let why = begins_nothing(&sshd).await;
    assert!(why.contains("printed `two` instead"), "{why}");
}

/// The profile closes standard input: the shell found the end of its script there, and the job was green.
#[tokio::test]
async fn a_profile_that_closes_a_stream_or_sends_it_elsewhere_is_no_start() {
    for profile in ["exec 0<&-", "exec 0</dev/null", "exec 1>/dev/null", "exec 1>&-"] {
        let sshd = host(profile).await;
        let why = begins_nothing(&sshd).await;
        assert!(
            why.contains("did not answer its first line") || why.contains("before the script began"),
            "{why}"
        );
    }
}

/// The profile prints without end, or 20 kB of greetings.
#[tokio::test]
async fn a_profile_may_print_much_but_not_without_end() {
    begins("head -c 20000 /dev/zero | tr '\\0' x; echo\n").await;
    let sshd = host("exec yes Welcome\n").await;
    let why = begins_nothing(&sshd).await;
    assert!(
        why.contains("printed a megabyte and did not start the stage; the login shell printed `Welcome"),
        "{why}"
    );
}

/// The profiles are those that people have for interactive shells, and some that change how a shell runs commands.
#[tokio::test]
async fn a_profile_with_options_traps_aliases_and_functions_does_not_hinder_a_stage() {
    for profile in [
        "set -e\n",
        "set -u; set -o noclobber\n",
        "trap 'echo bye' EXIT; trap 'echo error' ERR\n",
        "shopt -s expand_aliases; alias echo='echo alias'; alias sh=false; alias bash=false\n",
        "echo() { builtin echo function \"$@\"; }; cd() { false; }; read() { false; }\n",
        "stty -ixon\n",
        "PS1='$ '; case $- in *i*) exec zsh;; esac\n",
        "[ -z \"$PS1\" ] || exec fish\n",
        "export TMOUT=1\n",
        "umask 077; cd /\n",
    ] {
        begins(profile).await;
    }
}

/// The shell that reads the script first reads the file of `BASH_ENV`, after the login shell's command has run.
#[tokio::test]
async fn a_file_of_bash_env_gets_nothing_of_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("env");
    let variables = format!(" BASH_ENV={}", file.display());
    // Only the shell that reads the script has no arguments.
    let only = "[ \"$(tr '\\0' ' ' </proc/$$/cmdline)\" = 'bash ' ] || return 0\n";
    for (text, begins) in [
        ("echo loaded\n", true),
        ("read -r line; read -r line\n", false),
        ("exec dash\n", false),
        ("exit 0\n", false),
    ] {
        fs::write(&file, format!("{only}{text}")).unwrap();
        let sshd = Sshd::with_variables(Set { config: "PidFile none", ..Set::default() }, &variables).await;
        if begins {
            let (end, kept) = sshd.run(stage(Shell::Bash, script(&sshd)), never()).await;
            assert_eq!(end.unwrap(), StageEnd::Exited(1), "{kept:?}");
            assert_eq!((kept.out().replace("loaded\n", ""), kept.err()), (String::new(), String::new()));
        } else {
            let why = begins_nothing(&sshd).await;
            assert!(
                why.contains("first line") || why.contains("exit status 0 before the script began"),
                "{why}"
            );
        }
    }
}

/// A server in front of an appliance sends standard error as standard output.
#[tokio::test]
async fn a_server_that_merges_the_streams_begins_stages() {
    let sshd = Sshd::start().await;
    sshd.login_through("exec sh -c \"$SSH_ORIGINAL_COMMAND\" 2>&1");
    for _ in 0..2 {
        let (end, kept) = sshd.run(stage(Shell::Bash, "echo out; echo err >&2; exit 4\n"), never()).await;
        assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(4), "out\nerr\n"));
        assert_eq!(kept.err(), "");
    }
}

/// The cleaning of a static host goes to a shell's standard input, too.
#[tokio::test]
async fn a_command_with_input_gets_it_after_the_profile() {
    for (profile, begins) in [
        ("echo Welcome; read -r a; read -r b", false),
        ("echo Welcome; exec dash", false),
        ("echo Welcome", true),
    ] {
        for shared in [false, true] {
            let sshd = host(profile).await;
            let ran = sshd.path("ran");
            let input = format!("set -e\nfalse\necho CONTINUED\ntouch {}\n", ran.display());
            let command = RemoteCommand {
                text: "exec /bin/sh -s",
                input: &input,
                within: SOON,
                start_within: Duration::ZERO,
                shared,
            };
            let mut tail = Tail::default();
            let end = sshd.connector().command(&sshd.id, &sshd.at, command, &mut tail).await;
            let text = tail.text();
            assert!(!ran.exists() && !text.contains("CONTINUED"), "{profile}, {shared}: {end:?}");
            if begins {
                assert_eq!(
                    (end.unwrap(), text.as_str()),
                    (StageEnd::Exited(1), "Welcome\n"),
                    "{profile}, {shared}"
                );
            } else {
                assert!(!matches!(end, Ok(StageEnd::Exited(_))), "{profile}, {shared}: {end:?}");
            }
        }
    }
}
