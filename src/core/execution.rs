//! How a job's stages run: where, and by which shell.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where the stages of a job run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// On the instance itself, as the user that logs in.
    Machine { shell: Shell },
    /// The author's stages in a container on the instance; the runner's own on the instance itself, by this shell.
    Container { shell: Shell },
}

impl Execution {
    /// The shell of the stages that run on the instance itself.
    pub fn shell(self) -> Shell {
        let (Self::Machine { shell } | Self::Container { shell }) = self;
        shell
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
    /// The names of `ALL`.
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
}
