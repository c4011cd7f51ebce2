//! The account that a list is from.
//!
//! A list that has machines names their account. An empty list names none, and an empty list of another account would
//! pass for the end of all machines. So STS is asked before and after it: the answers must agree, because credentials
//! may change at any moment.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use aws_sdk_sts::Client;

/// Limit for the answer. Without it, the account is unknown, and nothing is forgotten.
const ANSWER: Duration = Duration::from_secs(5);
/// The pause after a failed call: STS may be unreachable for good.
const PAUSE: Duration = Duration::from_mins(1);

/// What is known about the credentials' account.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// The account when it was last looked at: by a list, or by STS.
    last: RefCell<Option<String>>,
    failed: Cell<Option<Instant>>,
}

impl Identity {
    /// Asks before a list. False if no list has to be repeated: the account before it is known, or cannot be asked for.
    pub(super) async fn ask_before(&self, sts: &Client) -> bool {
        if self.last.borrow().is_some() {
            return false;
        }
        let account = self.ask(sts).await;
        let known = account.is_some();
        self.last.replace(account);
        known
    }

    /// The account of a list that has just been taken. `owner`: of its machines, if it has any.
    pub(super) async fn of_list(&self, owner: Option<&str>, sts: &Client) -> Option<String> {
        if let Some(owner) = owner {
            self.last.replace(Some(owner.to_owned()));
            return Some(owner.to_owned());
        }
        let before = self.last.borrow().clone()?;
        let after = self.ask(sts).await;
        self.last.replace(after.clone());
        after.filter(|after| *after == before)
    }

    async fn ask(&self, sts: &Client) -> Option<String> {
        if self.failed.get().is_some_and(|failed| failed.elapsed() < PAUSE) {
            return None;
        }
        let answer = tokio::time::timeout(ANSWER, sts.get_caller_identity().send()).await;
        let account = answer.ok().and_then(Result::ok).and_then(|answer| answer.account);
        self.failed.set(account.is_none().then(Instant::now));
        account
    }
}
