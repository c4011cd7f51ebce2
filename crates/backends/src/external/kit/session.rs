//! One run of the kit: its calls, and what became of each check.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::checks::CHECKS;
use super::program::{Called, End, Program};
use super::reply::{Refusal, Reply, judge, quote, short};
use crate::external::protocol::VERSION;
use crate::external::protocol::answers::{self, Answer};
use crate::external::protocol::exit::{INVALID, NOT_FOUND};
use crate::program::kit::check::{Judged, Verdict, failed};
use crate::program::kit::outcomes::Outcomes;

/// Calls the program, and collects the outcomes.
pub struct Session<'a> {
    program: &'a dyn Program,
    settings: Value,
    /// Verbs that hung, flooded or did not start: each further call would cost its time limit.
    given_up: RefCell<BTreeMap<String, &'static str>>,
    /// Texts that no output may contain.
    secrets: RefCell<Vec<String>>,
    pub outcomes: Outcomes,
    calls: Cell<u32>,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    pub fn new(program: &'a dyn Program, settings: Value) -> Self {
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
    pub async fn call(&self, verb: &str, pool: &str, fields: &Value) -> Reply {
        self.send(verb, self.request(pool, fields).to_string().into_bytes()).await
    }

    /// The same with any standard input.
    pub async fn send(&self, verb: &str, input: Vec<u8>) -> Reply {
        if let Some(check) = self.given_up.borrow().get(verb) {
            return Reply::Unusable(check, format!("`{verb}` is not called any more"));
        }
        self.calls.set(self.calls.get() + 1);
        let called = self.program.call(verb, input).await;
        self.judge(verb, &called)
    }

    /// The same without a network. How the program ends then is its own affair. `None`: this host cannot do it.
    pub async fn call_offline(&self, verb: &str, pool: &str, fields: &Value) -> Option<Reply> {
        self.calls.set(self.calls.get() + 1);
        let input = self.request(pool, fields).to_string().into_bytes();
        Some(judge(&self.program.call_offline(verb, input).await?).0)
    }

    fn judge(&self, verb: &str, called: &Called) -> Reply {
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
        if let Reply::Unusable(check, came) = &reply {
            self.violate(check, verb, came);
            if !matches!(called.end, End::Exited(_) | End::Signalled(_)) {
                self.given_up.borrow_mut().insert(verb.to_owned(), check);
            }
        }
        reply
    }

    pub fn violate(&self, check: &'static str, verb: &str, came: &str) {
        let came = format!("`{verb}`: {came}");
        // Permitted, but it makes mistakes hard to find.
        let is_permitted = check == "call-error-reason";
        self.outcomes
            .violate(check, if is_permitted { Verdict::Warned(came) } else { Verdict::Failed(came) });
    }

    /// The answer to a call; anything else ends the check.
    pub async fn answer(&self, verb: &str, pool: &str, fields: &Value) -> Judged<Value> {
        match self.call(verb, pool, fields).await {
            Reply::Answer(answer) => Ok(answer),
            Reply::Refused(refusal) => failed(format!("`{verb}` was refused with {refusal}")),
            Reply::Unusable(check, _) => Err(unusable(verb, check)),
        }
    }

    /// A refusal; anything else ends the check.
    pub async fn refusal(&self, verb: &str, pool: &str, fields: &Value) -> Judged<Refusal> {
        refused(verb, self.call(verb, pool, fields).await)
    }

    /// A refusal, because the request is of something that does not exist. An ID may be impossible in the program's cloud.
    pub async fn refused_as_unknown(&self, verb: &str, pool: &str, fields: &Value) -> Judged {
        let refusal = self.refusal(verb, pool, fields).await?;
        if matches!(refusal.code, NOT_FOUND | INVALID) {
            Ok(())
        } else {
            failed(format!("`{verb}` ended with {refusal}"))
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
            End::Exited(INVALID) => Ok(()),
            End::Exited(0) => {
                let output = quote(&String::from_utf8_lossy(&called.stdout));
                failed(format!("`{verb}` ended with exit code 0 and printed {output}"))
            }
            End::Exited(code) => Err(Verdict::Warned(format!("`{verb}` ended with exit code {code}"))),
            End::Signalled(signal) => failed(format!("signal {signal} ended `{verb}`")),
            End::TimeLimit(_) | End::OutputLimit(_) | End::NotStarted(_) => match self.judge(verb, &called) {
                Reply::Unusable(check, _) => Err(unusable(verb, check)),
                Reply::Answer(_) | Reply::Refused(_) => failed(format!("`{verb}` did not end")),
            },
        }
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u32 {
        self.calls.get()
    }
}

/// The reason to skip a check whose call is judged by another one.
pub fn unusable(verb: &str, check: &str) -> Verdict {
    Verdict::Skipped(format!("`{verb}` gave no usable answer, see `{check}`"))
}

/// A reply that has to be a refusal.
pub fn refused(verb: &str, reply: Reply) -> Judged<Refusal> {
    match reply {
        Reply::Refused(refusal) => Ok(refusal),
        Reply::Answer(answer) => failed(format!("`{verb}` answered {} with exit code 0", short(&answer))),
        Reply::Unusable(check, _) => Err(unusable(verb, check)),
    }
}

/// Reads an answer as the protocol defines it.
pub fn read<T: Answer>(verb: &str, answer: &Value) -> Judged<T> {
    answers::read(answer.to_string().as_bytes()).or_else(|wrong| failed(format!("`{verb}` {wrong}")))
}
