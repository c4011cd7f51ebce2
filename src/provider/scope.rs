//! Where an instance's process is started: in a systemd scope of its own, where there is systemd.
//!
//! A process that stays in the control group of whoever launched it goes when that service stops. A scope of its own
//! lets jobs live through a restart of the keeper and a graceful stop of the runner.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::launch::Server;

/// There exactly where systemd manages the machine.
const SYSTEMD: &str = "/run/systemd/system";

/// What a scope is called in `systemctl`.
const DESCRIPTION: &str = "--description=Greenroom instance";

/// Who can make scopes for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scopes {
    /// The machine's own systemd; we are root.
    System,
    /// The user's.
    User,
    /// Nobody: instances stay in the control group of whoever launches them.
    None,
}

/// Asked once per process: a manager does not come or go under our feet.
pub fn scopes() -> Scopes {
    static FOUND: OnceLock<Scopes> = OnceLock::new();
    *FOUND.get_or_init(|| find(Path::new(SYSTEMD).is_dir(), rustix::process::geteuid().is_root(), works))
}

fn find(systemd: bool, root: bool, works: impl Fn(Scopes) -> bool) -> Scopes {
    let wanted = if root { Scopes::System } else { Scopes::User };
    if systemd && works(wanted) { wanted } else { Scopes::None }
}

/// Makes a scope for a program that does nothing.
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

/// The same process, in a scope of its own where there is somebody to make one.
pub(super) fn in_scope(server: &Server) -> Server {
    within(server, scopes())
}

fn within(server: &Server, scopes: Scopes) -> Server {
    if scopes == Scopes::None {
        return server.clone();
    }
    let mut all: Vec<OsString> = Vec::new();
    if scopes == Scopes::User {
        // The way to the user's manager, which the environment that we pass on does not name.
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
