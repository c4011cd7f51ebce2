//! A call's result: an answer, a refusal, or neither.

use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use serde_json::Value;

use super::program::{Called, End};
use crate::external::protocol::exit::{CODES, THROTTLED, TRANSIENT};

/// Longest quotation, in characters.
const LONGEST_QUOTE: usize = 80;

/// A refusal with a documented exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    /// The program's reason; empty if it gave none.
    pub error: String,
}

impl Refusal {
    /// True if a repeat may succeed: throttled, or a transient error.
    pub fn may_pass(&self) -> bool {
        matches!(self.code, THROTTLED | TRANSIENT)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {} ({})", self.code, class(self.code).unwrap_or("not documented"))?;
        if self.error.is_empty() { Ok(()) } else { write!(f, ": {}", self.error) }
    }
}

/// A call, judged by what holds for every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Answer(Value),
    Refused(Refusal),
    /// Neither: the check that it fails, and what came.
    Unusable(&'static str, String),
}

/// The name of a documented exit code's class.
fn class(code: i32) -> Option<&'static str> {
    CODES.iter().find(|(known, _)| *known == code).map(|(_, class)| *class)
}

/// Judges a call. The flag is true if a refusal came without a reason.
pub fn judge(called: &Called) -> (Reply, bool) {
    let unusable = |check, came| (Reply::Unusable(check, came), false);
    match &called.end {
        End::NotStarted(why) => unusable("call-exit-code", format!("it cannot be started: {why}")),
        End::TimeLimit(limit) => {
            unusable("call-in-time", format!("it was still running after {}, and was killed", Pretty(*limit)))
        }
        End::OutputLimit(limit) => {
            unusable("call-output-limit", format!("it printed more than {limit} bytes, and was killed"))
        }
        End::Signalled(signal) => {
            unusable("call-exit-code", format!("signal {signal} ended it{}", last_line(&called.log)))
        }
        End::Exited(0) => match document(&called.stdout) {
            Ok(answer) => match answer.get("error") {
                Some(error) => {
                    unusable("call-error-exit-code", format!("exit code 0, and the error {}", short(error)))
                }
                None => (Reply::Answer(answer), false),
            },
            Err(came) => unusable("call-one-document", came),
        },
        End::Exited(code) if class(*code).is_some() => {
            let error = document(&called.stdout).ok().and_then(|answer| answer.get("error").cloned());
            let error = error.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            let is_bare = error.is_empty();
            (Reply::Refused(Refusal { code: *code, error }), is_bare)
        }
        End::Exited(code) => {
            let last = last_line(&called.log);
            unusable("call-exit-code", format!("exit code {code}, which is not documented{last}"))
        }
    }
}

/// The one JSON object of an output, or what came instead.
fn document(output: &[u8]) -> Result<Value, String> {
    if output.trim_ascii().is_empty() {
        return Err("it printed nothing".to_owned());
    }
    let quoted = || quote(&String::from_utf8_lossy(output));
    let answer = serde_json::from_slice::<Value>(output).map_err(|_| format!("it printed {}", quoted()))?;
    if answer.is_object() {
        Ok(answer)
    } else {
        Err(format!("it printed {}, which is not an object", quoted()))
    }
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

    fn judged(end: End, stdout: &str) -> Reply {
        let log = "first\nat the end\n".to_owned();
        judge(&Called { end, stdout: stdout.as_bytes().to_vec(), log, left: false }).0
    }

    #[test]
    fn each_mistake_of_a_call_is_named_by_its_check() {
        let check = |end, stdout| match judged(end, stdout) {
            Reply::Unusable(check, came) => (check, came),
            other => panic!("{other:?}"),
        };
        assert_eq!(check(End::Exited(0), "hello {}").0, "call-one-document");
        assert_eq!(check(End::Exited(0), "{} {}").0, "call-one-document");
        assert_eq!(check(End::Exited(0), " \n"), ("call-one-document", "it printed nothing".to_owned()));
        assert_eq!(check(End::Exited(0), "[]").0, "call-one-document");
        assert_eq!(check(End::Exited(0), r#"{"error":"x"}"#).0, "call-error-exit-code");
        let (name, came) = check(End::Exited(1), "{}");
        assert_eq!(name, "call-exit-code");
        assert_eq!(came, "exit code 1, which is not documented; the end of its log: `at the end`");
        assert_eq!(check(End::Signalled(11), "{}").0, "call-exit-code");
        assert_eq!(check(End::TimeLimit(Duration::from_secs(3)), "").0, "call-in-time");
        assert_eq!(check(End::OutputLimit(1024), "").0, "call-output-limit");
    }

    #[test]
    fn an_answer_and_a_refusal_are_told_apart() {
        assert_eq!(judged(End::Exited(0), "{}\n"), Reply::Answer(serde_json::json!({})));
        let refused = judged(End::Exited(10), r#"{"error":"no such machine"}"#);
        let Reply::Refused(refusal) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.to_string(), "exit code 10 (not found): no such machine");
        let bare = Called { end: End::Exited(14), stdout: Vec::new(), log: String::new(), left: false };
        assert!(judge(&bare).1);
    }
}
