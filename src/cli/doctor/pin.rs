//! `doctor --pin` and `doctor --clean-script`: the accepted key of one static host, and the script that cleans it.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::near::nearest_or_all;
use greenroom_manager::runner_host::Role;
use greenroom_ports::host_keys::Unconnected;
use greenroom_ports::wakeups::WakeUps as _;
use greenroom_providers::registration::NamedHost;
use greenroom_ssh::HostKey;
use greenroom_system::replace::replace;

use crate::cli::args::{DoctorOptions, GlobalOptions};
use crate::cli::context::{self, Context};
use crate::cli::error::CliError;
use crate::cli::setup::cleaning;
use crate::cli::{prompt, ui};
use crate::provider;

/// The help where no operator can answer the question.
const CONFIRM: &str = "compare the fingerprint, then add `--yes`";
/// The time that the host may take to present its key.
const PATIENCE: Duration = Duration::from_secs(10);

/// The next step for the key that the host presents.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Ask,
    Keep,
    /// Another key is pinned.
    Refuse,
}

/// Pins the key of a host; false if the operator declines.
pub(super) async fn pin(
    place: &GlobalOptions,
    options: &DoctorOptions,
    name: &str,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let (pool, host) = find(&context, options.pool.as_deref(), name)?;
    let Some(path) = &host.pin else {
        return Err(CliError::say(format!("the host key of `{name}` is set in the configuration"))
            .help("remove `host_key` there to pin a key instead"));
    };
    if let Some(problem) = &host.blocked {
        return Err(CliError::say(format!("`{name}` cannot be reached yet: {problem}")));
    }
    let ssh = context::ssh(&context.state_path);
    let found = ssh.host_key(&host.endpoint, PATIENCE).await.map_err(CliError::system)?;
    let pinned = HostKey::parse(&host.endpoint.host_key);
    ui::out(&shown(&host, &found, pinned.as_ref()));
    let step = next(&found, pinned.as_ref(), options.yes);
    match step {
        Step::Nothing => {
            ui::out("This key is already pinned.\n");
            return Ok(true);
        }
        Step::Refuse => {
            return Err(CliError::say(format!("another key is pinned for `{name}`")).help(format!(
                "if the host was reinstalled and the fingerprint is correct, \
                 run `greenroom doctor --pin {name} --pool {pool} --yes`"
            )));
        }
        Step::Ask if !prompt::is_confirmed("Pin this key?", ui::out, CONFIRM)? => {
            ui::out("Nothing was changed.\n");
            return Ok(false);
        }
        Step::Ask | Step::Keep => {}
    }
    keep(path, &found.line)?;
    ui::out(&format!("Pinned: `{name}` is used as long as it presents this key.\n"));
    // The keeper can use the host from now on, without waiting for its next pass.
    context.host.wake_keeper(&pool).await;
    Ok(true)
}

/// The host of that name, in the named pool or the only one that has it.
pub(super) fn find(
    context: &Context,
    pool: Option<&str>,
    name: &str,
) -> Result<(PoolName, NamedHost), CliError> {
    let around = context.surroundings()?;
    let named = pool.map(|pool| context.the_pool(Some(pool))).transpose()?;
    let mut found = Vec::new();
    let mut known = Vec::new();
    for pool in context.config()?.pools.values().filter(|p| named.as_ref().is_none_or(|n| *n == p.name)) {
        let Some(static_hosts) = provider::find(&pool.provider.kind)?.static_hosts else { continue };
        let build = around.of(pool, std::rc::Rc::new(Unconnected));
        for host in (static_hosts.named)(&build, &pool.provider.table)? {
            known.push(host.name.to_string());
            if host.name.as_str() == name {
                found.push((pool.name.clone(), host));
            }
        }
    }
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        (Some((pool, _)), _) => {
            let error = CliError::say(format!("several pools have a host `{name}`, `{pool}` is one of them"));
            Err(error.help("name the pool with `--pool NAME`"))
        }
        (None, _) => {
            let error = CliError::say(format!("no pool has a host `{name}`"));
            Err(if known.is_empty() {
                error.help("name a host of a pool whose provider is \"static\"")
            } else {
                error.help(nearest_or_all(name, known.iter().map(String::as_str)))
            })
        }
    }
}

fn shown(host: &NamedHost, found: &HostKey, pinned: Option<&HostKey>) -> String {
    let kind = found.line.split(' ').next().unwrap_or_default();
    let file = if kind == "ssh-ed25519" { "ssh_host_ed25519_key.pub" } else { "ssh_host_ecdsa_key.pub" };
    let place = host.endpoint.place();
    let other = pinned.filter(|pinned| pinned.line != found.line);
    let other = other.map(|pinned| format!("A different key is pinned:\n  {}\n", pinned.fingerprint));
    format!(
        "{} ({place}) presents this {kind} key:\n  {}\n{}Compare it with the key on the host: ssh-keygen -lf \
         /etc/ssh/{file}\n",
        host.name,
        found.fingerprint,
        other.unwrap_or_default(),
    )
}

fn next(found: &HostKey, pinned: Option<&HostKey>, yes: bool) -> Step {
    match pinned {
        Some(pinned) if pinned.line == found.line => Step::Nothing,
        _ if yes => Step::Keep,
        Some(_) => Step::Refuse,
        None => Step::Ask,
    }
}

/// Writes the key atomically, readable only by this user.
fn keep(path: &Path, line: &str) -> Result<(), CliError> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    replace(path, format!("{line}\n").as_bytes(), 0o600)?;
    Ok(())
}

/// Prints the script that cleans a host. The result is always true: nothing is examined.
pub(super) fn print_clean_script(
    place: &GlobalOptions,
    pool: Option<&str>,
    name: &str,
) -> Result<bool, CliError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const TWO: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMRlHSutbk+sFafWalelLhCw0GyNWg5VnZuM0ZjYhbLP";

    #[test]
    fn a_pinned_key_is_replaced_on_request_only() {
        let one = HostKey::parse(ONE).unwrap();
        let two = HostKey::parse(TWO).unwrap();
        assert_eq!(next(&one, None, false), Step::Ask);
        assert_eq!(next(&one, None, true), Step::Keep);
        assert_eq!(next(&one, Some(&one), true), Step::Nothing);
        assert_eq!(next(&one, Some(&two), false), Step::Refuse);
        assert_eq!(next(&one, Some(&two), true), Step::Keep);
    }

    #[test]
    fn a_key_is_readable_only_by_its_owner_and_replaces_the_one_before() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pinned/linux/mac.1");
        keep(&path, ONE).unwrap();
        keep(&path, TWO).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{TWO}\n"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
