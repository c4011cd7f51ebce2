//! `doctor --clean-script`: prints what an operator installs on a host whose cleaning account needs `sudo`.

use greenroom_manager::runner_host::Role;

use super::pin::find;
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::setup::cleaning;
use crate::cli::ui;
use crate::provider;

/// Always true: nothing is examined.
pub(super) fn print(place: &GlobalOptions, pool: Option<&str>, name: &str) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let (pool, host) = find(&context, pool, name)?;
    let pool = context.the_pool(Some(pool.as_str()))?;
    let pool = &context.config()?.pools[&pool];
    let Some(static_hosts) = provider::find(&pool.provider.kind)?.static_hosts else {
        return Err(CliError::say(format!("`{name}` is not a static host")));
    };
    let cleaning = cleaning(static_hosts, pool)?;
    let Some(by_root) = cleaning.and_then(|mut cleaning| cleaning.by_root.remove(&host.name)) else {
        return Err(CliError::say(format!("host `{name}` has no `clean_user`"))
            .help("set `clean_user` in the provider's table, or in the host's"));
    };
    ui::out(&by_root.script);
    Ok(true)
}
