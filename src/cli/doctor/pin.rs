//! `doctor --pin`: shows the key that a host answers with, and keeps it as the one that is accepted.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use crate::cli::args::{DoctorOptions, GlobalOptions};
use crate::cli::context::{self, Context};
use crate::cli::error::CliError;
use crate::cli::{near, ui};
use crate::connector::ssh::HostKey;
use crate::core::ids::PoolName;
use crate::host::local::Role;
use crate::port::host::Host as _;
use crate::provider::{self, BuildContext, NamedHost};

const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be done with the key that was found.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Ask,
    Keep,
    /// Another one is pinned.
    Refuse,
}

/// Pins the key of a host; false if the operator does not want it.
pub(super) async fn pin(
    place: &GlobalOptions,
    options: &DoctorOptions,
    name: &str,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let (pool, host) = find(&context, options.pool.as_deref(), name)?;
    let Some(path) = &host.pin else {
        return Err(CliError::say(format!("the configuration states the host key of `{name}`"))
            .help("remove `host_key` there to pin one instead"));
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
            ui::out("It is the one that is pinned already.\n");
            return Ok(true);
        }
        Step::Refuse => {
            return Err(CliError::say(format!("another key is pinned for `{name}`")).help(format!(
                "if it was installed anew, and the fingerprint is right: `greenroom doctor --pin {name} --pool {pool} --yes`"
            )));
        }
        Step::Ask if !ask()? => {
            ui::out("Nothing was changed.\n");
            return Ok(false);
        }
        Step::Ask | Step::Keep => {}
    }
    keep(path, &found.line)?;
    ui::out(&format!("Pinned: `{name}` is used as long as it answers with this key.\n"));
    context.host.wake_keeper(&pool).await;
    Ok(true)
}

/// The host of that name, in the named pool or the only one that has it.
fn find(context: &Context, pool: Option<&str>, name: &str) -> Result<(PoolName, NamedHost), CliError> {
    let around = context.surroundings()?;
    let named = pool.map(|pool| context.the_pool(Some(pool))).transpose()?;
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for pool in context.config()?.pools.values().filter(|p| named.as_ref().is_none_or(|n| *n == p.name)) {
        let Some(fixed) = provider::find(&pool.provider.kind)?.fixed else { continue };
        let build = BuildContext {
            pool: pool.name.clone(),
            state_dir: around.state_dir.clone(),
            program: around.program.clone(),
            clock: std::rc::Rc::clone(&around.clock),
        };
        for host in (fixed.named)(&build, &pool.provider.table)? {
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
            Err(error.help("`--pool NAME` says which one is meant"))
        }
        (None, _) => {
            let error = CliError::say(format!("no pool has a host `{name}`"));
            let near = near::nearest(name, known.iter().map(String::as_str));
            Err(match (near, known.is_empty()) {
                (Some(near), _) => error.help(format!("did you mean `{near}`?")),
                (None, true) => {
                    error.help("only pools of provider \"static\" have hosts whose keys are pinned")
                }
                (None, false) => error.help(format!("there are {}", known.join(", "))),
            })
        }
    }
}

fn shown(host: &NamedHost, found: &HostKey, pinned: Option<&HostKey>) -> String {
    let kind = found.line.split(' ').next().unwrap_or_default();
    let file = if kind == "ssh-ed25519" { "ssh_host_ed25519_key.pub" } else { "ssh_host_ecdsa_key.pub" };
    let place = host.endpoint.place();
    let other = pinned.filter(|pinned| pinned.line != found.line);
    let other = other.map(|pinned| format!("Pinned is another one:\n  {}\n", pinned.fingerprint));
    format!(
        "{} ({place}) answers with this {kind} key:\n  {}\n{}Compare it on the host itself: ssh-keygen -lf \
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

fn ask() -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::say("there is nobody to ask: standard input is no terminal")
            .help("compare the fingerprint, then add `--yes`"));
    }
    ui::out("Is it the same? Then it is kept [y/N]: ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whole or not at all, readable by us alone.
fn keep(path: &Path, line: &str) -> Result<(), CliError> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let fresh = path.with_extension(format!("new.{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.sync_all()?;
    fs_err::rename(&fresh, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";
    const TWO: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMRlHSutbk+sFafWalelLhCw0GyNWg5VnZuM0ZjYhbLP";

    #[test]
    fn a_pinned_key_is_replaced_by_order_only() {
        let (one, two) = (HostKey::parse(ONE).unwrap(), HostKey::parse(TWO).unwrap());
        assert_eq!(next(&one, None, false), Step::Ask);
        assert_eq!(next(&one, None, true), Step::Keep);
        assert_eq!(next(&one, Some(&one), true), Step::Nothing);
        assert_eq!(next(&one, Some(&two), false), Step::Refuse);
        assert_eq!(next(&one, Some(&two), true), Step::Keep);
    }

    #[test]
    fn a_key_is_kept_for_us_alone_and_replaces_the_one_before() {
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
