//! The program that runs containers on an instance: which one, where it runs, and what its check has shown.

use serde::{Deserialize, Serialize};

use super::name::ContainerName;
use crate::shell_text::one_line;
use crate::text::{clean_line, quoted};

/// An engine. What differs between them stands in `greenroom_engine::container::dialect` and `greenroom_ports::dialect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerEngine {
    #[default]
    Podman,
    Docker,
}

impl ContainerEngine {
    pub const ALL: [Self; 2] = [Self::Podman, Self::Docker];

    /// The name of its program, which is also its name in the configuration.
    pub fn program(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }

    /// The engine's name in sentences.
    pub fn called(self) -> &'static str {
        match self {
            Self::Podman => "Podman",
            Self::Docker => "Docker",
        }
    }

    /// The option for the processes of a container; `None`: no limit. Podman's own default is 2048.
    pub fn pids_option(self, limit: Option<u64>) -> String {
        match (limit, self) {
            (Some(limit), _) => format!("--pids-limit={limit}"),
            (None, Self::Podman) => "--pids-limit=-1".to_owned(),
            (None, Self::Docker) => String::new(),
        }
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// Where the engine of a container runs, in words of a shell: as root, or as the account of jobs.
//
// The account of jobs has no root and no session of systemd: its engine keeps its state below the home, which cleaning
// removes, and makes no control groups.

/// The environment that an engine of the account of jobs needs. Sets `d`.
const ACCOUNT: &str = "d=\"$HOME/.greenroom/run\"; XDG_RUNTIME_DIR=$d; PATH=$d/bin:$PATH:/usr/sbin:/sbin; \
                       export XDG_RUNTIME_DIR PATH; unset DBUS_SESSION_BUS_ADDRESS CONTAINER_HOST CONTAINERS_CONF; ";
/// Makes the engine's directory, and the program that all later calls find instead of the engine's own.
const MAKE: &str = include_str!("make_engine.sh");
/// Makes the engine usable after something else has killed its processes.
const REVIVE: &str = include_str!("revive_engine.sh");

/// Reads a script as root.
const AS_ROOT: &str = "if [ \"$(id -u)\" = 0 ]; then exec sh; else exec sudo -n sh; fi";

/// The account that runs an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnginePlace {
    Root,
    /// The account of jobs, which is not root.
    Account,
}

impl EnginePlace {
    pub fn of(name: &ContainerName) -> Self {
        Self::on(name.is_rootless())
    }

    /// The account that runs the engine on a static host, or on a launched instance. Static hosts stay, so no job may be
    /// root there.
    pub fn on(is_static: bool) -> Self {
        if is_static { Self::Account } else { Self::Root }
    }

    /// The directory of the engine's files, to be put in double quotes: `NAME.pid` has the number of a container's
    /// first process.
    pub fn dir(self) -> &'static str {
        match self {
            Self::Root => "/run/greenroom",
            Self::Account => "$HOME/.greenroom/run",
        }
    }

    /// The commands that go before a script that calls the engine, and that an ordinary shell of the account reads.
    pub fn prepares(self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Account => format!("{ACCOUNT}{} {}", one_line(MAKE, &[]), self.revives()),
        }
    }

    /// The commands that go before a call of the engine that `runs`.
    pub fn revives(self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Account => one_line(REVIVE, &[]) + " ",
        }
    }

    /// The shell command that reads a script that calls the engine.
    pub fn reader(self) -> String {
        match self {
            Self::Root => AS_ROOT.to_owned(),
            Self::Account => format!("{}exec sh", self.prepares()),
        }
    }

    /// The shell command that reads a script that sees the ids of users as containers do.
    pub fn reader_with_ids(self) -> String {
        match self {
            Self::Root => AS_ROOT.to_owned(),
            Self::Account => format!("{}exec podman unshare sh", self.prepares()),
        }
    }

    /// A command that runs `script`, which does not return. `variables`: sets those of this shell that it needs.
    pub fn runs(self, variables: &str, script: &str) -> String {
        match self {
            Self::Root => format!(
                "r={}; [ \"$(id -u)\" = 0 ] && eval \"$r\"; exec sudo -n /bin/sh -c \"{variables}$r\"",
                quoted(script)
            ),
            Self::Account => format!("{ACCOUNT}{script}"),
        }
    }
}

// What the check of an engine has shown: a container of Greenroom's own started, or why not.

/// The longest reason, in characters.
const REASON: usize = 400;

/// The result of `engine/container/sound.sh`, from lines that no container can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Soundness {
    /// The job's container has run.
    Ran,
    /// The engine started a container, and there is room on the disk.
    Sound,
    /// The engine started no container, for this reason; or this disk is full.
    Unsound(String),
}

impl Soundness {
    /// Reads the script's standard output; `None`: it did not come to a result.
    pub fn parse(output: &str) -> Option<Self> {
        output.lines().find_map(|line| match line.split_once(' ') {
            None if line == "sound" => Some(Self::Sound),
            None if line == "ran" => Some(Self::Ran),
            Some(("unsound", why)) => Some(Self::Unsound(clean_line(why.as_bytes(), REASON))),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_called_like_its_program() {
        for engine in ContainerEngine::ALL {
            assert_eq!(engine.called().to_lowercase(), engine.program());
            assert_eq!(serde_json::to_string(&engine).expect("a word"), format!("\"{}\"", engine.program()));
            assert_eq!(engine.is_default(), engine.program() == "podman");
        }
    }

    #[test]
    fn only_the_scripts_own_lines_are_a_result() {
        let unsound = |why: &str| Some(Soundness::Unsound(why.to_owned()));
        for (output, expected) in [
            ("sound\n", Some(Soundness::Sound)),
            (
                "unsound the disk is full: 3 MiB free in /var\n",
                unsound("the disk is full: 3 MiB free in /var"),
            ),
            ("a remark\nsound\n", Some(Soundness::Sound)),
            ("ran\n", Some(Soundness::Ran)),
            ("unsound a\x1b[1mb\n", unsound("ab")),
            ("", None),
            ("sound as a bell\n", None),
            ("not sound\n", None),
        ] {
            assert_eq!(Soundness::parse(output), expected, "{output:?}");
        }
    }
}
