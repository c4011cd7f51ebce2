//! The script in every shell and with every client of this machine, against a small service; and what it may print.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use greenroom_testkit::metadata_service::{answer, serve};
use greenroom_testkit::shells::shells;
use greenroom_testkit::skipped::skipped;

use super::*;

const CLIENTS: [&str; 4] = ["curl", "wget", "bash", "python3"];
/// What the script uses besides its client.
const TOOLS: [&str; 5] = ["grep", "head", "sh", "sleep", "tr"];
const REBALANCE: &str = "{\"noticeTime\":\n\"2026-12-01T14:00:00Z\"}";
const IN_VAIN: Duration = Duration::from_secs(30);

/// The script in a session of its own, as a server starts it.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// More than a script asks for between two pauses.
const MOST_AT_ONCE: usize = 4;

impl Running {
    /// `path`: where the guest's programs are; `None`: this machine's.
    fn start(sh: &[&str], service: MetadataService, at: &str, path: Option<&Path>) -> Self {
        let text = script(service).replace("pause=5\n", "pause=0.1\n").replace("pause=60 ", "pause=0.1 ");
        assert_eq!(text.matches("pause=0.1").count(), 2, "both pauses are short");
        let mut command = Command::new(found("setsid"));
        command.args(["--wait", found(sh[0]).to_str().unwrap()]).args(&sh[1..]).arg("-c").arg(text);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{at}/"));
        command.env("GCE_METADATA_HOST", at).env("http_proxy", "http://127.0.0.1:1");
        command.envs(path.map(|path| ("PATH", path)));
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("the script prints a line").unwrap()
    }

    /// Closes its input, and expects that nothing of it stays: its output is closed, too. What it had asked for may come before.
    fn end(mut self) {
        let begun = Instant::now();
        drop(self.child.stdin.take());
        let _status = self.child.wait().unwrap();
        let rest: Vec<String> = self.lines.by_ref().map(Result::unwrap).collect();
        assert!(rest.len() <= MOST_AT_ONCE && rest.iter().all(|line| line.len() <= 2100), "{}", rest.len());
        assert!(begun.elapsed() < Duration::from_secs(2), "a request outlives it: {:?}", begun.elapsed());
    }
}

/// The path of a program of this machine.
fn found(program: &str) -> PathBuf {
    let here = |dir: &str| Path::new(dir).join(program);
    ["/usr/bin", "/bin"].map(here).into_iter().find(|path| path.exists()).unwrap_or_default()
}

/// A directory of programs with one of the clients at most.
fn only<'a>(client: impl Into<Option<&'a str>>) -> Option<tempfile::TempDir> {
    let (dir, client) = (tempfile::tempdir().unwrap(), client.into());
    for program in TOOLS.into_iter().chain(client) {
        let path = found(program);
        if path.as_os_str().is_empty() {
            skipped(format_args!("{program} is missing"));
            return None;
        }
        symlink(path, dir.path().join(program)).unwrap();
    }
    Some(dir)
}

#[test]
fn every_shell_and_client_tells_what_both_clouds_announce_when_it_comes() {
    let at = serve("127.0.0.1:0", |number, path, stream| match path {
        "/latest/meta-data/events/recommendations/rebalance" if number > 3 => {
            answer(stream, "200 OK", REBALANCE);
        }
        "/computeMetadata/v1/instance/preempted" if number > 3 => answer(stream, "200 OK", "TRUE"),
        "/computeMetadata/v1/instance/preempted" => answer(stream, "200 OK", "FALSE"),
        "/computeMetadata/v1/instance/maintenance-event" => answer(stream, "200 OK", "NONE"),
        _ => answer(stream, "404 Not Found", "<html>none</html>"),
    });
    for sh in shells() {
        for client in CLIENTS {
            let Some(programs) = only(client) else { continue };
            if sh[0] == "busybox" && client == "wget" {
                // It runs its own one instead.
                continue;
            }
            let mut running = Running::start(sh, MetadataService::AwsEc2, &at, Some(programs.path()));
            let mut output = ScriptOutput::new(MetadataService::AwsEc2);
            let mut latest = MetadataAnswers::new();
            while latest.get("events/recommendations/rebalance").is_none_or(String::is_empty) {
                let line = running.line() + "\n";
                for (key, answer) in output.take(line.as_bytes()).unwrap() {
                    latest.insert(key.to_owned(), answer);
                }
            }
            let rebalance = "{\"noticeTime\": \"2026-12-01T14:00:00Z\"}".to_owned();
            let action = ("spot/instance-action".to_owned(), String::new());
            let expected = [action, ("events/recommendations/rebalance".to_owned(), rebalance)];
            assert_eq!(latest, expected.into(), "{sh:?} {client}");
            running.end();
            let mut running = Running::start(sh, MetadataService::Gce, &at, Some(programs.path()));
            assert_eq!([running.line(), running.line()], ["1 TRUE", "2 NONE"], "{sh:?} {client}");
            running.end();
        }
    }
}

#[test]
fn a_notice_that_is_withdrawn_is_told() {
    let at = serve("127.0.0.1:0", |number, path, stream| match path {
        "/latest/meta-data/spot/instance-action" if number < 4 => answer(stream, "200 OK", "{}"),
        _ => answer(stream, "404 Not Found", ""),
    });
    let mut running = Running::start(&["sh"], MetadataService::AwsEc2, &at, None);
    assert_eq!([running.line(), running.line(), running.line()], ["1 {}", "2 ", "1 "]);
    running.end();
}

#[test]
fn where_no_service_or_no_client_is_the_script_ends_and_leaves_nothing() {
    let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let denied = serve("127.0.0.1:0", |_, _, stream| answer(stream, "403 Forbidden", ""));
    for at in [&nowhere, &denied] {
        for service in [MetadataService::AwsEc2, MetadataService::Gce] {
            let mut running = Running::start(&["sh"], service, at, None);
            assert_eq!(running.line(), "end");
            running.end();
        }
    }
    let Some(programs) = only(None) else { return };
    let mut running = Running::start(&["sh"], MetadataService::Gce, &nowhere, Some(programs.path()));
    assert_eq!(running.line(), "end");
    running.end();
}

#[test]
fn a_slow_a_lying_and_a_flooding_service_cost_a_line_of_bounded_length_or_none() {
    let slow = serve("127.0.0.1:0", |_, _, _| std::thread::sleep(IN_VAIN));
    let body = serve("127.0.0.1:0", |_, _, stream| {
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let headers = serve("127.0.0.1:0", |_, _, stream| {
        let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"a: b\r\n").is_ok() {}
    });
    let rubbish =
        serve("127.0.0.1:0", |_, _, stream| drop(stream.write_all(b"\0\x01\xff 200\n\n$(id) `id`; exit")));
    for client in CLIENTS {
        let Some(programs) = only(client) else { continue };
        let start = |at: &str| Running::start(&["sh"], MetadataService::Gce, at, Some(programs.path()));
        let mut flooded = start(&body);
        let line = flooded.line();
        assert!(line.starts_with("1 xxx") && line.len() <= 2100, "{client}: {}", line.len());
        flooded.end();
        // A key without a value, or three failures.
        for at in [&headers, &rubbish] {
            let mut running = start(at);
            let line = running.line();
            assert!(["1 ", "end"].contains(&line.as_str()), "{client}: {line:?}");
            running.end();
        }
        let waiting = start(&slow);
        std::thread::sleep(Duration::from_millis(300));
        waiting.end();
    }
}

#[test]
fn what_a_job_may_forge_is_bounded_and_clean() {
    let mut output = ScriptOutput::new(MetadataService::AwsEc2);
    let mut take = |data: &[u8]| output.take(data);
    assert_eq!(take(b"1 a\x01b\x1b[31mc").unwrap(), []);
    assert_eq!(
        take(b"\n2 \n").unwrap(),
        [("spot/instance-action", "a bc".to_owned()), ("events/recommendations/rebalance", String::new())]
    );
    let long = format!("1 {}\n", "x".repeat(3000));
    assert_eq!(take(long.as_bytes()).unwrap()[0].1.chars().count(), ANSWER);
    for absurd in ["end\n", "\n", "0 a\n", "3 a\n", "-1 a\n", "x\n", "99999999999999999999 a\n"] {
        let mut output = ScriptOutput::new(MetadataService::AwsEc2);
        assert_eq!(output.take(absurd.as_bytes()), Err(Over::ForGood), "{absurd:?}");
    }
    let endless = ScriptOutput::new(MetadataService::Gce).take(&[b'1'; LINE + 1]);
    assert_eq!(endless, Err(Over::ForGood));
    let mut output = ScriptOutput::new(MetadataService::Gce);
    let flips = (0..=LINES).map(|_| output.take(b"1 TRUE\n").is_ok()).filter(|taken| *taken).count();
    assert_eq!(flips, LINES as usize);
    let mut output = ScriptOutput::new(MetadataService::Gce);
    let long = "x".repeat(LINE - 10);
    let lines = (0..LINES).take_while(|_| output.take(format!("1 {long}\n").as_bytes()).is_ok()).count();
    assert!(lines * LINE <= BYTES + LINE, "{lines}");
}

#[tokio::test]
async fn the_keeper_is_woken_until_it_has_asked() {
    let (heard, wakes) = (Heard::default(), Cell::new(0));
    let wake = || wakes.set(wakes.get() + 1);
    let waking = heard.remind(&wake, Duration::from_millis(1));
    tokio::pin!(waking);
    let mut after = async |wanted| {
        while wakes.get() < wanted {
            assert!(tokio::time::timeout(Duration::from_millis(5), &mut waking).await.is_err());
        }
        wakes.get()
    };
    heard.note("a", "");
    assert!(!heard.is_news.get(), "nothing has changed");
    heard.note("a", "1");
    // A keeper that never asks.
    assert_eq!(after(REMINDERS).await, REMINDERS);
    assert_eq!(heard.report(), MetadataAnswers::from([("a".to_owned(), "1".to_owned())]));
    heard.note("a", "1");
    assert!(!heard.is_news.get());
    heard.note("a", "");
    assert!(after(REMINDERS + 1).await > REMINDERS);
    assert_eq!(heard.report(), MetadataAnswers::new());
}
