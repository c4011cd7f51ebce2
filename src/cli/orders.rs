//! `prepare`'s part for jobs that get an instance of their own, made of the images that they name.

use greenroom_core::container::judge::JobContext;
use greenroom_core::container::ordering::{JobOrder, OrderSettings};
use greenroom_manager::gitlab::env::added_by_runner;
use greenroom_manager::gitlab::response::JobResponse;

use super::error::CliError;
use super::job::Call;
use super::job_dirs::JobDirs;
use super::{containers, messages, ui};
use crate::config::PoolConfig;
use crate::provider;

/// What jobs may order in a pool; `None`: nothing.
pub(super) fn of_pool(pool: &PoolConfig) -> Result<Option<OrderSettings>, CliError> {
    let known = provider::find(&pool.provider.kind)?;
    Ok(known.orders.and_then(|orders| orders(&pool.name, &pool.provider.table)))
}

/// The order of a job, or `None` if the pool's own instances serve it. Judged before the job takes an instance.
pub(super) fn wanted(
    call: &Call,
    pool: &PoolConfig,
    response: &JobResponse,
    dirs: Option<&JobDirs>,
) -> Result<Option<JobOrder>, CliError> {
    let Some(settings) = of_pool(pool)? else { return Ok(None) };
    if let Some(service) = settings.unprivileged(&response.containers) {
        let others = containers::privileged_pools(call.context.config()?, &response.containers);
        return Err(CliError::impossible(messages::needs_privileges(&service, &pool.name, &others)));
    }
    let about = JobContext {
        runner_variables: added_by_runner(|name| std::env::var_os(name)),
        ..JobContext::default()
    };
    let dirs: Vec<&str> = dirs.iter().flat_map(|dirs| [dirs.builds.as_str(), dirs.cache.as_str()]).collect();
    let order = settings
        .judge(&response.containers, &about, &dirs)
        .map_err(|refusal| CliError::impossible(refusal.to_string()))?;
    for remark in order.iter().flat_map(|order| &order.remarks) {
        ui::tell(remark);
    }
    Ok(order)
}
