//! The runner's interpretation of an exit status of the driver, including `BUILD_EXIT_CODE_FILE`.

use std::path::Path;

use super::play::Cause;
use super::record::{Exit, Outcome};

/// The reasons for which a call, a stage or a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Exit 1: the job's own fault, never retried in prepare.
    Build { exit_code: i64 },
    /// `builds_dir` is missing and the like.
    Configuration(String),
    /// Everything else.
    System(String),
    /// A cancellation or a timeout, which overrides the result of the call.
    Ended(Cause),
    /// The runner is gone; nothing happens any more.
    Gone,
}

impl Failure {
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Build { exit_code } => Outcome::ScriptFailure { exit_code: *exit_code },
            Self::Configuration(_) => Outcome::RunnerConfigurationError,
            Self::System(_) => Outcome::RunnerSystemFailure,
            Self::Ended(cause) => cause.outcome(),
            Self::Gone => Outcome::None,
        }
    }

    /// The runner's own sentence.
    pub fn message(&self) -> String {
        match self {
            Self::Build { exit_code } => format!("exit status {exit_code}"),
            Self::Configuration(text) | Self::System(text) => text.clone(),
            Self::Ended(cause) => format!("{cause:?}"),
            Self::Gone => "the runner is gone".into(),
        }
    }
}

/// Maps the end of a call, reading the code file exactly where the runner does: after exit 1, in every call.
pub fn judge(exit: &Exit, code_file: &Path) -> Result<(), Failure> {
    let unknown = |code: i32| Failure::System(format!("unknown Custom executor executable exit code {code}"));
    match exit {
        Exit::Code(0) => Ok(()),
        Exit::Code(1) => match std::fs::read(code_file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::Build { exit_code: 1 })
            }
            Err(_) => Err(unknown(2)),
            Ok(bytes) => {
                Err(parse(&bytes).map_or_else(|| unknown(2), |exit_code| Failure::Build { exit_code }))
            }
        },
        Exit::Code(2) => Err(Failure::System("exit status 2".into())),
        Exit::Code(code) => Err(unknown(*code)),
        Exit::Signal(_) => Err(unknown(-1)),
        Exit::NotStarted(error) => Err(Failure::System(format!("failed to start command: {error}"))),
    }
}

/// The first line as Go's `bufio.Scanner` and `strconv.Atoi` read it: no blanks, no empty line.
pub fn parse(bytes: &[u8]) -> Option<i64> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    std::str::from_utf8(line).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_code_file_is_read_as_strictly_as_the_runner_reads_it() {
        let cases: [(&[u8], Option<i64>); 12] = [
            (b"42\n", Some(42)),
            (b"42", Some(42)),
            (b"42\r\nmore", Some(42)),
            (b"-1", Some(-1)),
            (b"+7\n", Some(7)),
            (b"0", Some(0)),
            (b"42 ", None),
            (b" 42", None),
            (b"", None),
            (b"\n42", None),
            (b"4_2", None),
            (b"0x2a", None),
        ];
        for (content, code) in cases {
            assert_eq!(parse(content), code, "{}", content.escape_ascii());
        }
    }
}
