//! The program that runs containers on an instance.

use serde::{Deserialize, Serialize};

/// An engine. What differs between them stands in `engine::container::dialect` and `connector::ssh::container`.
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

    /// Its name in sentences.
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
}
