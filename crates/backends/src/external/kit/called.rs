//! The kit's calls are those of the provider.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use super::program::{Called, End, Program};
use crate::external::process;
use crate::external::protocol::Verb;
use crate::held::Ending;
use crate::program::{self, Exit};

/// Limit of a verb that does not exist.
const UNKNOWN_VERB: Duration = Duration::from_secs(20);

/// Options of `unshare` for a network of the program's own, without any interface that is up. The account stays the same.
/// The second ones are for an account that may do this in a namespace of its own only.
const OFFLINE: [&[&str]; 2] = [&["--net", "--"], &["--map-current-user", "--net", "--"]];

/// A program in one of the usual directories.
fn found(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin"].iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists())
}

#[async_trait(?Send)]
impl Program for process::Program {
    async fn call(&self, verb: &str, input: Vec<u8>) -> Called {
        let shortest = self.time_limits.iter().map(|(_, limit)| *limit).min();
        let unknown = || shortest.unwrap_or(UNKNOWN_VERB);
        let limit = Verb::of_name(verb).map_or_else(unknown, |verb| self.time_limit(verb));
        let called = self.how.call(verb, limit, input).await;
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

    async fn call_offline(&self, verb: &str, input: Vec<u8>) -> Option<Called> {
        let unshare = found("unshare")?;
        let path = self.how.path.to_string_lossy().into_owned();
        for options in OFFLINE {
            let within = |rest: Vec<String>| {
                let arguments = options.iter().map(|text| (*text).to_owned()).chain(rest).collect();
                let how = program::Program { path: unshare.clone(), arguments, ..self.how.clone() };
                Self { how, ..self.clone() }
            };
            // Many hosts allow no namespaces to users, and many containers to no account.
            let tried = Program::call(&within(vec!["true".to_owned()]), verb, Vec::new()).await;
            if tried.end == End::Exited(0) {
                let line = [path].into_iter().chain(self.how.arguments.clone()).collect();
                return Some(Program::call(&within(line), verb, input).await);
            }
        }
        None
    }
}
