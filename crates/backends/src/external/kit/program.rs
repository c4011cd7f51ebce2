//! The program under test, as the kit calls it: what came, without a judgement.

use std::time::Duration;

use async_trait::async_trait;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signalled(i32),
    /// Killed at its time limit.
    TimeLimit(Duration),
    /// Killed at its output limit, in bytes.
    OutputLimit(u64),
    /// It could not be started: why.
    NotStarted(String),
}

/// Everything that came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    pub end: End,
    pub stdout: Vec<u8>,
    /// Standard error, or its end.
    pub log: String,
    /// True if processes of the call were left when it ended; they have been killed.
    pub left: bool,
}

/// Calls the program. A call that is dropped is killed.
#[async_trait(?Send)]
pub trait Program {
    async fn call(&self, verb: &str, input: Vec<u8>) -> Called;

    /// The same without a network; `None`: this host cannot take it from one program.
    async fn call_offline(&self, _verb: &str, _input: Vec<u8>) -> Option<Called> {
        None
    }
}
