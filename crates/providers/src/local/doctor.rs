//! Checks whether local instances can work here: sshd, and the login name and shell of the user that runs this process.

use std::path::{Path, PathBuf};

use greenroom_ports::finding::{Finding, Severity};

use super::settings::{ServerKind, Settings};
use crate::mistakes::{self, finding};
use crate::registration::BuildContext;

/// Paths of sshd in distributions. An ordinary user's `PATH` does not contain them.
const SSHD: &[&str] =
    &["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd", "/usr/bin/sshd", "/usr/lib/ssh/sshd"];

/// The empty directory that sshd requires for privilege separation; its path is compiled into sshd.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// The sshd that the settings name, otherwise the first that exists.
pub(super) fn find_sshd(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(named) => named.is_file().then(|| named.to_owned()),
        None => SSHD.iter().map(PathBuf::from).find(|path| path.is_file()),
    }
}

pub(super) fn doctor(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let is_root = rustix::process::geteuid().is_root();
    let settings = match Settings::read(&context.pool, table, is_root) {
        Ok(settings) => settings,
        Err(problems) => return mistakes::findings("local-table", &problems),
    };
    let mut found = isolation(context, is_root);
    if !context.program.is_file() {
        let what = format!("{} no longer exists: no instance can be started", context.program.display());
        found.push(finding("local-program", Severity::Error, what, "reinstall greenroom"));
    }
    if settings.server == ServerKind::Openssh {
        found.extend(openssh(
            settings.sshd.as_deref(),
            closed_shell(),
            is_root.then_some(Path::new(PRIVILEGE_SEPARATION)),
        ));
    }
    let faults = settings.injected_faults();
    if !faults.is_empty() {
        let keys: Vec<String> = faults.iter().map(|key| format!("`{key}`")).collect();
        let what = format!("pool `{}` has fault injection enabled: {}", context.pool, keys.join(", "));
        let remedy = "remove these keys after the rehearsal";
        found.push(finding("local-fault-injection", Severity::Warning, what, remedy));
    }
    found
}

fn isolation(context: &BuildContext, is_root: bool) -> Vec<Finding> {
    let who = if is_root { "root on the runner host" } else { "the user that runs greenroom" };
    let what = format!("jobs of pool `{}` are not isolated: each runs as {who}", context.pool);
    let remedy = "use another provider for code that you do not trust";
    vec![finding("local-no-isolation", Severity::Warning, what, remedy)]
}

/// Findings about OpenSSH's server. `separation` is the directory that sshd needs where it runs as root.
fn openssh(named: Option<&Path>, closed_shell: Option<String>, separation: Option<&Path>) -> Vec<Finding> {
    if find_sshd(named).is_none() {
        let what = match named {
            Some(path) => format!("`sshd` names {}, which does not exist", path.display()),
            None => {
                format!("`server = \"openssh\"` needs sshd, which is not installed at {}", SSHD.join(", "))
            }
        };
        let remedy = "install the OpenSSH server, set its path with `sshd`, or set `server = \"embedded\"`";
        return vec![finding("local-sshd-missing", Severity::Error, what, remedy)];
    }
    if let Some(shell) = closed_shell {
        let what = format!(
            "sshd denies the login of users with the login shell {shell}, and greenroom runs as such a user"
        );
        let remedy = "run greenroom as a user with a valid login shell, or set `server = \"embedded\"`";
        return vec![finding("local-sshd-shell", Severity::Error, what, remedy)];
    }
    if let Some(separation) = separation.filter(|path| !path.is_dir()) {
        let what = format!(
            "sshd, when started by root, needs the directory {}, which is missing",
            separation.display()
        );
        let remedy = format!("mkdir -m 0755 {}", separation.display());
        return vec![finding("local-sshd-directory", Severity::Error, what, remedy)];
    }
    Vec::new()
}

/// The login name in the user database; if there is none, a name made of the user id.
pub(super) fn login_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let local = std::fs::read_to_string("/etc/passwd").ok().and_then(|text| in_passwd(&text, uid));
    local.or_else(in_directory).unwrap_or_else(|| format!("uid{uid}"))
}

fn in_passwd(text: &str, uid: u32) -> Option<String> {
    passwd_entry(text, uid)?.split(':').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

fn passwd_entry(text: &str, uid: u32) -> Option<&str> {
    text.lines().find(|line| line.split(':').nth(2).is_some_and(|field| field == uid.to_string()))
}

/// The login shell, if it denies every login: OpenSSH runs it, the embedded server does not.
pub(super) fn closed_shell() -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    denied_shell(&text, rustix::process::geteuid().as_raw())
}

fn denied_shell(text: &str, uid: u32) -> Option<String> {
    let shell = passwd_entry(text, uid)?.split(':').nth(6)?;
    let name = shell.rsplit('/').next().unwrap_or_default();
    matches!(name, "nologin" | "false").then(|| shell.to_owned())
}

/// The name of a user of a network directory, who is not in /etc/passwd.
fn in_directory() -> Option<String> {
    let output =
        std::process::Command::new("id").arg("-un").output().ok().filter(|out| out.status.success())?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_sshd_is_an_error_that_says_what_helps() {
        let found = openssh(Some(Path::new("/no/such/sshd")), None, None);
        assert_eq!(found[0].code, "local-sshd-missing");
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].message.contains("/no/such/sshd"));
        assert!(found[0].remedy.as_ref().unwrap().contains("server = \"embedded\""));
    }

    #[test]
    fn root_without_the_separation_directory_is_told_the_command() {
        let there = Some(Path::new("/proc/self/exe"));
        let found = openssh(there, None, Some(Path::new("/no/such/directory")));
        assert_eq!(found[0].remedy.as_deref(), Some("mkdir -m 0755 /no/such/directory"));
        assert!(openssh(there, None, None).is_empty());
        assert_eq!(openssh(there, Some("/bin/false".to_owned()), None)[0].code, "local-sshd-shell");
        assert!(openssh(there, None, Some(Path::new("/"))).is_empty());
    }

    #[test]
    fn the_first_name_of_a_number_counts() {
        let text =
            "root:x:0:0:root:/root:/bin/bash\nci:x:1000:1000::/home/ci:/bin/sh\ntoor:x:0:0::/:/bin/sh\n";
        assert_eq!(in_passwd(text, 0).as_deref(), Some("root"));
        assert_eq!(in_passwd(text, 1000).as_deref(), Some("ci"));
        assert_eq!(in_passwd(text, 100), None);
        assert!(!login_name().is_empty());
    }

    #[test]
    fn a_shell_that_lets_nobody_in_is_known() {
        let text = "www:x:33:33::/:/usr/sbin/nologin\nci:x:1000:1000::/:/bin/bash\nno:x:5:5::/:/bin/false\n";
        assert_eq!(denied_shell(text, 33).as_deref(), Some("/usr/sbin/nologin"));
        assert_eq!(denied_shell(text, 5).as_deref(), Some("/bin/false"));
        assert_eq!((denied_shell(text, 1000), denied_shell(text, 7)), (None, None));
    }
}
