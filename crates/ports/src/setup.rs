//! One pool's configuration, reloaded when it changes.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::judge::ContainerRefusal;
use greenroom_core::container::spec::ContainerJob;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::InstanceId;
use greenroom_core::policy::Policy;
use greenroom_core::time::millis;
use serde::{Deserialize, Serialize};

use super::provider::Provider;

/// One pool, set up.
#[derive(Clone)]
pub struct PoolSetup {
    pub policy: Arc<Policy>,
    pub provider: Rc<dyn Provider>,
    /// The shell that reads the scripts of the pool's jobs.
    pub shell: StageShell,
    /// The operator's command on a fresh instance before a job gets it; must exit 0.
    pub ready_command: Option<String>,
    /// The check that instances have to pass between two jobs.
    pub recheck: Recheck,
    /// Greenroom's part of cleaning static hosts; `None`: it is turned off.
    pub cleaning: Option<Rc<Cleaning>>,
    /// The operator's part of cleaning, run on a static host after Greenroom's part; must exit 0.
    pub clean_command: Option<String>,
    /// The pulls of images for the pool; `None`: its instances run no containers.
    pub pulls: Option<Rc<dyn Pulls>>,
}

/// The check that an instance has to pass between two jobs, beside Greenroom's own limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recheck {
    /// The directory of jobs' sources on the instance.
    pub builds_dir: String,
    /// The operator's part; must exit 0.
    pub command: Option<String>,
}

/// The pulls of images for a pool, as its configuration describes them. [`PoolSetup::pulls`] has them.
pub trait Pulls {
    /// The engine that runs the containers of the pool's jobs.
    fn engine(&self) -> ContainerEngine;

    /// The job that pulls an image, as for a job in it; or the reason why the image cannot be pulled. The operator's
    /// credentials go to instances without traces of jobs only, unless the operator shares them.
    fn pull(&self, image: &str, traces: Traces) -> Result<ContainerJob, PullError>;

    /// Pulls of those images of `images_warm` that need no credentials: all instances of the pool may have them from their
    /// start.
    fn public(&self) -> Vec<PublicPull> {
        Vec::new()
    }
}

/// The possibility that remains of a job on an instance could read along.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Refused(#[from] ContainerRefusal),
    /// A file that the operator has named for pulls cannot be read.
    #[error(transparent)]
    File(#[from] io::Error),
    #[error("a job with this image would pull nothing")]
    NotPulled,
}

/// Whether what a job has left on an instance could read along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traces {
    /// No job has used the instance, or root has cleaned it since.
    None,
    Possible,
}

/// A pull without credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicPull {
    /// The image's complete name.
    pub image: Arc<str>,
    /// A script for the instance's root, the same for the same settings. [`greenroom_core::container::report`] reads its output.
    pub script: String,
    /// Limit for the script.
    #[serde(with = "millis")]
    pub within: Duration,
}

/// The default of [`PoolSetup::ready_command`] in clouds, whose machines may accept logins before they are set up. Errors
/// that cloud-init recovered from (status 2) are no reason to replace the machine: the next one would have them, too.
pub const CLOUD_INIT: &str = include_str!("cloud_init.sh");

/// The argument of cleaning scripts that leaves the cache as it is.
pub const KEEP_CACHE: &str = "--keep-cache";

/// Greenroom's part of cleaning static hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaning {
    /// The script for hosts that only the account of jobs can clean, in the syntax of `/bin/sh`, whose arguments are the
    /// mark of the host's jobs and, if the cache stays, `--keep-cache`.
    pub by_account: String,
    /// Hosts that another account cleans.
    pub by_root: BTreeMap<InstanceId, RootCleaning>,
    /// True if [`by_root`](Self::by_root) has every host.
    pub all_by_root: bool,
    /// Shows, as the account of jobs, that a stage can begin after cleaning by root: a script, whose argument is the mark.
    pub proof: String,
}

/// Cleaning as root, over a login of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootCleaning {
    /// The account that logs in.
    pub user: String,
    /// Commands in the syntax of `/bin/sh` that read `script`. The first cleans everything, the second leaves the cache,
    /// the third only checks whether cleaning is possible.
    pub clean: String,
    pub clean_keeping_cache: String,
    pub check: String,
    pub script: String,
    /// `None`: the account is root.
    pub sudo: Option<SudoRule>,
}

/// The script and the line for sudoers that an operator installs on a host where `sudo` makes the account root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SudoRule {
    /// The path of the script, which belongs to root.
    pub program: String,
    /// The line for sudoers. It allows that program, with no argument of the caller's choice.
    pub line: String,
}

impl PoolSetup {
    /// True if the instances are static hosts, which are adopted and never launched.
    pub fn has_static_hosts(&self) -> bool {
        !self.provider.capabilities().launches
    }
}

impl std::fmt::Debug for PoolSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolSetup").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The configuration of one pool, read again when it changes.
///
/// # What an implementation promises
///
/// * **Answers.** [`current`](Self::current) always returns a configuration that was valid as a whole. It returns the same
///   [`Provider`] (by [`Rc::ptr_eq`]) until something changes that the provider is built from: before the engine accepts
///   another one, it compares the locations of both, because a provider of another location neither lists nor terminates the
///   pool's instances.
/// * **Errors.** There are none in the answer's place: after an invalid change, the last valid configuration comes with
///   the error beside it, on each call until the error is gone. An object exists only if its first configuration was valid.
/// * **Repetition and concurrency.** A call changes nothing but what later calls return, so it may be repeated at any time.
/// * **Deadlines.** A call reads files of the runner host, and waits for no provider and no instance.
///
/// # What a caller may rely on
///
/// A caller may ask before each pass, and keeps no answer beyond it. It need not use the answer: a keeper that refuses a new
/// provider goes on with the configuration before.
#[async_trait(?Send)]
pub trait Setup {
    /// The last valid configuration, and the error in the present one if that is invalid.
    async fn current(&self) -> (PoolSetup, Option<String>);
}
