//! One call of a program.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::text::clean_text;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::Semaphore;

use super::holder;
use super::output;
use crate::environment::Environment;
use crate::held::{self, Ending};

/// How much longer than the program's limit the process that ends it may take.
const ENDING: Duration = Duration::from_secs(5);
/// How long what a program has printed may take to arrive after its end.
const DRAINING: Duration = Duration::from_millis(200);

/// A program, and how it is called.
#[derive(Debug, Clone)]
pub struct Program {
    /// Greenroom's own, which holds the program.
    pub holder: PathBuf,
    /// Absolute.
    pub path: PathBuf,
    /// Before the last one, which is the call's own.
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    pub environment: Environment,
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
pub struct Ended {
    pub exit: Exit,
    /// Its standard output.
    pub output: Vec<u8>,
    /// The end of its standard error, cleaned.
    pub log: String,
    /// True if processes of its session were left, and were killed.
    pub left: bool,
}

impl Ended {
    /// The program made nothing.
    pub fn not_started(why: String) -> Self {
        let exit = Exit::Ended(Ending::NotStarted(why));
        Self { exit, output: Vec::new(), log: String::new(), left: false }
    }
}

impl Program {
    /// Calls the program with one line on its standard input, and waits for its end. If this call is dropped, the program is
    /// killed.
    pub async fn call(&self, argument: &str, limit: Duration, mut line: Vec<u8>) -> Ended {
        line.push(b'\n');
        let mut log = VecDeque::new();
        let permit = self.concurrent.acquire().await;
        let ended = match self.start(argument, limit) {
            Err(why) => Ended::not_started(why),
            Ok(started) => match started.finish(&line, self.output_limit, limit + ENDING, &mut log).await {
                Ok(ended) => ended,
                Err(_) => Ended { exit: Exit::Lost, output: Vec::new(), log: String::new(), left: false },
            },
        };
        drop(permit);
        Ended { log: clean_text(log.make_contiguous()), ..ended }
    }

    fn start(&self, argument: &str, limit: Duration) -> Result<Started, String> {
        let mut arguments: Vec<OsString> = vec![holder::KIND.into()];
        arguments.extend(holder::arguments(limit, self.directory.as_os_str(), self.path.as_os_str()));
        arguments.extend(self.arguments.iter().map(OsString::from));
        arguments.push(argument.into());
        let (child, control) = held::spawn(&self.holder, arguments, self.environment.variables()?)?;
        Ok(Started { child, control })
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
    ) -> io::Result<Ended> {
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
        Ok(Ended { exit, output: answer, log: String::new(), left })
    }
}
