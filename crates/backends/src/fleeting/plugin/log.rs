//! A plugin's log: the keeper's log gets it, cleaned and at a limited rate, and messages its end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use greenroom_core::ids::PoolName;
use greenroom_core::text::clean_line;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tonic::Streaming;
use tracing::Level;

use super::line::{self, LogLine};
use super::lines::Lines;
use super::rate::Rate;
use super::secrets::{KeyLines, Secrets};
use crate::fleeting::wire::services::{Channel, StdioData};

/// Kept lines of the log's end, and of a crash.
const KEPT: usize = 12;
/// Longest kept line, in bytes.
const LONGEST_KEPT: usize = 2000;
/// Lines of the end that a message shows.
const SHOWN: usize = 3;
/// How much of the end a message shows, in characters.
const SHOWN_LENGTH: usize = 500;

/// The log of one plugin, of all its processes.
#[derive(Debug)]
pub(super) struct Log {
    pool: PoolName,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    secrets: Secrets,
    rate: Rate,
    /// The last lines as they came: most are never read.
    end: VecDeque<Vec<u8>>,
    /// A crash, from its first line on.
    crash: Vec<Vec<u8>>,
}

/// One of the ways on which a plugin logs.
#[derive(Debug, Default)]
struct Way {
    lines: Lines,
    keys: KeyLines,
}

impl Way {
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
        Arc::new(Self { pool, state: Mutex::new(State { secrets, ..State::default() }) })
    }

    fn with<T>(&self, use_state: impl FnOnce(&mut State) -> T) -> T {
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
            (Some(line::read(bytes, &state.secrets)), left_out)
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
            let (secrets, crash) = (&state.secrets, &state.crash);
            let shown: Vec<String> = if crash.is_empty() {
                state.end.iter().skip(skipped).map(|bytes| line::read(bytes, secrets).text).collect()
            } else {
                crash.iter().map(|bytes| line::read(bytes, secrets).text).collect()
            };
            clean_line(shown.join(" | ").as_bytes(), SHOWN_LENGTH)
        })
    }

    /// A message, and the log's end.
    pub(super) fn explain(&self, why: &str) -> String {
        let end = self.end();
        if end.is_empty() { why.to_owned() } else { format!("{why}; the plugin's log ends: {end}") }
    }

    /// Reads a pipe to its end.
    pub(super) async fn drain(self: Arc<Self>, mut pipe: impl AsyncRead + Unpin) {
        let (mut way, mut buffer) = (Way::default(), vec![0; 16 << 10]);
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
        let (mut stdout, mut stderr) = (Way::default(), Way::default());
        while let Ok(Some(part)) = stream.message().await {
            let way = if part.channel == Channel::Stdout as i32 { &mut stdout } else { &mut stderr };
            way.push(&part.data, &self);
        }
        stdout.end(&self);
        stderr.end(&self);
    }
}

impl State {
    fn keep(&mut self, bytes: &[u8]) {
        let kept = bytes[..bytes.len().min(LONGEST_KEPT)].to_vec();
        let begins = line::begins_crash(bytes);
        if (begins || !self.crash.is_empty()) && self.crash.len() < KEPT {
            self.crash.push(kept.clone());
        }
        if self.end.len() == KEPT {
            self.end.pop_front();
        }
        self.end.push_back(kept);
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
}
