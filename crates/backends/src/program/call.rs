//! One call of a [`Program`]: its limits, what it printed, and how it ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::text::{clean_line, clean_text, size};
use greenroom_core::time::Pretty;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::child::{GuardedProgram, ProgramEnd, SpawnError};
use super::environment::{ProgramEnvironment, SecretError};
use super::guard;
use greenroom_core::text::with_causes;

/// The time by which the guard process may exceed the program's limit.
const ENDING: Duration = Duration::from_secs(5);
/// The length of the log's end that is kept, in bytes.
const LOG: usize = 16 << 10;

/// A program, and how it is called.
#[derive(Debug, Clone)]
pub struct Program {
    /// Greenroom's own program, which runs as the guard process.
    pub guard: PathBuf,
    /// Absolute.
    pub path: PathBuf,
    /// Before the last one, which is the call's own.
    pub arguments: Vec<String>,
    pub directory: PathBuf,
    pub environment: ProgramEnvironment,
    /// In bytes.
    pub output_limit: u64,
    /// The calls that may run concurrently.
    pub concurrent: Rc<Semaphore>,
}

/// The end of a [`Program`]'s call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEnd {
    Ended(ProgramEnd),
    /// Ended because it printed more than the limit, in bytes.
    OutputLimit(u64),
    /// The guard process was killed.
    Lost,
}

/// An ended call.
#[derive(Debug, Clone)]
pub struct EndedCall {
    pub exit: CallEnd,
    /// The program's standard output.
    pub output: Vec<u8>,
    /// The end of the program's standard error, cleaned.
    pub log: String,
    /// True if processes of its session were left, and were killed.
    pub left: bool,
}

impl CallEnd {
    /// The end of a sentence that begins with the program. `limit`: the call's time limit.
    pub fn summary(&self, limit: Duration) -> String {
        match self {
            Self::Ended(ProgramEnd::Code(code)) => format!("ended with exit code {code}"),
            Self::Ended(ProgramEnd::Signal(number)) => format!("was killed by signal {number}"),
            Self::Ended(ProgramEnd::TimeLimit) => {
                format!("did not end within {} and was killed", Pretty(limit))
            }
            Self::Ended(ProgramEnd::NotStarted(why)) => format!("cannot be started: {why}"),
            Self::Ended(ProgramEnd::Stopped) | Self::Lost => "was killed with Greenroom's process".to_owned(),
            Self::OutputLimit(limit) => format!("printed more than {} and was killed", size(*limit)),
        }
    }
}

impl EndedCall {
    /// The program made nothing.
    pub fn not_started(why: String) -> Self {
        Self::without_output(CallEnd::Ended(ProgramEnd::NotStarted(why)))
    }

    fn without_output(exit: CallEnd) -> Self {
        Self { exit, output: Vec::new(), log: String::new(), left: false }
    }

    /// The last line of the log, which usually has the cause, with at most so many characters.
    pub fn last_log_line(&self, length: usize) -> Option<String> {
        let last = self.log.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(clean_line(last.as_bytes(), length))
    }
}

/// The reason a call has not begun.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Guard(#[from] SpawnError),
}

impl Program {
    /// Calls the program with one line on its standard input, and waits for its end. If this call is dropped, the program is
    /// killed.
    pub async fn call(&self, argument: &str, limit: Duration, mut line: Vec<u8>) -> EndedCall {
        line.push(b'\n');
        let permit = self.concurrent.acquire().await;
        let ended = match self.start(argument, limit) {
            Err(error) => EndedCall::not_started(with_causes(&error)),
            Ok(started) => self.finish(started, &line, limit + ENDING).await,
        };
        drop(permit);
        ended
    }

    fn start(&self, argument: &str, limit: Duration) -> Result<GuardedProgram, StartError> {
        let mut arguments: Vec<OsString> = vec![guard::KIND.into()];
        arguments.extend(guard::arguments(limit, self.directory.as_os_str(), self.path.as_os_str()));
        arguments.extend(self.arguments.iter().map(OsString::from));
        arguments.push(argument.into());
        Ok(GuardedProgram::start(&self.guard, arguments, self.environment.variables()?)?)
    }

    /// Writes the request, and reads what comes until the program's end.
    async fn finish(&self, started: GuardedProgram, line: &[u8], limit: Duration) -> EndedCall {
        let GuardedProgram { stdout, stderr, mut control, mut guard } = started;
        let mut output = Vec::new();
        let mut log = VecDeque::new();
        let exchange = async {
            control.write_all(line).await?;
            if !read_answer(stdout, self.output_limit, &mut output).await? {
                // The guard process kills the program.
                control.shutdown().await?;
            }
            Ok::<_, io::Error>(())
        };
        let reading = async { tokio::join!(exchange, read_log(stderr, &mut log)) };
        let ended = timeout(limit, guard.ended(reading, |_| {})).await;
        let log = clean_text(log.make_contiguous());
        let Ok(report) = ended else { return EndedCall { log, ..EndedCall::without_output(CallEnd::Lost) } };
        let left = report.as_ref().is_some_and(|report| report.left);
        let exit = match report {
            _ if output.len() as u64 > self.output_limit => CallEnd::OutputLimit(self.output_limit),
            Some(report) => CallEnd::Ended(report.ending),
            None => CallEnd::Lost,
        };
        EndedCall { exit, output, log, left }
    }
}

/// Reads the answer; false: it is longer than `limit`, and the rest was not read.
async fn read_answer(from: impl AsyncRead + Unpin, limit: u64, answer: &mut Vec<u8>) -> io::Result<bool> {
    from.take(limit.saturating_add(1)).read_to_end(answer).await?;
    Ok(answer.len() as u64 <= limit)
}

/// The end of the log. What comes before is read, too, so that the program never waits for a reader.
async fn read_log(mut from: impl AsyncRead + Unpin, kept: &mut VecDeque<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        kept.extend(&buffer[..length]);
        kept.drain(..kept.len().saturating_sub(LOG));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_has_its_limit_and_a_log_keeps_its_end() {
        let mut read = Vec::new();
        assert!(read_answer(&b"12345"[..], 5, &mut read).await.unwrap());
        assert_eq!(read, b"12345");
        assert!(!read_answer(&b"123456"[..], 5, &mut Vec::new()).await.unwrap());
        let long: Vec<u8> = (0..100_000_u32).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
        let mut kept = VecDeque::new();
        read_log(&long[..], &mut kept).await.unwrap();
        assert_eq!(kept.into_iter().collect::<Vec<u8>>(), long[long.len() - LOG..]);
    }
}
