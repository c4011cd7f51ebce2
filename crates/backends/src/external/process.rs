//! The program of a pool ([`ProtocolProgram`]), called with a [`Verb`].

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;
use serde::Serialize;

use super::protocol::answers::{self, ProtocolAnswer};
use super::protocol::{Reason, Verb, error_class, unanswered_class};
use crate::program::child::ProgramEnd;
use crate::program::{self, CallEnd, EndedCall};

/// The length of the log's end that a message shows, in characters.
const SHOWN_LOG: usize = 300;

/// A program that speaks the protocol.
#[derive(Debug, Clone)]
pub struct ProtocolProgram {
    pub how: program::Program,
    /// Limits that differ from the verbs' own.
    pub time_limits: Vec<(Verb, Duration)>,
}

/// An ended call.
#[derive(Debug, Clone)]
pub struct ProtocolCall {
    pub verb: Verb,
    pub ended: EndedCall,
    /// The program's name in messages.
    name: String,
    limit: Duration,
}

impl ProtocolProgram {
    /// Returns the program's name in messages.
    pub fn name(&self) -> String {
        format!("`{}`", self.how.path.display())
    }

    pub fn time_limit(&self, verb: Verb) -> Duration {
        let own = self.time_limits.iter().find(|(limited, _)| *limited == verb);
        own.map_or_else(|| verb.time_limit(), |(_, limit)| *limit)
    }

    /// Calls the program and waits for its end. If this call is dropped, the program is killed.
    pub async fn call(&self, verb: Verb, request: &impl Serialize) -> ProtocolCall {
        let limit = self.time_limit(verb);
        let ended = match serde_json::to_vec(request) {
            Ok(line) => self.how.call(verb.name(), limit, line).await,
            Err(error) => EndedCall::not_started(error.to_string()),
        };
        ProtocolCall { verb, ended, name: self.name(), limit }
    }
}

impl ProtocolCall {
    /// The answer, or the failure that the exit code and the output mean.
    pub fn answer<T: ProtocolAnswer>(&self, now: Stamp) -> Result<T, ProviderError> {
        let mut class = unanswered_class(self.verb);
        let mut why = self.sentence(&self.ended.exit.summary(self.limit));
        match &self.ended.exit {
            CallEnd::Ended(ProgramEnd::Code(0)) => match answers::read(&self.ended.output) {
                Ok(answer) => return Ok(answer),
                Err(error) => why = self.sentence(&error.to_string()),
            },
            CallEnd::Ended(ProgramEnd::Code(code)) => {
                if let Some(reason) = Reason::read(&self.ended.output) {
                    class = error_class(*code, &reason, now).unwrap_or(class);
                    why = Some(reason.error).filter(|reason| !reason.is_empty()).unwrap_or(why);
                }
            }
            // What did not start made nothing.
            CallEnd::Ended(ProgramEnd::NotStarted(_)) => class = ErrorClass::Transient,
            CallEnd::Ended(ProgramEnd::Signal(_) | ProgramEnd::TimeLimit | ProgramEnd::Stopped)
            | CallEnd::Lost
            | CallEnd::OutputLimit(_) => {}
        }
        if let Some(line) = self.ended.last_log_line(SHOWN_LOG) {
            why = format!("{why}; the program's log ends: {line}");
        }
        Err(ProviderError::new(class, why))
    }

    fn sentence(&self, why: &str) -> String {
        format!("{} {} {why}", self.name, self.verb)
    }
}
