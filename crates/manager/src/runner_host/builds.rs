//! The builds of jobs, where instances use the runner host's files: `builds/ATTEMPT` in the state directory.
//!
//! They go with their attempt. A removal that was interrupted or failed leaves builds without an attempt, which a later
//! search finds.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use greenroom_core::ids::AttemptName;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;

use super::error::cannot;
use super::files;
use super::host::LocalHost;

/// The directory of all builds.
const BUILDS: &str = "builds";

impl LocalHost {
    /// The builds whose attempt is gone; searched for once in each `half_made_retention`.
    pub(super) fn search_builds(&self) -> BTreeSet<AttemptName> {
        let now = self.clock.now();
        let is_due = |at: Stamp| now.since(at) >= self.times.half_made_retention;
        if !self.searched_builds.get().is_none_or(is_due) {
            return BTreeSet::new();
        }
        self.searched_builds.set(Some(now));
        self.orphaned_builds().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            BTreeSet::new()
        })
    }

    fn orphaned_builds(&self) -> Result<BTreeSet<AttemptName>, HostError> {
        let builds = self.state.root().join(BUILDS);
        let failed = |e: io::Error| cannot("list", &builds, e);
        let mut orphaned = BTreeSet::new();
        for entry in files::missing_is_none(fs::read_dir(&builds)).map_err(failed)?.into_iter().flatten() {
            let name = entry.map_err(failed)?.file_name();
            let Some(Ok(name)) = name.to_str().map(AttemptName::parse) else { continue };
            // RACE: builds come after their attempt, so in this order the attempt of all that are in use is found.
            if !self.state.attempt(&name)?.try_exists().map_err(failed)? {
                orphaned.insert(name);
            }
        }
        Ok(orphaned)
    }

    /// An attempt's builds, if instances share the runner host's files.
    pub(super) fn builds(&self, name: &AttemptName) -> PathBuf {
        self.state.root().join(BUILDS).join(name.as_str())
    }
}
