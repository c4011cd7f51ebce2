//! Starts an instance's process in a systemd scope of its own, where systemd runs.
//!
//! A process in the control group of the service that launched it is killed when that service stops. With a scope of
//! its own, a job survives a restart of the keeper and a graceful stop of the runner.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::launch::Server;

/// Exists exactly where systemd manages the host.
const SYSTEMD: &str = "/run/systemd/system";

/// The description of a scope in `systemctl`.
const DESCRIPTION: &str = "--description=Greenroom instance";

/// The service manager that can create scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scopes {
    /// The host's systemd; this process is root.
    System,
    /// The user's systemd.
    User,
    /// None: instances stay in the control group of the process that launches them.
    None,
}

/// Checked once per process: a service manager does not appear or disappear meanwhile.
pub fn scopes() -> Scopes {
    static FOUND: OnceLock<Scopes> = OnceLock::new();
    *FOUND.get_or_init(|| find(Path::new(SYSTEMD).is_dir(), rustix::process::geteuid().is_root(), works))
}

fn find(systemd: bool, root: bool, works: impl Fn(Scopes) -> bool) -> Scopes {
    let wanted = if root { Scopes::System } else { Scopes::User };
    if systemd && works(wanted) { wanted } else { Scopes::None }
}

/// Creates a scope for a program that does nothing; true on success.
fn works(scopes: Scopes) -> bool {
    let mut command = Command::new("systemd-run");
    command.args(arguments(scopes)).arg("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn arguments(scopes: Scopes) -> Vec<&'static str> {
    let mut arguments = vec!["--scope", "--collect", "--quiet", DESCRIPTION];
    if scopes == Scopes::User {
        arguments.push("--user");
    }
    arguments.push("--");
    arguments
}

/// The same program, started in a scope of its own where one can be created.
pub(super) fn in_scope(server: &Server) -> Server {
    within(server, scopes())
}

fn within(server: &Server, scopes: Scopes) -> Server {
    if scopes == Scopes::None {
        return server.clone();
    }
    let mut all: Vec<OsString> = Vec::new();
    if scopes == Scopes::User {
        // The address of the user's service manager, which is not among the inherited variables.
        let bus = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_default();
        all.push([OsString::from("XDG_RUNTIME_DIR="), bus].into_iter().collect());
        all.push("systemd-run".into());
    }
    all.extend(arguments(scopes).into_iter().map(OsString::from));
    all.push(server.program.clone().into());
    all.extend(server.arguments.iter().cloned());
    let starter = if scopes == Scopes::User { "env" } else { "systemd-run" };
    Server { program: starter.into(), arguments: all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_used_only_where_one_was_made() {
        assert_eq!(find(true, true, |_| true), Scopes::System);
        assert_eq!(find(true, false, |scopes| scopes == Scopes::User), Scopes::User);
        assert_eq!(find(true, true, |_| false), Scopes::None);
        assert_eq!(find(false, true, |_| true), Scopes::None);
    }

    #[test]
    fn the_process_itself_is_the_last_of_the_command() {
        let own = ["instance", "serve", "--dir"].map(OsString::from);
        let server = Server { program: "/bin/greenroom".into(), arguments: own.to_vec() };
        assert_eq!(within(&server, Scopes::None), server);
        let own = ["/bin/greenroom", "instance", "serve", "--dir"].map(OsString::from);
        for (scopes, starter) in [(Scopes::System, "systemd-run"), (Scopes::User, "env")] {
            let scoped = within(&server, scopes);
            assert_eq!(scoped.program, Path::new(starter));
            assert_eq!(scoped.arguments.contains(&"--user".into()), scopes == Scopes::User);
            assert!(scoped.arguments.ends_with(&own));
        }
    }
}
