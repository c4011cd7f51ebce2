//! The execution of a job's stages: their place and their shell.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The place in which the stages of a job run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// On the instance itself, as the user that logs in.
    Machine { shell: StageShell },
    /// The author's stages in a container on the instance; the runner's own on the instance itself, by this shell.
    Container { shell: StageShell },
}

impl Execution {
    /// The shell of the stages that run on the instance itself.
    pub fn shell(self) -> StageShell {
        let (Self::Machine { shell } | Self::Container { shell }) = self;
        shell
    }
}

/// The shell of a job's stages on the instance itself, and what it does with its streams. The latter also counts in a
/// container. Written as words: `bash login separate-stderr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct StageShell {
    pub shell: Shell,
    /// True if the script's environment is that of a login shell.
    pub login_shell: bool,
    /// True if the script's standard error stays apart from its standard output, so the order of both is lost.
    pub separate_stderr: bool,
}

const LOGIN: &str = "login";
const SEPARATE_STDERR: &str = "separate-stderr";

impl From<Shell> for StageShell {
    fn from(shell: Shell) -> Self {
        Self { shell, login_shell: false, separate_stderr: false }
    }
}

impl From<StageShell> for String {
    fn from(StageShell { shell, login_shell, separate_stderr }: StageShell) -> Self {
        let flags = [login_shell.then_some(LOGIN), separate_stderr.then_some(SEPARATE_STDERR)];
        let words: Vec<&str> = [shell.as_str()].into_iter().chain(flags.into_iter().flatten()).collect();
        words.join(" ")
    }
}

/// A recorded text that is no [`StageShell`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a shell of stages")]
pub struct UnknownStageShell {
    pub text: String,
}

impl TryFrom<String> for StageShell {
    type Error = UnknownStageShell;

    fn try_from(text: String) -> Result<Self, UnknownStageShell> {
        let unknown = || UnknownStageShell { text: text.clone() };
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        let shell = Shell::ALL.into_iter().find(|shell| shell.as_str() == name).ok_or_else(unknown)?;
        let mut read = Self::from(shell);
        for word in words {
            match word {
                LOGIN => read.login_shell = true,
                SEPARATE_STDERR => read.separate_stderr = true,
                _ => return Err(unknown()),
            }
        }
        Ok(read)
    }
}

/// The shell that GitLab Runner writes its scripts for, and that runs them. The only list: what the configuration
/// accepts, doctor checks and a connector starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shell {
    Bash,
    /// A POSIX shell. With dash, the runner needs `FF_POSIXLY_CORRECT_ESCAPES`.
    Sh,
    /// PowerShell 7.
    Pwsh,
}

impl Shell {
    pub const ALL: [Self; 3] = [Self::Bash, Self::Sh, Self::Pwsh];
    /// The names of [`ALL`](Self::ALL).
    pub const NAMES: [&str; 3] = ["bash", "sh", "pwsh"];

    /// GitLab Runner's name for it, and the name of its program.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Pwsh => "pwsh",
        }
    }
}

impl fmt::Display for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_has_one_name_for_all() {
        for (shell, name) in Shell::ALL.into_iter().zip(Shell::NAMES) {
            assert_eq!(shell.as_str(), name);
            assert_eq!(serde_json::to_value(shell).unwrap(), name);
        }
    }

    #[test]
    fn the_shell_of_stages_is_read_as_it_was_written() {
        for text in ["bash", "sh login", "pwsh separate-stderr", "bash login separate-stderr"] {
            let read = StageShell::try_from(text.to_owned()).unwrap();
            assert_eq!(String::from(read), text);
            assert_eq!(read.login_shell, text.contains("login"));
        }
        for text in ["", "zsh", "bash -l", "bash ", " bash"] {
            assert!(StageShell::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
