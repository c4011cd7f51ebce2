//! One call of the program.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use super::holder;
use super::output;
use crate::core::failure::ErrorClass;
use crate::core::text::{clean_line, clean_text};
use crate::core::time::{Pretty, Stamp};
use crate::port::provider::ProviderError;
use crate::provider::environment::Environment;
use crate::provider::external::protocol::Verb;
use crate::provider::external::protocol::answers::{self, Answer};
use crate::provider::external::protocol::exit::{self, Reason};
use crate::provider::held::{self, Ending};

/// How much longer than the program's limit the process that ends it may take.
const ENDING: Duration = Duration::from_secs(5);
/// How long what a program has printed may take to arrive after its end.
const DRAINING: Duration = Duration::from_millis(200);
/// How much of the log's end a message shows, in characters.
const SHOWN_LOG: usize = 300;

/// A program, and how it is called.
#[derive(Debug, Clone)]
pub struct Program {
    /// Greenroom's own, which holds the program.
    pub holder: PathBuf,
    /// Absolute.
    pub path: PathBuf,
    /// Before the verb.
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    pub environment: Environment,
    /// Limits that differ from the verbs' own.
    pub time_limits: Vec<(Verb, Duration)>,
    /// In bytes.
    pub output_limit: u64,
    /// The calls that may run concurrently.
    pub concurrent: Rc<Semaphore>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    Ended(Ending),
    /// Ended because it printed more than the limit, in bytes.
    OutputLimit(u64),
    /// The process that holds the program was killed.
    Lost,
}

/// An ended call.
#[derive(Debug, Clone)]
pub struct Called {
    pub verb: Verb,
    pub exit: Exit,
    /// Its standard output.
    pub output: Vec<u8>,
    /// The end of its standard error, cleaned.
    pub log: String,
    /// As messages name it.
    name: String,
    limit: Duration,
}

/// An ended call, without a judgement.
#[derive(Debug, Clone)]
pub struct Line {
    pub exit: Exit,
    /// Its standard output.
    pub output: Vec<u8>,
    /// The end of its standard error, cleaned.
    pub log: String,
    /// True if processes of its session were left, and were killed.
    pub left: bool,
}

impl Line {
    fn not_started(why: String) -> Self {
        let exit = Exit::Ended(Ending::NotStarted(why));
        Self { exit, output: Vec::new(), log: String::new(), left: false }
    }
}

impl Program {
    /// As messages name it.
    pub fn name(&self) -> String {
        format!("`{}`", self.path.display())
    }

    pub fn time_limit(&self, verb: Verb) -> Duration {
        let own = self.time_limits.iter().find(|(limited, _)| *limited == verb);
        own.map_or_else(|| verb.time_limit(), |(_, limit)| *limit)
    }

    /// Calls the program and waits for its end. If this call is dropped, the program is killed.
    pub async fn call(&self, verb: Verb, request: &impl Serialize) -> Called {
        let limit = self.time_limit(verb);
        let Line { exit, output, log, .. } = match serde_json::to_vec(request) {
            Ok(line) => self.call_line(verb.name(), limit, line).await,
            Err(error) => Line::not_started(error.to_string()),
        };
        Called { verb, exit, output, log, name: self.name(), limit }
    }

    /// The same with any verb and any request of one line, and without a judgement.
    pub async fn call_line(&self, verb: &str, limit: Duration, mut line: Vec<u8>) -> Line {
        line.push(b'\n');
        let mut log = VecDeque::new();
        let permit = self.concurrent.acquire().await;
        let ended = match self.start(verb, limit) {
            Err(why) => Line::not_started(why),
            Ok(started) => match started.finish(&line, self.output_limit, limit + ENDING, &mut log).await {
                Ok(ended) => ended,
                Err(_) => Line { exit: Exit::Lost, output: Vec::new(), log: String::new(), left: false },
            },
        };
        drop(permit);
        Line { log: clean_text(log.make_contiguous()), ..ended }
    }

    fn start(&self, verb: &str, limit: Duration) -> Result<Started, String> {
        let (own, other) = UnixStream::pair().map_err(|error| error.to_string())?;
        let other: OwnedFd = other
            .into_std()
            .and_then(|other| other.set_nonblocking(false).map(|()| other))
            .map_err(|error| error.to_string())?
            .into();
        let mut arguments: Vec<OsString> = vec!["instance".into(), holder::KIND.into()];
        arguments.extend(holder::arguments(limit, self.directory.as_os_str(), self.path.as_os_str()));
        arguments.extend(self.arguments.iter().map(OsString::from));
        arguments.push(verb.into());
        let mut command = Command::new(&self.holder);
        command.args(arguments).current_dir("/").env_clear().envs(self.environment.variables()?);
        command.stdin(Stdio::from(other)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| {
            format!("Greenroom's own program `{}` cannot run: {error}", self.holder.display())
        })?;
        Ok(Started { child, control: own })
    }
}

/// A running call. Dropping it ends the program.
struct Started {
    child: Child,
    control: UnixStream,
}

impl Started {
    async fn finish(
        mut self,
        line: &[u8],
        output_limit: u64,
        limit: Duration,
        log: &mut VecDeque<u8>,
    ) -> io::Result<Line> {
        let piped = || io::Error::other("no pipe");
        let stdout = self.child.stdout.take().ok_or_else(piped)?;
        let stderr = self.child.stderr.take().ok_or_else(piped)?;
        let (ended, mut control) = self.control.into_split();
        let mut answer = Vec::new();
        let ending = {
            let exchange = async {
                control.write_all(line).await?;
                if !output::answer(stdout, output_limit, &mut answer).await? {
                    // The other end kills the program.
                    control.shutdown().await?;
                }
                Ok::<_, io::Error>(())
            };
            let streams = pin!(async { tokio::join!(exchange, output::log(stderr, log)) });
            let ending = pin!(held::reported(ended));
            // The holder reports after the program's end: what it has printed is in the pipes, which a daemon may keep open.
            let all = async {
                match select(ending, streams).await {
                    Either::Left((ending, streams)) => {
                        let _drained = tokio::time::timeout(DRAINING, streams).await;
                        ending
                    }
                    Either::Right((_, ending)) => ending.await,
                }
            };
            tokio::time::timeout(limit, all).await.map_err(io::Error::other)?
        };
        self.child.wait().await?;
        let left = ending.as_ref().is_some_and(|report| report.left);
        let exit = match ending {
            _ if answer.len() as u64 > output_limit => Exit::OutputLimit(output_limit),
            Some(report) => Exit::Ended(report.ending),
            None => Exit::Lost,
        };
        Ok(Line { exit, output: answer, log: String::new(), left })
    }
}

impl Called {
    /// The answer, or the failure that the exit code and the output mean.
    pub fn answer<T: Answer>(&self, now: Stamp) -> Result<T, ProviderError> {
        let (class, why) = match &self.exit {
            Exit::Ended(Ending::Code(0)) => match answers::read(&self.output) {
                Ok(answer) => return Ok(answer),
                Err(why) => (exit::without_answer(self.verb), self.sentence(&why)),
            },
            Exit::Ended(Ending::Code(code)) => {
                let reason = Reason::read(&self.output);
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
                let limit = crate::core::text::size(*limit);
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
        let last = self.log.lines().rev().find(|line| !line.trim().is_empty());
        let Some(last) = last else { return why };
        format!("{why}; the program's log ends: {}", clean_line(last.as_bytes(), SHOWN_LOG))
    }
}
