//! The kit's calls are those of the provider.

use std::time::Duration;

use async_trait::async_trait;

use super::program::{Called, End, Program};
use crate::provider::external::process::holder::Ending;
use crate::provider::external::process::{self, Exit};
use crate::provider::external::protocol::Verb;

/// Limit of a verb that does not exist.
const UNKNOWN_VERB: Duration = Duration::from_secs(20);

#[async_trait(?Send)]
impl Program for process::Program {
    async fn call(&self, verb: &str, input: Vec<u8>) -> Called {
        let shortest = self.time_limits.iter().map(|(_, limit)| *limit).min();
        let unknown = || shortest.unwrap_or(UNKNOWN_VERB);
        let limit = Verb::of_name(verb).map_or_else(unknown, |verb| self.time_limit(verb));
        let called = self.call_line(verb, limit, input).await;
        let end = match called.exit {
            Exit::Ended(Ending::Code(code)) => End::Exited(code),
            Exit::Ended(Ending::Signal(signal)) => End::Signalled(signal),
            Exit::Ended(Ending::TimeLimit) => End::TimeLimit(limit),
            Exit::Ended(Ending::NotStarted(why)) => End::NotStarted(why),
            Exit::Ended(Ending::Stopped) | Exit::Lost => End::Signalled(9),
            Exit::OutputLimit(bytes) => End::OutputLimit(bytes),
        };
        Called { end, stdout: called.output, log: called.log, left: called.left }
    }
}
