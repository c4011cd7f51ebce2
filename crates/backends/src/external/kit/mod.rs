//! The conformance kit: whether a program keeps the promises of the protocol.
//!
//! It calls the program as the provider does, from outside, and judges what comes. The cheap half makes no machine. The promises
//! that any provider makes are those of [`conformance`](greenroom_providers::conformance), which judges the program through its
//! plain port; the kit adds those of the protocol.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use greenroom_providers::conformance::report::Outcomes;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed};
use serde_json::{Value, json};

use super::protocol::answers::{self, ProtocolAnswer};
use super::protocol::{INVALID, VERSION};

pub mod cheap;
mod checks;
pub mod live;
mod port;
pub mod program;

use checks::CHECKS;
use program::{ProgramReply, ProgramUnderTest, TestedCall, TestedEnd, judge, quote};

/// Calls the program, and collects the outcomes.
pub struct KitSession<'a> {
    program: &'a dyn ProgramUnderTest,
    settings: Value,
    /// Verbs that hung, flooded or did not start: each further call would cost its time limit.
    given_up: RefCell<BTreeMap<String, &'static str>>,
    /// Texts that no output may contain.
    secrets: RefCell<Vec<String>>,
    pub outcomes: Outcomes,
    calls: Cell<u32>,
}

impl std::fmt::Debug for KitSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KitSession").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<'a> KitSession<'a> {
    pub fn new(program: &'a dyn ProgramUnderTest, settings: Value) -> Self {
        Self {
            program,
            settings,
            given_up: RefCell::default(),
            secrets: RefCell::default(),
            outcomes: Outcomes::new(CHECKS),
            calls: Cell::default(),
        }
    }

    /// Adds a text that neither logs nor answers may contain.
    pub fn keep_secret(&self, text: &str) {
        self.secrets.borrow_mut().push(text.to_owned());
    }

    /// A request of the kit's, with the fields of its verb.
    pub fn request(&self, pool: &str, fields: &Value) -> Value {
        let mut request = json!({ "protocol": VERSION, "pool": pool, "settings": self.settings });
        if let (Some(all), Some(fields)) = (request.as_object_mut(), fields.as_object()) {
            all.extend(fields.clone());
        }
        request
    }

    /// Makes a call, and judges it by what holds for every call.
    pub async fn call(&self, verb: &str, pool: &str, fields: &Value) -> ProgramReply {
        self.send(verb, self.request(pool, fields).to_string().into_bytes()).await
    }

    /// Makes a call with any standard input, and judges it like [`call`](Self::call).
    pub async fn send(&self, verb: &str, input: Vec<u8>) -> ProgramReply {
        if let Some(check) = self.given_up.borrow().get(verb) {
            return ProgramReply::Unusable(check, format!("`{verb}` is not called any more"));
        }
        self.calls.set(self.calls.get() + 1);
        let called = self.program.call(verb, input).await;
        self.judge(verb, &called)
    }

    /// Makes a call without a network, which may end in any way. `None`: this host cannot do it.
    pub async fn call_offline(&self, verb: &str, pool: &str, fields: &Value) -> Option<ProgramReply> {
        self.calls.set(self.calls.get() + 1);
        let input = self.request(pool, fields).to_string().into_bytes();
        Some(judge(&self.program.call_offline(verb, input).await?).0)
    }

    fn judge(&self, verb: &str, called: &TestedCall) -> ProgramReply {
        let (reply, is_bare) = judge(called);
        if called.left {
            self.violate("call-no-process-left", verb, "its processes were still running at its end");
        }
        if is_bare {
            self.violate("call-error-reason", verb, "no reason");
        }
        let output = String::from_utf8_lossy(&called.stdout);
        if self.secrets.borrow().iter().any(|secret| called.log.contains(secret) || output.contains(secret)) {
            self.violate("call-keeps-secrets", verb, "a secret is in its output");
        }
        if let ProgramReply::Unusable(check, came) = &reply {
            self.violate(check, verb, came);
            if !matches!(called.end, TestedEnd::Exited(_) | TestedEnd::Signalled(_)) {
                self.given_up.borrow_mut().insert(verb.to_owned(), check);
            }
        }
        reply
    }

    pub fn violate(&self, check: &'static str, verb: &str, came: &str) {
        let came = format!("`{verb}`: {came}");
        // Permitted, but it makes mistakes hard to find.
        let is_permitted = check == "call-error-reason";
        self.outcomes.violate(
            check,
            if is_permitted { CheckVerdict::Warned(came) } else { CheckVerdict::Failed(came) },
        );
    }

    /// The answer to a call; anything else ends the check.
    pub async fn answer(&self, verb: &str, pool: &str, fields: &Value) -> Judged<Value> {
        match self.call(verb, pool, fields).await {
            ProgramReply::Answer(answer) => Ok(answer),
            ProgramReply::Refused(refusal) => failed(format!("`{verb}` was refused with {refusal}")),
            ProgramReply::Unusable(check, _) => Err(unusable(verb, check)),
        }
    }

    /// A request that has to be refused, whatever else is wrong with the program. Another code than 14 is a warning.
    pub async fn refuses(&self, verb: &str, input: Vec<u8>) -> Judged {
        if let Some(check) = self.given_up.borrow().get(verb) {
            return Err(unusable(verb, check));
        }
        self.calls.set(self.calls.get() + 1);
        let called = self.program.call(verb, input).await;
        match called.end {
            TestedEnd::Exited(INVALID) => Ok(()),
            TestedEnd::Exited(0) => {
                let output = quote(&String::from_utf8_lossy(&called.stdout));
                failed(format!("`{verb}` ended with exit code 0 and printed {output}"))
            }
            TestedEnd::Exited(code) => {
                Err(CheckVerdict::Warned(format!("`{verb}` ended with exit code {code}")))
            }
            TestedEnd::Signalled(signal) => failed(format!("signal {signal} ended `{verb}`")),
            TestedEnd::TimeLimit(_) | TestedEnd::OutputLimit(_) | TestedEnd::NotStarted(_) => match self
                .judge(verb, &called)
            {
                ProgramReply::Unusable(check, _) => Err(unusable(verb, check)),
                ProgramReply::Answer(_) | ProgramReply::Refused(_) => failed(format!("`{verb}` did not end")),
            },
        }
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u32 {
        self.calls.get()
    }
}

/// The reason to skip a check whose call is judged by another one.
pub fn unusable(verb: &str, check: &str) -> CheckVerdict {
    CheckVerdict::Skipped(format!("`{verb}` gave no usable answer, see `{check}`"))
}

/// Reads an answer as the protocol defines it.
pub fn read<T: ProtocolAnswer>(verb: &str, answer: &Value) -> Judged<T> {
    answers::read(answer.to_string().as_bytes()).or_else(|wrong| failed(format!("`{verb}` {wrong}")))
}
