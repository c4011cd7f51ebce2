//! Listens to an instance's metadata service, by one small script that runs in the guest for as long as the link does.
//!
//! The service answers only the instance itself. Nothing depends on it: where it cannot be asked, there is silence. A job
//! may forge what the script prints, so that all of it is bounded and cleaned, and given up when it is absurd.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use greenroom_core::metadata::{MetadataAnswers, MetadataService};
use greenroom_core::text::clean_line;
use russh::ChannelMsg;
use russh::client::Msg;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::super::session::Session;

const SCRIPT: &str = include_str!("metadata.sh");
/// Delay from the connection to the start of the script: the first stage starts meanwhile.
const DELAY: Duration = Duration::from_secs(2);
/// The pause after a script that was killed; doubled each time.
const PAUSE: Duration = Duration::from_mins(1);
/// Maximum number of starts of the script.
const STARTS: u32 = 5;
/// The maximum length of a line.
const LINE: usize = 4 << 10;
/// Lines and bytes of a link's whole life. A service changes a few answers before an instance ends.
const LINES: u32 = 100;
const BYTES: usize = 64 << 10;
/// The maximum length of an answer, in characters.
const ANSWER: usize = 300;
/// A keeper that has not asked meanwhile is woken again, as often as this.
const REMINDER: Duration = Duration::from_secs(5);
const REMINDERS: u32 = 12;

/// The answers that a link has received from the metadata service.
#[derive(Default)]
pub(super) struct MetadataLog {
    answers: RefCell<MetadataAnswers>,
    /// True if they have changed since they were last reported.
    is_news: Cell<bool>,
    changed: Notify,
}

/// The reason a script's output ended.
#[derive(Debug, PartialEq, Eq)]
enum ScriptEnd {
    /// The script was killed, or ended in another way that says nothing about the service.
    Broken,
    /// The service cannot be asked, the output is absurd, or the instance needs the session for something else.
    ForGood,
}

impl MetadataLog {
    /// The latest answers.
    pub(super) fn report(&self) -> MetadataAnswers {
        self.is_news.set(false);
        self.answers.borrow().clone()
    }

    /// Listens for as long as the link runs, or there is something to listen to. `wake`: tells the keeper to ask.
    pub(super) async fn listen(&self, session: &Session<'_>, service: MetadataService, wake: &dyn Fn()) {
        tokio::join!(self.run_scripts(session, service), self.remind(wake, REMINDER));
    }

    async fn run_scripts(&self, session: &Session<'_>, service: MetadataService) {
        let mut output = ScriptOutput::new(service);
        let mut pause = PAUSE;
        sleep(DELAY).await;
        for _ in 0..STARTS {
            if self.run_script(session, service, &mut output).await == ScriptEnd::ForGood {
                return;
            }
            output.begin_again();
            sleep(pause).await;
            pause *= 2;
        }
    }

    async fn run_script(
        &self,
        session: &Session<'_>,
        service: MetadataService,
        output: &mut ScriptOutput,
    ) -> ScriptEnd {
        let Ok(mut channel) = session.channel().await else { return ScriptEnd::ForGood };
        let command = session.dialect().command_line(&script(service));
        let over = tokio::select! {
            over = self.follow(&mut channel, &command, output) => over,
            () = session.refuses() => ScriptEnd::ForGood,
        };
        // The script ends with its input.
        let _sent = channel.close().await;
        over
    }

    async fn follow(
        &self,
        channel: &mut russh::Channel<Msg>,
        command: &str,
        output: &mut ScriptOutput,
    ) -> ScriptEnd {
        if channel.exec(true, command).await.is_err() {
            return ScriptEnd::ForGood;
        }
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } => match output.take(&data) {
                    Ok(changes) => changes.into_iter().for_each(|(key, answer)| self.note(key, &answer)),
                    Err(over) => return over,
                },
                // The poll may outlive the shell that was killed, and goes on as long as it can.
                ChannelMsg::Failure => return ScriptEnd::ForGood,
                ChannelMsg::Close => break,
                _ => {}
            }
        }
        ScriptEnd::Broken
    }

    fn note(&self, key: &str, answer: &str) {
        let mut answers = self.answers.borrow_mut();
        let before = if answer.is_empty() {
            answers.remove(key)
        } else {
            answers.insert(key.to_owned(), answer.to_owned())
        };
        if before.unwrap_or_default() != answer {
            self.is_news.set(true);
            self.changed.notify_one();
        }
    }

    /// Wakes the keeper after each change, and again until it has asked: it may have asked just before.
    async fn remind(&self, wake: &dyn Fn(), every: Duration) {
        loop {
            self.changed.notified().await;
            for _ in 0..REMINDERS {
                if !self.is_news.get() {
                    break;
                }
                wake();
                sleep(every).await;
            }
        }
    }
}

fn script(service: MetadataService) -> String {
    let name = match service {
        MetadataService::AwsEc2 => "ec2",
        MetadataService::Gce => "compute-engine",
    };
    format!("service={name} keys='{}'\n{SCRIPT}", service.keys().join(" "))
}

/// Reads lines out of the scripts' output.
struct ScriptOutput {
    service: MetadataService,
    line: Vec<u8>,
    lines: u32,
    bytes: usize,
}

impl ScriptOutput {
    fn new(service: MetadataService) -> Self {
        Self { service, line: Vec::new(), lines: 0, bytes: 0 }
    }

    /// The changes in the lines that these bytes complete.
    fn take(&mut self, data: &[u8]) -> Result<Vec<(&'static str, String)>, ScriptEnd> {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > BYTES {
            return Err(ScriptEnd::ForGood);
        }
        let mut changes = Vec::new();
        for byte in data {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > LINE {
                    return Err(ScriptEnd::ForGood);
                }
                continue;
            }
            self.lines += 1;
            let line = std::mem::take(&mut self.line);
            changes.push(self.change(&line).filter(|_| self.lines <= LINES).ok_or(ScriptEnd::ForGood)?);
        }
        Ok(changes)
    }

    /// The key and the new answer of a line; `None`: the script gives up, or is another one.
    fn change(&self, line: &[u8]) -> Option<(&'static str, String)> {
        let at = line.iter().position(|byte| *byte == b' ')?;
        let number: usize = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
        let key = self.service.keys().get(number.checked_sub(1)?)?;
        // Line breaks are spaces.
        let answer: Vec<u8> = line[at..].iter().map(|byte| if *byte == 1 { b' ' } else { *byte }).collect();
        Some((key, clean_line(&answer, ANSWER)))
    }

    /// Drops the beginning of a line.
    fn begin_again(&mut self) {
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
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
    /// The programs that the script uses besides its client.
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
            assert!(
                rest.len() <= MOST_AT_ONCE && rest.iter().all(|line| line.len() <= 2100),
                "{}",
                rest.len()
            );
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
        let dir = tempfile::tempdir().unwrap();
        let client = client.into();
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
        let rubbish = serve("127.0.0.1:0", |_, _, stream| {
            drop(stream.write_all(b"\0\x01\xff 200\n\n$(id) `id`; exit"));
        });
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
            [
                ("spot/instance-action", "a bc".to_owned()),
                ("events/recommendations/rebalance", String::new())
            ]
        );
        let long = format!("1 {}\n", "x".repeat(3000));
        assert_eq!(take(long.as_bytes()).unwrap()[0].1.chars().count(), ANSWER);
        for absurd in ["end\n", "\n", "0 a\n", "3 a\n", "-1 a\n", "x\n", "99999999999999999999 a\n"] {
            let mut output = ScriptOutput::new(MetadataService::AwsEc2);
            assert_eq!(output.take(absurd.as_bytes()), Err(ScriptEnd::ForGood), "{absurd:?}");
        }
        let endless = ScriptOutput::new(MetadataService::Gce).take(&[b'1'; LINE + 1]);
        assert_eq!(endless, Err(ScriptEnd::ForGood));
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
        let heard = MetadataLog::default();
        let wakes = Cell::new(0);
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
}
