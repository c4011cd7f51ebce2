//! How far a connection has come, for the error of one that takes too long.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use greenroom_ports::connector::{ConnectError, Step};

use super::dial::{listed, plain};
use super::greeting::Greeting;

/// The host that is being contacted, and the step that it is in.
#[derive(Debug, Default)]
pub(super) struct Progress {
    at: RefCell<String>,
    step: Cell<Step>,
    /// The addresses that were tried, each with its error.
    tried: RefCell<Vec<(SocketAddr, Option<String>)>>,
    greeting: RefCell<Greeting>,
}

impl Progress {
    /// The next host on the way.
    pub(super) fn contacts(&self, at: &str) {
        at.clone_into(&mut self.at.borrow_mut());
        self.step.set(Step::Connect);
        self.tried.borrow_mut().clear();
    }

    /// An address is tried, or has failed.
    pub(super) fn tries(&self, address: SocketAddr, error: Option<&io::Error>) {
        let mut tried = self.tried.borrow_mut();
        match error {
            None => tried.push((address, None)),
            Some(error) => {
                if let Some((_, why)) = tried.iter_mut().find(|(known, _)| *known == address) {
                    *why = Some(plain(error));
                }
            }
        }
    }

    /// A connection stands: its greeting is next.
    pub(super) fn connected(&self, greeting: &Greeting) {
        self.greeting.replace(greeting.clone());
        self.step.set(Step::Greeting);
    }

    /// The host key is verified: the login is next.
    pub(super) fn verified(&self) {
        self.step.set(Step::Login);
    }

    /// The error of a connection that was not ready in time.
    pub(super) fn timed_out(&self, waited: Duration) -> ConnectError {
        let step = match self.step.get() {
            Step::Greeting if self.greeting.borrow().has_come() => Step::Exchange,
            step => step,
        };
        let (tried, mut at) = (self.tried.borrow(), self.at.borrow().clone());
        if step == Step::Connect && tried.len() > 1 {
            let outcome = |why: &Option<String>| why.clone().unwrap_or_else(|| "no answer".to_owned());
            let each = tried.iter().map(|(address, why)| (*address, outcome(why))).collect();
            at = format!("{at} ({})", listed(each));
        }
        ConnectError::timed_out_in(step, at, waited)
    }
}
