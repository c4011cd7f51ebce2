//! Calls of the program under test: how each of them ended, and whether its result is an answer, a refusal, or neither.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use serde_json::Value;

use crate::external::process;
use crate::external::protocol::{CODES, THROTTLED, TRANSIENT, Verb};
use crate::program::child::ProgramEnd;
use crate::program::{self, CallEnd};

/// Limit of a verb that does not exist.
const UNKNOWN_VERB: Duration = Duration::from_secs(20);
/// Longest quotation, in characters.
const LONGEST_QUOTE: usize = 80;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestedEnd {
    Exited(i32),
    Signalled(i32),
    /// Killed at its time limit.
    TimeLimit(Duration),
    /// Killed at its output limit, in bytes.
    OutputLimit(u64),
    /// Not started, for this reason.
    NotStarted(String),
}

/// Everything that came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestedCall {
    pub end: TestedEnd,
    pub stdout: Vec<u8>,
    /// Standard error, or its end.
    pub log: String,
    /// True if processes of the call were left when it ended; they have been killed.
    pub left: bool,
}

/// Calls the program. A call that is dropped is killed.
#[async_trait(?Send)]
pub trait ProgramUnderTest {
    async fn call(&self, verb: &str, input: Vec<u8>) -> TestedCall;

    /// Calls the program without a network; `None`: this host cannot take it from one program.
    async fn call_offline(&self, _verb: &str, _input: Vec<u8>) -> Option<TestedCall> {
        None
    }
}

/// Options of `unshare` for a network of the program's own, without any interface that is up. The account stays the same.
/// The second ones are for an account that may do this in a namespace of its own only.
const OFFLINE: [&[&str]; 2] = [&["--net", "--"], &["--map-current-user", "--net", "--"]];

/// A program in one of the usual directories.
fn found(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin"].iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists())
}

#[async_trait(?Send)]
impl ProgramUnderTest for process::ProtocolProgram {
    async fn call(&self, verb: &str, input: Vec<u8>) -> TestedCall {
        let shortest = self.time_limits.iter().map(|(_, limit)| *limit).min();
        let unknown = || shortest.unwrap_or(UNKNOWN_VERB);
        let limit = Verb::of_name(verb).map_or_else(unknown, |verb| self.time_limit(verb));
        let called = self.how.call(verb, limit, input).await;
        let end = match called.exit {
            CallEnd::Ended(ProgramEnd::Code(code)) => TestedEnd::Exited(code),
            CallEnd::Ended(ProgramEnd::Signal(signal)) => TestedEnd::Signalled(signal),
            CallEnd::Ended(ProgramEnd::TimeLimit) => TestedEnd::TimeLimit(limit),
            CallEnd::Ended(ProgramEnd::NotStarted(why)) => TestedEnd::NotStarted(why),
            CallEnd::Ended(ProgramEnd::Stopped) | CallEnd::Lost => TestedEnd::Signalled(9),
            CallEnd::OutputLimit(bytes) => TestedEnd::OutputLimit(bytes),
        };
        TestedCall { end, stdout: called.output, log: called.log, left: called.left }
    }

    async fn call_offline(&self, verb: &str, input: Vec<u8>) -> Option<TestedCall> {
        let unshare = found("unshare")?;
        let path = self.how.path.to_string_lossy().into_owned();
        for options in OFFLINE {
            let within = |rest: Vec<String>| {
                let arguments = options.iter().map(|text| (*text).to_owned()).chain(rest).collect();
                let how = program::Program { path: unshare.clone(), arguments, ..self.how.clone() };
                Self { how, ..self.clone() }
            };
            // Many hosts allow no namespaces to users, and many containers to no account.
            let tried = ProgramUnderTest::call(&within(vec!["true".to_owned()]), verb, Vec::new()).await;
            if tried.end == TestedEnd::Exited(0) {
                let line = [path].into_iter().chain(self.how.arguments.clone()).collect();
                return Some(ProgramUnderTest::call(&within(line), verb, input).await);
            }
        }
        None
    }
}

/// A refusal with a documented exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramRefusal {
    pub code: i32,
    /// The program's reason; empty if it gave none.
    pub error: String,
}

impl ProgramRefusal {
    /// True if a repeat may succeed: throttled, or a transient error.
    pub fn may_pass(&self) -> bool {
        matches!(self.code, THROTTLED | TRANSIENT)
    }
}

impl std::fmt::Display for ProgramRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {} ({})", self.code, class(self.code).unwrap_or("not documented"))?;
        if self.error.is_empty() { Ok(()) } else { write!(f, ": {}", self.error) }
    }
}

/// A call, judged by what holds for every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramReply {
    Answer(Value),
    Refused(ProgramRefusal),
    /// Neither: the check that it fails, and what came.
    Unusable(&'static str, String),
}

/// The name of a documented exit code's class.
fn class(code: i32) -> Option<&'static str> {
    CODES.iter().find(|(known, _)| *known == code).map(|(_, class)| *class)
}

/// Judges a call. The flag is true if a refusal came without a reason.
pub fn judge(called: &TestedCall) -> (ProgramReply, bool) {
    let unusable = |check, came| (ProgramReply::Unusable(check, came), false);
    match &called.end {
        TestedEnd::NotStarted(why) => unusable("call-exit-code", format!("it cannot be started: {why}")),
        TestedEnd::TimeLimit(limit) => {
            unusable("call-in-time", format!("it was still running after {}, and was killed", Pretty(*limit)))
        }
        TestedEnd::OutputLimit(limit) => {
            unusable("call-output-limit", format!("it printed more than {limit} bytes, and was killed"))
        }
        TestedEnd::Signalled(signal) => {
            unusable("call-exit-code", format!("signal {signal} ended it{}", last_line(&called.log)))
        }
        TestedEnd::Exited(0) => match document(&called.stdout) {
            Ok(answer) => match answer.get("error") {
                Some(error) => {
                    unusable("call-error-exit-code", format!("exit code 0, and the error {}", short(error)))
                }
                None => (ProgramReply::Answer(answer), false),
            },
            Err(error) => unusable("call-one-document", error.to_string()),
        },
        TestedEnd::Exited(code) if class(*code).is_some() => {
            let error = document(&called.stdout).ok().and_then(|answer| answer.get("error").cloned());
            let error = error.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            let is_bare = error.is_empty();
            (ProgramReply::Refused(ProgramRefusal { code: *code, error }), is_bare)
        }
        TestedEnd::Exited(code) => {
            let last = last_line(&called.log);
            unusable("call-exit-code", format!("exit code {code}, which is not documented{last}"))
        }
    }
}

/// An output is not one JSON object. Quotations are cleaned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum DocumentError {
    #[error("it printed nothing")]
    Nothing,
    #[error("it printed {0}")]
    NotJson(String),
    #[error("it printed {0}, which is not an object")]
    NotAnObject(String),
}

/// The one JSON object of an output.
fn document(output: &[u8]) -> Result<Value, DocumentError> {
    if output.trim_ascii().is_empty() {
        return Err(DocumentError::Nothing);
    }
    let quoted = || quote(&String::from_utf8_lossy(output));
    let answer = serde_json::from_slice::<Value>(output).map_err(|_| DocumentError::NotJson(quoted()))?;
    if answer.is_object() { Ok(answer) } else { Err(DocumentError::NotAnObject(quoted())) }
}

/// A value for a sentence.
pub fn short(value: &Value) -> String {
    quote(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// The begin of a text, in quotes.
pub fn quote(text: &str) -> String {
    format!("`{}`", clean_line(text.as_bytes(), LONGEST_QUOTE))
}

fn last_line(log: &str) -> String {
    let last = log.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map_or_else(String::new, |line| format!("; the end of its log: {}", quote(line)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn judged(end: TestedEnd, stdout: &str) -> ProgramReply {
        let log = "first\nat the end\n".to_owned();
        judge(&TestedCall { end, stdout: stdout.as_bytes().to_vec(), log, left: false }).0
    }

    #[test]
    fn each_mistake_of_a_call_is_named_by_its_check() {
        let check = |end, stdout| match judged(end, stdout) {
            ProgramReply::Unusable(check, came) => (check, came),
            other => panic!("{other:?}"),
        };
        assert_eq!(check(TestedEnd::Exited(0), "hello {}").0, "call-one-document");
        assert_eq!(check(TestedEnd::Exited(0), "{} {}").0, "call-one-document");
        assert_eq!(
            check(TestedEnd::Exited(0), " \n"),
            ("call-one-document", "it printed nothing".to_owned())
        );
        assert_eq!(check(TestedEnd::Exited(0), "[]").0, "call-one-document");
        assert_eq!(check(TestedEnd::Exited(0), r#"{"error":"x"}"#).0, "call-error-exit-code");
        let (name, came) = check(TestedEnd::Exited(1), "{}");
        assert_eq!(name, "call-exit-code");
        assert_eq!(came, "exit code 1, which is not documented; the end of its log: `at the end`");
        assert_eq!(check(TestedEnd::Signalled(11), "{}").0, "call-exit-code");
        assert_eq!(check(TestedEnd::TimeLimit(Duration::from_secs(3)), "").0, "call-in-time");
        assert_eq!(check(TestedEnd::OutputLimit(1024), "").0, "call-output-limit");
    }

    #[test]
    fn an_answer_and_a_refusal_are_told_apart() {
        assert_eq!(judged(TestedEnd::Exited(0), "{}\n"), ProgramReply::Answer(serde_json::json!({})));
        let refused = judged(TestedEnd::Exited(10), r#"{"error":"no such machine"}"#);
        let ProgramReply::Refused(refusal) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.to_string(), "exit code 10 (not found): no such machine");
        let bare =
            TestedCall { end: TestedEnd::Exited(14), stdout: Vec::new(), log: String::new(), left: false };
        assert!(judge(&bare).1);
    }
}
