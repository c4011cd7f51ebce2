//! The program of a pool, called with a verb.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::text::clean_line;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_ports::provider::ProviderError;
use serde::Serialize;

use super::protocol::Verb;
use super::protocol::answers::{self, Answer};
use super::protocol::exit::{self, Reason};
use crate::held::Ending;
use crate::program::{self, Ended, Exit};

/// How much of the log's end a message shows, in characters.
const SHOWN_LOG: usize = 300;

/// A program that speaks the protocol.
#[derive(Debug, Clone)]
pub struct Program {
    pub how: program::Program,
    /// Limits that differ from the verbs' own.
    pub time_limits: Vec<(Verb, Duration)>,
}

/// An ended call.
#[derive(Debug, Clone)]
pub struct Called {
    pub verb: Verb,
    pub ended: Ended,
    /// As messages name it.
    name: String,
    limit: Duration,
}

impl Program {
    /// As messages name it.
    pub fn name(&self) -> String {
        format!("`{}`", self.how.path.display())
    }

    pub fn time_limit(&self, verb: Verb) -> Duration {
        let own = self.time_limits.iter().find(|(limited, _)| *limited == verb);
        own.map_or_else(|| verb.time_limit(), |(_, limit)| *limit)
    }

    /// Calls the program and waits for its end. If this call is dropped, the program is killed.
    pub async fn call(&self, verb: Verb, request: &impl Serialize) -> Called {
        let limit = self.time_limit(verb);
        let ended = match serde_json::to_vec(request) {
            Ok(line) => self.how.call(verb.name(), limit, line).await,
            Err(error) => Ended::not_started(error.to_string()),
        };
        Called { verb, ended, name: self.name(), limit }
    }
}

impl Called {
    /// The answer, or the failure that the exit code and the output mean.
    pub fn answer<T: Answer>(&self, now: Stamp) -> Result<T, ProviderError> {
        let (class, why) = match &self.ended.exit {
            Exit::Ended(Ending::Code(0)) => match answers::read(&self.ended.output) {
                Ok(answer) => return Ok(answer),
                Err(why) => (exit::without_answer(self.verb), self.sentence(&why)),
            },
            Exit::Ended(Ending::Code(code)) => {
                let reason = Reason::read(&self.ended.output);
                let class = reason.as_ref().and_then(|reason| exit::class(*code, reason, now));
                let ended = || self.sentence(&format!("ended with exit code {code}"));
                let why = reason.map(|reason| reason.error).filter(|why| !why.is_empty());
                (class.unwrap_or_else(|| exit::without_answer(self.verb)), why.unwrap_or_else(ended))
            }
            // What did not start made nothing.
            Exit::Ended(Ending::NotStarted(why)) => {
                (ErrorClass::Transient, self.sentence(&format!("cannot be started: {why}")))
            }
            Exit::Ended(Ending::Signal(number)) => self.unanswered(&format!("was killed by signal {number}")),
            Exit::Ended(Ending::TimeLimit) => {
                self.unanswered(&format!("did not end within {} and was killed", Pretty(self.limit)))
            }
            Exit::Ended(Ending::Stopped) | Exit::Lost => {
                self.unanswered("was killed with Greenroom's process")
            }
            Exit::OutputLimit(limit) => {
                let limit = greenroom_core::text::size(*limit);
                self.unanswered(&format!("printed more than {limit} and was killed"))
            }
        };
        Err(ProviderError::new(class, self.with_log(why)))
    }

    fn unanswered(&self, why: &str) -> (ErrorClass, String) {
        (exit::without_answer(self.verb), self.sentence(why))
    }

    fn sentence(&self, why: &str) -> String {
        format!("{} {} {why}", self.name, self.verb)
    }

    /// Adds the log's last line: it usually has the cause.
    fn with_log(&self, why: String) -> String {
        let last = self.ended.log.lines().rev().find(|line| !line.trim().is_empty());
        let Some(last) = last else { return why };
        format!("{why}; the program's log ends: {}", clean_line(last.as_bytes(), SHOWN_LOG))
    }
}
