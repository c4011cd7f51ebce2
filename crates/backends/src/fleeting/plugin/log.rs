//! A plugin's log: cut into lines, cleaned, and passed to the keeper's log at a limited rate; messages show its end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_core::ids::PoolName;
use greenroom_core::text::clean_line;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tonic::Streaming;
use tracing::Level;

use super::secrets::{HIDDEN, KeyLines, Secrets, is_secret_name};
use crate::fleeting::wire::{Channel, StdioData};

/// Kept lines of the log's end, and of a crash.
const KEPT: usize = 12;
/// Longest kept line, in bytes.
const LONGEST_KEPT: usize = 2000;
/// Lines of the end that a message shows.
const SHOWN: usize = 3;
/// The length of the log's end that a message shows, in characters.
const SHOWN_LENGTH: usize = 500;
/// Longest text, in characters.
const MAX_TEXT: usize = 2000;
/// A longer line is cut.
const MAX_LINE: usize = 64 << 10;
/// Lines at a time.
const BURST: u32 = 200;
/// A further line is passed on for each of these.
const TOKEN_INTERVAL: Duration = Duration::from_millis(100);

/// The log of one plugin, of all its processes.
#[derive(Debug)]
pub(super) struct Log {
    pool: PoolName,
    state: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    secrets: Secrets,
    rate: Rate,
    /// The last lines as they came: most are never read.
    end: VecDeque<Vec<u8>>,
    /// A crash, from its first line on.
    crash: Vec<Vec<u8>>,
}

/// The end of a plugin's log, cleaned. Its text continues a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogExcerpt(String);

impl fmt::Display for LogExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; the plugin's log ends: {}", self.0) }
    }
}

/// One of the ways on which a plugin logs.
#[derive(Debug, Default)]
struct LogChannel {
    lines: LineCutter,
    keys: KeyLines,
}

impl LogChannel {
    fn push(&mut self, bytes: &[u8], log: &Log) {
        let Self { lines, keys } = self;
        lines.push(bytes, |line| log.take_unless(keys.hides(line), line));
    }

    fn end(&mut self, log: &Log) {
        let Self { lines, keys } = self;
        lines.end(|line| log.take_unless(keys.hides(line), line));
    }
}

impl Log {
    pub(super) fn new(pool: PoolName, secrets: Secrets) -> Arc<Self> {
        Arc::new(Self { pool, state: Mutex::new(LogState { secrets, ..LogState::default() }) })
    }

    fn with<T>(&self, use_state: impl FnOnce(&mut LogState) -> T) -> T {
        use_state(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A new process begins.
    pub(super) fn begin(&self) {
        self.with(|state| {
            state.end.clear();
            state.crash.clear();
        });
    }

    pub(super) fn add_secret(&self, secret: &str) {
        self.with(|state| state.secrets.add(secret));
    }

    pub(super) fn secrets(&self) -> Secrets {
        self.with(|state| state.secrets.clone())
    }

    fn take_unless(&self, hidden: bool, line: &[u8]) {
        if !hidden {
            self.take(line);
        }
    }

    fn take(&self, bytes: &[u8]) {
        let (printed, left_out) = self.with(|state| {
            state.keep(bytes);
            let Some(left_out) = state.rate.take(Instant::now()) else { return (None, 0) };
            (Some(read_line(bytes, &state.secrets)), left_out)
        });
        let pool = &self.pool;
        if left_out > 0 {
            tracing::warn!(%pool, "the plugin logs too much: {left_out} lines are left out");
        }
        if let Some(LogLine { level, text, .. }) = printed {
            match level {
                Level::ERROR => tracing::error!(%pool, "plugin: {text}"),
                Level::WARN => tracing::warn!(%pool, "plugin: {text}"),
                Level::INFO => tracing::info!(%pool, "plugin: {text}"),
                Level::DEBUG => tracing::debug!(%pool, "plugin: {text}"),
                Level::TRACE => tracing::trace!(%pool, "plugin: {text}"),
            }
        }
    }

    /// The crash, or else the last lines, on one line; empty: the plugin printed nothing.
    pub(super) fn end(&self) -> String {
        self.with(|state| {
            let skipped = state.end.len().saturating_sub(SHOWN);
            let secrets = &state.secrets;
            let crash = &state.crash;
            let shown: Vec<String> = if crash.is_empty() {
                state.end.iter().skip(skipped).map(|bytes| read_line(bytes, secrets).text).collect()
            } else {
                crash.iter().map(|bytes| read_line(bytes, secrets).text).collect()
            };
            clean_line(shown.join(" | ").as_bytes(), SHOWN_LENGTH)
        })
    }

    /// The end of the log for the end of a message.
    pub(super) fn excerpt(&self) -> LogExcerpt {
        LogExcerpt(self.end())
    }

    /// A message, and the log's end.
    pub(super) fn explain(&self, why: &str) -> String {
        format!("{why}{}", self.excerpt())
    }

    /// Reads a pipe to its end.
    pub(super) async fn drain(self: Arc<Self>, mut pipe: impl AsyncRead + Unpin) {
        let mut way = LogChannel::default();
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length) = pipe.read(&mut buffer).await {
            if length == 0 {
                break;
            }
            way.push(&buffer[..length], &self);
        }
        way.end(&self);
    }

    /// Reads what the plugin prints past its handshake, until it ends.
    pub(super) async fn drain_stream(self: Arc<Self>, mut stream: Streaming<StdioData>) {
        let mut stdout = LogChannel::default();
        let mut stderr = LogChannel::default();
        while let Ok(Some(part)) = stream.message().await {
            let way = if part.channel == Channel::Stdout as i32 { &mut stdout } else { &mut stderr };
            way.push(&part.data, &self);
        }
        stdout.end(&self);
        stderr.end(&self);
    }
}

impl LogState {
    fn keep(&mut self, bytes: &[u8]) {
        let kept = bytes[..bytes.len().min(LONGEST_KEPT)].to_vec();
        let begins = begins_crash(bytes);
        if (begins || !self.crash.is_empty()) && self.crash.len() < KEPT {
            self.crash.push(kept.clone());
        }
        if self.end.len() == KEPT {
            self.end.pop_front();
        }
        self.end.push_back(kept);
    }
}

/// A line, cleaned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LogLine {
    pub(super) level: Level,
    pub(super) text: String,
}

/// True for the first line of a crashed Go program's last output.
fn begins_crash(line: &[u8]) -> bool {
    line.starts_with(b"panic: ") || line.starts_with(b"fatal error: ")
}

/// Reads a line: JSON as plugins' library writes it, or any other text.
fn read_line(line: &[u8], secrets: &Secrets) -> LogLine {
    match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) if fields.contains_key("@message") => structured(&fields, secrets),
        _ => plain(line, secrets),
    }
}

fn structured(fields: &serde_json::Map<String, Value>, secrets: &Secrets) -> LogLine {
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let level = match text("@level") {
        "error" => Level::ERROR,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        "trace" => Level::TRACE,
        _ => Level::DEBUG,
    };
    let mut line = text("@message").to_owned();
    let own = ["@message", "@level", "@timestamp", "@module", "@caller"];
    for (name, value) in fields.iter().filter(|(name, _)| !own.contains(&name.as_str())) {
        let value = if is_secret_name(name) { HIDDEN.to_owned() } else { shown(value) };
        line.extend([" ", name, "=", &value]);
    }
    LogLine { level, text: clean(&line, secrets) }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(table) => {
            let shown = table.iter().map(|(name, value)| {
                let value = if is_secret_name(name) { HIDDEN.to_owned() } else { shown(value) };
                format!("{name}={value}")
            });
            format!("{{{}}}", shown.collect::<Vec<_>>().join(" "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
        other => other.to_string(),
    }
}

fn plain(line: &[u8], secrets: &Secrets) -> LogLine {
    let text = String::from_utf8_lossy(line);
    let is_crash = begins_crash(line);
    let levels = [
        ("[ERROR]", Level::ERROR),
        ("[WARN]", Level::WARN),
        ("[INFO]", Level::INFO),
        ("[DEBUG]", Level::DEBUG),
        ("[TRACE]", Level::TRACE),
    ];
    let prefix = levels.iter().find(|(prefix, _)| text.starts_with(prefix));
    let level = prefix.map_or(if is_crash { Level::ERROR } else { Level::DEBUG }, |(_, level)| *level);
    LogLine { level, text: clean(&text, secrets) }
}

fn clean(text: &str, secrets: &Secrets) -> String {
    clean_line(secrets.hide(text).as_bytes(), MAX_TEXT)
}

/// Cuts a stream into lines; keeps the begin of the last one.
#[derive(Debug, Default)]
struct LineCutter {
    begun: Vec<u8>,
}

impl LineCutter {
    /// Calls `line` for each line that the bytes complete.
    pub(super) fn push(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let mut part = part;
            while self.begun.len() + part.len() > MAX_LINE {
                let (now, later) = part.split_at(MAX_LINE - self.begun.len());
                self.begun.extend_from_slice(now);
                self.end(&mut line);
                part = later;
            }
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end(&mut line);
            }
        }
    }

    /// The stream's end ends its last line, too.
    pub(super) fn end(&mut self, mut line: impl FnMut(&[u8])) {
        let text = self.begun.trim_ascii_end();
        if !text.is_empty() {
            line(text);
        }
        self.begun.clear();
    }
}

/// Tokens that lines use up and time brings back.
#[derive(Debug)]
struct Rate {
    tokens: u32,
    /// The time when the last token came back.
    at: Option<Instant>,
    left_out: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { tokens: BURST, at: None, left_out: 0 }
    }
}

impl Rate {
    /// `None`: the line is left out. Otherwise how many lines were left out before this one.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        let at = *self.at.get_or_insert(now);
        let came = now.saturating_duration_since(at).as_nanos() / TOKEN_INTERVAL.as_nanos();
        let came = u32::try_from(came).unwrap_or(BURST).min(BURST);
        if came > 0 {
            self.tokens = (self.tokens + came).min(BURST);
            self.at = Some(if self.tokens == BURST { now } else { at + TOKEN_INTERVAL * came });
        }
        if self.tokens == 0 {
            self.left_out += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Arc<Log> {
        let mut secrets = Secrets::default();
        secrets.add("tok-12345");
        Log::new(PoolName::new("linux"), secrets)
    }

    #[tokio::test]
    async fn the_end_of_a_log_has_its_last_lines_without_secrets() {
        let log = log();
        Arc::clone(&log).drain(&b"one\ntwo\n{\"@message\":\"three tok-12345\"}\nfour"[..]).await;
        assert_eq!(log.end(), "two | three [hidden] | four");
        assert_eq!(log.explain("it exited"), "it exited; the plugin's log ends: two | three [hidden] | four");
        log.begin();
        assert_eq!(log.explain("it exited"), "it exited");
    }

    #[tokio::test]
    async fn a_crash_is_shown_from_its_first_line() {
        let log = log();
        let text = format!("before\npanic: nil map\n\ngoroutine 1:\n{}", "frame\n".repeat(1000));
        Arc::clone(&log).drain(text.as_bytes()).await;
        assert!(log.end().starts_with("panic: nil map | goroutine 1: | frame"), "{}", log.end());
        assert!(log.end().chars().count() <= SHOWN_LENGTH);
    }

    fn read_text(line: &str) -> (Level, String) {
        let line = read_line(line.as_bytes(), &Secrets::default());
        (line.level, line.text)
    }

    #[test]
    fn json_lines_have_a_level_and_further_fields() {
        let line = r#"{"@level":"warn","@message":"slow","@module":"m","@timestamp":"t","group":"g","n":3}"#;
        assert_eq!(read_text(line), (Level::WARN, "slow group=g n=3".to_owned()));
        assert_eq!(read_text(r#"{"@message":"no level"}"#), (Level::DEBUG, "no level".to_owned()));
    }

    #[test]
    fn fields_of_secret_names_are_hidden_at_any_depth() {
        let line =
            r#"{"@level":"info","@message":"dial","info":{"Password":"p","Key":"k","user":"u"},"token":"t"}"#;
        assert_eq!(read_text(line).1, "dial info={Key=[hidden] Password=[hidden] user=u} token=[hidden]");
    }

    #[test]
    fn plain_lines_have_the_level_of_their_prefix() {
        assert_eq!(read_text("[ERROR] no quota"), (Level::ERROR, "[ERROR] no quota".to_owned()));
        assert_eq!(read_text("2026/01/01 hello\u{1b}[31m"), (Level::DEBUG, "2026/01/01 hello".to_owned()));
        assert_eq!(read_text("{broken"), (Level::DEBUG, "{broken".to_owned()));
        assert_eq!(read_text("panic: nil map").0, Level::ERROR);
    }

    fn cut(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = LineCutter::default();
        let mut all = Vec::new();
        for part in parts {
            lines.push(part, |line| all.push(line.to_vec()));
        }
        lines.end(|line| all.push(line.to_vec()));
        all
    }

    #[test]
    fn lines_are_whole_however_the_stream_is_cut() {
        assert_eq!(cut(&[b"on", b"e\r\n\ntwo\nth", b"ree"]), [&b"one"[..], b"two", b"three"]);
        assert_eq!(cut(&[b"", b"\n\n"]), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_not_kept() {
        let long = vec![b'x'; MAX_LINE * 2 + 10];
        let lengths: Vec<usize> = cut(&[&long[..100], &long[100..]]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [MAX_LINE, MAX_LINE, 10]);
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut rate = Rate::default();
        let begun = Instant::now();
        let passed = (0..40_000).filter(|_| rate.take(begun).is_some()).count();
        assert_eq!(passed, BURST as usize);
        let later = begun + TOKEN_INTERVAL * 3;
        let passed: Vec<_> = (0..10).filter_map(|_| rate.take(later)).collect();
        assert_eq!(passed, [40_000 - u64::from(BURST), 0, 0]);
        let quiet = later + Duration::from_hours(1);
        assert_eq!(
            (0..1000).filter(|_| rate.take(quiet).is_some()).count(),
            BURST as usize,
            "no more than a burst"
        );
    }
}
