//! The stages of `run`.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// The runner's name for the script that it passes. The set is open: a stage with an unknown name is run like any
/// other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    PrepareScript,
    GetSources,
    /// Before the second and each later attempt to get the sources.
    ClearWorktree,
    RestoreCache,
    DownloadArtifacts,
    /// The job's own script.
    BuildScript,
    /// A further step of the job, `release` for instance.
    Step(String),
    AfterScript,
    ArchiveCache,
    ArchiveCacheOnFailure,
    UploadArtifactsOnSuccess,
    UploadArtifactsOnFailure,
    CleanupFileVariables,
    /// Unknown to this version.
    Other(String),
}

/// Names on the command line.
const NAMES: &[(&str, Stage)] = &[
    ("prepare_script", Stage::PrepareScript),
    ("get_sources", Stage::GetSources),
    ("clear_worktree", Stage::ClearWorktree),
    ("restore_cache", Stage::RestoreCache),
    ("download_artifacts", Stage::DownloadArtifacts),
    ("build_script", Stage::BuildScript),
    ("after_script", Stage::AfterScript),
    ("archive_cache", Stage::ArchiveCache),
    ("archive_cache_on_failure", Stage::ArchiveCacheOnFailure),
    ("upload_artifacts_on_success", Stage::UploadArtifactsOnSuccess),
    ("upload_artifacts_on_failure", Stage::UploadArtifactsOnFailure),
    ("cleanup_file_variables", Stage::CleanupFileVariables),
];

impl Stage {
    /// True if no other stage follows in the same job.
    pub fn is_last(&self) -> bool {
        *self == Self::CleanupFileVariables
    }

    /// True if GitLab Runner provides all of the script, which then never runs in the job's container. A name unknown to
    /// this version may be the job's.
    pub fn is_runners(&self) -> bool {
        !self.is_job_script() && !matches!(self, Self::Other(_))
    }

    /// Returns the stage's name, if it prepares the instance for the job's own script and fetches its sources.
    pub fn prepares(&self) -> Option<&'static str> {
        match self {
            Self::PrepareScript => Some("prepare_script"),
            Self::GetSources => Some("get_sources"),
            _ => None,
        }
    }

    /// True if the first script of the job follows.
    pub fn is_before_scripts(&self) -> bool {
        matches!(
            self,
            Self::PrepareScript
                | Self::GetSources
                | Self::ClearWorktree
                | Self::RestoreCache
                | Self::DownloadArtifacts
        )
    }

    /// True if the job's script provides the commands, rather than GitLab Runner.
    pub fn is_job_script(&self) -> bool {
        matches!(self, Self::BuildScript | Self::Step(_) | Self::AfterScript)
    }
}

impl FromStr for Stage {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        if let Some((_, stage)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(stage.clone());
        }
        Ok(match name.strip_prefix("step_") {
            // Before 17.0, the script itself had this name.
            Some("script") => Self::BuildScript,
            Some(step) => Self::Step(step.to_owned()),
            None => Self::Other(name.to_owned()),
        })
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(name) => write!(f, "step_{name}"),
            Self::Other(name) => f.write_str(name),
            known => {
                let name = NAMES.iter().find(|(_, stage)| stage == known).map(|(name, _)| *name);
                f.write_str(name.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stage(name: &str) -> Stage {
        name.parse().unwrap_or_else(|never| match never {})
    }

    #[test]
    fn every_stage_of_the_runner_is_known_by_name() {
        for (name, stage_) in NAMES {
            assert_eq!(&stage(name), stage_);
            assert_eq!(stage_.to_string(), *name);
        }
    }

    #[test]
    fn steps_and_strangers_are_accepted() {
        assert_eq!(stage("step_release"), Stage::Step("release".into()));
        assert_eq!(stage("step_script"), Stage::BuildScript);
        assert_eq!(stage("warm_the_oven"), Stage::Other("warm_the_oven".into()));
        assert_eq!(stage(""), Stage::Other(String::new()));
    }

    #[test]
    fn the_authors_commands_are_told_from_the_runners() {
        let authors = ["build_script", "step_release", "after_script"];
        for (name, _) in NAMES {
            assert_eq!(stage(name).is_job_script(), authors.contains(name), "{name}");
            assert_eq!(stage(name).is_runners(), !authors.contains(name), "{name}");
        }
        assert!(!stage("warm_the_oven").is_runners(), "an unknown script may be the job's");
        assert!(stage("get_sources").is_before_scripts() && !stage("archive_cache").is_before_scripts());
    }

    proptest! {
        #[test]
        fn a_name_survives_the_way_through(name in "[a-z_]{0,20}") {
            prop_assume!(name != "step_script");
            prop_assert_eq!(stage(&name).to_string(), name);
        }
    }
}
