//! The job of a GitLab Runner call, from its environment and its response: its pool and its directories.

use std::path::Path;
use std::sync::Arc;

use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::policy::Policy;
use greenroom_engine::acquire::NoConfiguredPolicy;
use greenroom_manager::gitlab::config_json::{BuildsLayout, RunnerSlot};
use greenroom_manager::gitlab::env::JobEnv;
use greenroom_manager::gitlab::response::JobResponse;
use greenroom_manager::runner_host::Role;

use super::args::GlobalOptions;
use super::context::Context;
use super::error::CliError;
use crate::config::{JobTraits, PoolConfig};
use crate::provider;

/// One driver call.
#[derive(Debug)]
pub(super) struct DriverCall {
    pub env: JobEnv,
    pub attempt: AttemptName,
    pub context: Context,
}

impl DriverCall {
    /// Opens the state directory for a call of this attempt. The choice of `config` overrides the configuration.
    pub(super) fn open(place: &GlobalOptions, env: JobEnv) -> Result<Self, CliError> {
        Self::opened(place, env, Context::open)
    }

    /// [`open`](Self::open) for a call that works without the configuration.
    pub(super) fn open_bare(place: &GlobalOptions, env: JobEnv) -> Result<Self, CliError> {
        Self::opened(place, env, Context::open_bare)
    }

    fn opened(
        place: &GlobalOptions,
        env: JobEnv,
        open: fn(&GlobalOptions, Role) -> Result<Context, CliError>,
    ) -> Result<Self, CliError> {
        let attempt = env.attempt()?;
        let mut place = place.clone();
        if place.state_dir.is_none() {
            place.state_dir = env.state_dir().map(ToOwned::to_owned);
        }
        let role = Role::Driver { tmpdir: Some(env.tmpdir()?.to_owned()) };
        let context = open(&place, role)?;
        Ok(Self { env, attempt, context })
    }

    pub(super) fn response(&self) -> Result<JobResponse, CliError> {
        response_of(&self.env)
    }

    /// The pool of the job: named on the command line, chosen by `config`, or by the rules ([`choose`]).
    pub(super) fn pool(&self, named: Option<&str>, response: &JobResponse) -> Result<PoolName, CliError> {
        if let Some(named) = named {
            return Ok(PoolName::parse(named)?);
        }
        if let Some(chosen) = self.env.pool()? {
            return Ok(chosen);
        }
        Ok(choose(self.context.config()?, None, response)?.name.clone())
    }

    /// A pool as configured; `None` if the configuration cannot be read now: the recorded policy applies.
    pub(super) fn configured(&self, pool: &PoolName) -> Option<&PoolConfig> {
        self.context.config().ok()?.pools.get(pool)
    }

    /// A pool as configured; an error if it is not in the configuration, or that cannot be read.
    pub(super) fn in_config(&self, pool: &PoolName) -> Result<&PoolConfig, CliError> {
        let pools = &self.context.config()?.pools;
        pools.get(pool).ok_or_else(|| CliError::no_such_pool(pool.as_str(), pools.keys()))
    }

    /// The configured policy of a pool, or the error in its configuration.
    pub(super) fn policy(&self, pool: &PoolName) -> Result<Arc<Policy>, NoConfiguredPolicy> {
        let built = self.context.the_pool(Some(pool.as_str())).and_then(|pool| {
            let config = self.context.config()?;
            super::setup::build(config, &config.pools[&pool], &self.context.surroundings()?)
        });
        built.map(|setup| setup.policy).map_err(|error| NoConfiguredPolicy(error.in_a_line()))
    }
}

/// The response of the call's job.
pub(super) fn response_of(env: &JobEnv) -> Result<JobResponse, CliError> {
    JobResponse::read(env.response_file()?)
        .map_err(|error| if error.is_by_job() { CliError::by_job(error) } else { CliError::system(error) })
}

/// The pool that serves a job. A job that requires the impossible fails as a build failure.
pub(super) fn choose<'a>(
    config: &'a crate::config::Config,
    named: Option<&str>,
    response: &JobResponse,
) -> Result<&'a PoolConfig, CliError> {
    if let Some(named) = named {
        let name = PoolName::parse(named)?;
        let found = config.pools.get(&name);
        return found.ok_or_else(|| CliError::no_such_pool(name.as_str(), config.pools.keys()));
    }
    let job = JobTraits {
        project: &response.facts.project,
        namespace: response.facts.namespace(),
        git_ref: &response.git_ref,
        protected: response.facts.protected,
        job: &response.name,
        image: response.image.as_deref(),
    };
    config.choose(&job).map_err(CliError::by_job)
}

/// The directories of one job, as its instance sees them.
#[derive(Debug)]
pub(super) struct JobDirs {
    /// Directory of its sources.
    pub builds: String,
    pub cache: String,
}

/// The directory on the instance below which the sources of all jobs are.
pub(super) fn builds_root(pool: &PoolConfig, state_dir: &Path) -> Result<String, CliError> {
    let registration = provider::find(&pool.provider.kind)?;
    let shared = registration.guest_dirs.map(|dirs| dirs(state_dir)).filter(|_| !pool.dirs_given);
    Ok(shared.map_or_else(|| pool.builds_dir.clone(), |dirs| dirs.builds))
}

impl JobDirs {
    pub(super) fn of(
        pool: &PoolConfig,
        state_dir: &Path,
        env: &JobEnv,
        response: &JobResponse,
    ) -> Result<Self, CliError> {
        let attempt = env.attempt()?;
        let number = env.concurrent_number();
        let slot = response.runner.zip(number).map(|(runner, number)| RunnerSlot { runner, number });
        Self::with(pool, state_dir, &attempt, slot)
    }

    fn with(
        pool: &PoolConfig,
        state_dir: &Path,
        attempt: &AttemptName,
        slot: Option<RunnerSlot>,
    ) -> Result<Self, CliError> {
        let registration = provider::find(&pool.provider.kind)?;
        let shared = registration.guest_dirs.map(|dirs| dirs(state_dir));
        let slots = registration.static_hosts.and_then(|hosts| (hosts.most_slots)(&pool.provider.table));
        let slots = slots.unwrap_or(0).max(pool.policy.capacity_per_instance);
        let layout = match shared {
            Some(_) => BuildsLayout::Attempts,
            None => BuildsLayout::of(slots, !registration.launches()),
        };
        let (builds, cache) = match shared {
            // Its instances see the runner host's files: the defaults for separate machines do not fit.
            Some(dirs) if !pool.dirs_given => (dirs.builds, dirs.cache),
            _ => (pool.builds_dir.clone(), pool.cache_dir.clone()),
        };
        Ok(Self { builds: layout.builds_dir(&builds, attempt, slot), cache })
    }
}
