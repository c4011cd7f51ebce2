//! Static hosts: each is checked in the way that jobs use it.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::ids::PoolName;
use greenroom_core::shell_text::one_line;
use greenroom_core::text::{clean_line, quoted};
use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, Connector as _, RemoteCommand, StageEnd, Step};
use greenroom_ports::finding::Finding;
use greenroom_ports::setup::{RootCleaning, SudoRule};
use greenroom_ports::tail::Tail;
use greenroom_providers::registration::{BuildContext, NamedHost};
use greenroom_ssh::{Inspected, Ssh};

use super::{code, host_containers};
use crate::cli::setup::{cleaning, stage_shell, unbinds};
use crate::cli::ui::plural;
use crate::config::PoolConfig;
use crate::provider;

/// The time that each step of a check may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// A slower shell adds seconds to a job of ten stages.
const SLOW: Duration = Duration::from_millis(500);
/// One job's sources can quickly use up less.
const MIB_WANTED: u64 = 1 << 10;
/// The length at which a login shell's output is cut, in bytes.
const SAID: usize = 200;
/// The highest number of concurrent connections to try.
const MOST_CONNECTIONS: u32 = 32;

/// The needs of a pool's jobs on a host.
struct Needs<'a> {
    pool: &'a PoolName,
    shell: StageShell,
    builds: &'a str,
    cache: &'a str,
    jobs: u32,
}

/// Checks all hosts of a pool concurrently.
pub(super) async fn check(pool: &PoolConfig, context: &BuildContext, ssh: &Ssh) -> Vec<Finding> {
    let Some(static_hosts) = provider::find(&pool.provider.kind).ok().and_then(|known| known.static_hosts)
    else {
        return Vec::new();
    };
    // The provider reports an invalid table, and keys that are not pinned.
    let hosts = (static_hosts.named)(context, &pool.provider.table).unwrap_or_default();
    let known = hosts.iter().filter(|host| !host.endpoint.host_key.is_empty() && host.blocked.is_none());
    let cleaning = cleaning(static_hosts, pool).ok().flatten();
    let tries = known.map(async |host| {
        let jobs = host.capacity.unwrap_or(pool.policy.capacity_per_instance);
        let needs = Needs {
            pool: &pool.name,
            shell: stage_shell(pool),
            builds: &pool.builds_dir,
            cache: &pool.cache_dir,
            jobs,
        };
        match try_out(host, &needs, ssh).await {
            Ok(None) => Vec::new(),
            Ok(Some(seen)) => {
                let (login, begins_nothing) = stage_of(host, &needs, &seen, ssh).await;
                let mut found = judge(host, &needs, &seen, login.as_deref());
                found.extend(begins_nothing);
                if pool.containers.is_some() && seen.said.contains("runs-sh") {
                    found.extend(host_containers::check(host, needs.pool, ssh).await);
                }
                if let Some(root) = cleaning.as_ref().and_then(|cleaning| cleaning.by_root.get(&host.name)) {
                    found.extend(cannot_clean(host, needs.pool, root, ssh).await);
                }
                found
            }
            Err(error) => vec![unusable(host, needs.pool, &error)],
        }
    });
    let by_root = cleaning.as_ref().is_some_and(|cleaning| cleaning.all_by_root);
    let mut found = vec![kind(&pool.name, unbinds(pool, cleaning.as_ref()), by_root)];
    found.extend(join_all(tries).await.concat());
    found
}

/// The finding that says which trust domains the hosts serve, and how far cleaning separates them.
fn kind(pool: &PoolName, unbinds: bool, by_root: bool) -> Finding {
    if unbinds && by_root {
        return code::HOST_CLEANED.noted(format!(
            "hosts of pool `{pool}` serve all trust domains: `clean_user` leaves nothing of a job that was not root there"
        ));
    }
    if unbinds {
        let what = format!(
            "hosts of pool `{pool}` serve all projects (`clean_unbinds = true`), but cleaning runs as the jobs' own user: \
             what a hostile job hides there meets the jobs of other projects"
        );
        return code::HOST_SHARED.found(
            what,
            "set `clean_user`, or remove `clean_unbinds = true`, unless all projects trust one another",
        );
    }
    code::HOST_BOUND.noted(format!(
        "each host of pool `{pool}` stays with the trust domain (`reuse`) of its first job: jobs never meet what another \
         domain has left, and a domain for which no host is left gets none"
    ))
}

/// Inspects a host over connections like those of jobs. `None`: a jump host responds, and nothing more can be checked.
async fn try_out(host: &NamedHost, needs: &Needs<'_>, ssh: &Ssh) -> Result<Option<Inspected>, ConnectError> {
    if host.is_jump {
        // It may not run commands: only its login can be checked without a host behind it. A connection without a login
        // would count against the runner host there.
        return ssh.log_in(&host.name, &host.endpoint, PATIENCE).await.map(|()| None);
    }
    let jobs = needs.jobs.min(MOST_CONNECTIONS);
    ssh.inspect(&host.name, &host.endpoint, jobs, &question(needs), PATIENCE).await.map(Some)
}

/// Begins a stage as a job does. Its standard input stays open, so a profile that reads it waits. Returns what the host
/// has for a login shell, or the problem.
async fn stage_of(
    host: &NamedHost,
    needs: &Needs<'_>,
    seen: &Inspected,
    ssh: &Ssh,
) -> (Option<String>, Option<Finding>) {
    let kind = needs.shell.shell;
    if !has(&seen.said, kind) {
        // That is the finding.
        return (None, None);
    }
    let id = &host.name;
    let at = &host.endpoint;
    if let Err(error) = ssh.begins(id, at, (needs.shell, None), PATIENCE).await {
        return (None, Some(unusable(host, needs.pool, &error)));
    }
    // Without a login shell, a profile that waits hinders nothing.
    (ssh.inspect_login(id, at, (kind, &question(needs)), PATIENCE).await.ok(), None)
}

/// Logs in as the account that cleans, and has its script check what it needs.
async fn cannot_clean(host: &NamedHost, pool: &PoolName, root: &RootCleaning, ssh: &Ssh) -> Option<Finding> {
    let endpoint = Endpoint { user: root.user.clone(), ..host.endpoint.clone() };
    let text = &root.check;
    let input = &root.script;
    let command = RemoteCommand { text, input, within: PATIENCE, start_within: PATIENCE, shared: false };
    let mut output = Tail::default();
    let problem = match ssh.command(&host.name, &endpoint, command, &mut output).await {
        Ok(StageEnd::Exited(0)) => return None,
        Ok(end) => format!("{end}: {}", clean_line(output.text().as_bytes(), SAID)),
        Err(error) => error.to_string(),
    };
    Some(unclean(host, pool, root, &problem))
}

fn unclean(host: &NamedHost, pool: &PoolName, root: &RootCleaning, problem: &str) -> Finding {
    let name = &host.name;
    let user = &root.user;
    let what = format!("`{user}` cannot clean host `{name}` of pool `{pool}`: {problem}");
    let remedy = match &root.sudo {
        None => format!(
            "as root there, correct that; Greenroom's public key belongs in ~{user}/.ssh/authorized_keys"
        ),
        Some(SudoRule { program, line }) => format!(
            "as root there, install what `greenroom doctor --clean-script {name} --pool {pool}` prints as {program} (owner \
             root, mode 755), and write this line to /etc/sudoers.d/greenroom: {line}"
        ),
    };
    code::HOST_CLEAN_USER.found(what, remedy)
}

/// The script `host.sh`, on one line.
fn question(needs: &Needs<'_>) -> String {
    let (builds, cache) = (quoted(needs.builds), quoted(needs.cache));
    let shells = Shell::NAMES.join(" ");
    one_line(include_str!("host.sh"), &[("BUILDS", &builds), ("CACHE", &cache), ("SHELLS", &shells)])
}

fn unusable(host: &NamedHost, pool: &PoolName, error: &ConnectError) -> Finding {
    let name = &host.name;
    let what = format!("host `{name}` of pool `{pool}`: {error}");
    match error {
        ConnectError::TurnedAway { .. } => {
            let remedy = "add the runner host's address to `PerSourcePenaltyExemptList` in its sshd_config, or raise \
                          `MaxStartups`; its sshd's log has the reason";
            code::HOST_TURNS_AWAY.found(what, remedy)
        }
        ConnectError::TimedOut { during: Step::Login | Step::Shell, .. } => {
            let remedy = "check what slows its logins: `UseDNS`, PAM, a directory service such as LDAP, the profile of the \
                          account";
            code::HOST_LOGIN_SLOW.found(what, remedy)
        }
        ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } | ConnectError::Lost { .. } => {
            let remedy = "check that it is running, that its sshd listens there, and that no \
                          firewall blocks the connection";
            code::HOST_UNREACHABLE.found(what, remedy)
        }
        ConnectError::HostKey { at, .. } => {
            let name = if at.starts_with("jump host") { "jump" } else { name.as_str() };
            let remedy = match &host.pin {
                Some(_) => format!(
                    "if the host was reinstalled, run `greenroom doctor --pin {name} --pool {pool} --yes`; otherwise the \
                     connection may be intercepted"
                ),
                None => "if the host was reinstalled, correct `host_key`; \
                     otherwise the connection may be intercepted"
                    .to_owned(),
            };
            code::HOST_KEY_CHANGED.found(what, remedy)
        }
        ConnectError::Refused { user, .. } => {
            let remedy = format!(
                "add Greenroom's public key to ~{user}/.ssh/authorized_keys there, and check that \
                 the user's login shell exists"
            );
            code::HOST_LOGIN_DENIED.found(what, remedy)
        }
        ConnectError::NotBegun { .. } | ConnectError::NoContainer { .. } => {
            let remedy = format!(
                "log in there as `{}`, and correct what its login shell runs first",
                host.endpoint.user
            );
            code::HOST_LOGIN_SHELL.found(what, remedy)
        }
        ConnectError::HostFault { .. } => {
            let remedy = "check the runner host: routes, firewall, connection tracking, open files";
            code::HOST_CLIENT_SETUP.found(what, remedy)
        }
        ConnectError::Local { .. } => code::HOST_CLIENT_SETUP.found(what, "correct `key` or `agent`"),
    }
}

fn prints(said: &str, word: &str) -> bool {
    said.lines().any(|line| line.trim() == word)
}

fn has(said: &str, program: impl fmt::Display) -> bool {
    prints(said, &format!("has-{program}"))
}

/// The directories of `PATH`.
fn path(said: &str) -> Vec<&str> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("path-"));
    line.map(|line| line.split(':').collect()).unwrap_or_default()
}

/// The directories that only a login shell searches, for stages that have none.
fn only_at_login(host: &NamedHost, needs: &Needs<'_>, seen: &Inspected, login: &str) -> Option<Finding> {
    let of_stages = path(&seen.said);
    let more: Vec<&str> = path(login).into_iter().filter(|dir| !of_stages.contains(dir)).collect();
    if needs.shell.login_shell || more.is_empty() {
        return None;
    }
    let what = format!(
        "host `{}` of pool `{}`: a login of `{}` also finds programs in {}, stages do not",
        host.name,
        needs.pool,
        host.endpoint.user,
        clean_line(more.join(":").as_bytes(), SAID)
    );
    Some(code::HOST_LOGIN_PATH.noted(what))
}

/// Findings about the needs of jobs that the host does not meet. `login`: its output in a login shell.
fn judge(host: &NamedHost, needs: &Needs<'_>, seen: &Inspected, login: Option<&str>) -> Vec<Finding> {
    let Needs { pool, shell: StageShell { shell, login_shell, .. }, builds, cache, jobs } = needs;
    let subject = format!("host `{}` of pool `{pool}`", host.name);
    let user = &host.endpoint.user;
    let of_stages = login.filter(|_| *login_shell).unwrap_or(&seen.said);
    let has = |program: &str| has(of_stages, program);
    // Every other answer comes from this shell: without it, nothing else is known.
    if !prints(&seen.said, "runs-sh") {
        let said = clean_line(seen.said.as_bytes(), SAID);
        let what = format!("{subject}: the login shell of `{user}` does not run `/bin/sh`: {said}");
        let remedy = format!(
            "correct a profile of `{user}` that exits or starts another shell, or run `chsh -s /bin/sh {user}` there as root"
        );
        return vec![code::HOST_LOGIN_SHELL.found(what, remedy)];
    }
    let mut found = Vec::new();
    found.extend(login.and_then(|login| only_at_login(host, needs, seen, login)));
    if !has(shell.as_str()) {
        let what = format!("{subject} has no `{shell}`, which the scripts of its jobs need");
        found.push(code::HOST_SHELL_MISSING.found(what, "install it, or set another `shell` for the pool"));
    }
    if !prints(&seen.said, "writes-builds") {
        let what =
            format!("{subject}: `{user}` can neither create `{builds}` (`builds_dir`) nor write to it");
        let remedy =
            format!("run `install -d -o {user} {builds}` there as root, or set another `builds_dir`");
        found.push(code::HOST_BUILDS_DIR.found(what, remedy));
    }
    if has("unremovable") {
        let what = format!(
            "{subject}: builds or caches of jobs have files of another user, such as root, which cleaning cannot remove"
        );
        let remedy = format!(
            "run `rm -rf {builds}/*.unremovable.* {cache}/*.unremovable.*` there as root, or set `clean_user`"
        );
        found.push(code::HOST_UNREMOVABLE.found(what, remedy));
    }
    let free = seen.said.lines().find_map(|line| line.trim().strip_prefix("free-")?.parse::<u64>().ok());
    if let Some(free) = free.map(|kib| kib >> 10).filter(|mib| *mib < MIB_WANTED) {
        let what = format!("{subject} has {free} MiB left for builds in `{builds}`");
        found.push(code::HOST_SPACE.found(what, "free space there"));
    }
    if !has("proc") && !has("pkill") {
        let what = format!(
            "{subject} has neither `/proc` nor a `pkill` that supports sessions: no stage can be stopped"
        );
        found.push(code::HOST_PROCESSES.found(what, "mount `/proc` there, or install `procps`"));
    }
    if seen.sessions < 2 {
        let what = format!(
            "{subject} allows {} per connection: stopping a stage needs another connection",
            plural(seen.sessions as usize, "session")
        );
        found.push(code::HOST_SESSIONS.found(what, "set `MaxSessions 10`, the default, in its sshd_config"));
    }
    let wanted = (*jobs).min(MOST_CONNECTIONS);
    if seen.connections < wanted {
        let what = format!(
            "{subject} allows {} concurrent connections, but its capacity is {jobs}",
            seen.connections
        );
        let remedy = "raise `MaxStartups` in its sshd_config, or lower `capacity`";
        found.push(code::HOST_CONNECTIONS.found(what, remedy));
    }
    if seen.shell > SLOW {
        let what = format!(
            "{subject} takes {} to start a shell for `{user}`, and each stage of a job waits for it",
            Pretty(seen.shell)
        );
        let remedy = "check what its profile (`~/.bashrc`, `~/.zshenv`) does in non-interactive shells";
        found.push(code::HOST_SHELL_SLOW.found(what, remedy));
    }
    if !has("git") {
        let what = format!("{subject} has no `git`");
        found
            .push(code::HOST_GIT_MISSING.found(what, "install it, unless its jobs set `GIT_STRATEGY: none`"));
    } else if !has("git-lfs") {
        found.push(code::HOST_GIT_LFS_MISSING.noted(format!("{subject} has no `git-lfs`")));
    }
    if !has("gitlab-runner") {
        let what = format!("{subject} has no `gitlab-runner`, which transfers artifacts and caches");
        let remedy = "install the program there; it need not be registered";
        found.push(code::HOST_RUNNER_MISSING.found(what, remedy));
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_core::ids::InstanceId;

    use super::*;

    fn host(pin: bool) -> NamedHost {
        NamedHost {
            name: InstanceId::new("mac-1"),
            endpoint: Endpoint {
                address: "192.0.2.7".into(),
                port: 22,
                user: "ci".into(),
                host_key: "ssh-ed25519 AAAA".into(),
                key: None,
                jump: None,
                forward: None,
                metadata: None,
            },
            capacity: None,
            is_jump: false,
            pin: pin.then(|| "/s/pinned/linux/mac-1".into()),
            blocked: None,
        }
    }

    fn seen(said: &str) -> Inspected {
        let said = said.replace(' ', "\n");
        Inspected { shell: Duration::from_millis(80), said, connections: 4, sessions: 2 }
    }

    fn codes(jobs: u32, seen: &Inspected) -> Vec<&'static str> {
        let pool = PoolName::new("linux");
        let needs =
            Needs { pool: &pool, shell: Shell::Bash.into(), builds: "/builds", cache: "/cache", jobs };
        judge(&host(true), &needs, seen, None).iter().map(|finding| finding.code).collect()
    }

    const ALL: &str = "runs-sh has-proc has-pkill has-bash has-git has-git-lfs has-gitlab-runner writes-builds free-9999999";

    #[test]
    fn a_host_that_has_everything_has_no_finding() {
        assert_eq!(codes(4, &seen(ALL)), [""; 0]);
    }

    #[test]
    fn each_thing_that_is_missing_is_named_once() {
        for (word, code) in [
            ("has-bash", "host-shell-missing"),
            ("has-git", "host-git-missing"),
            ("has-git-lfs", "host-git-lfs-missing"),
            ("has-gitlab-runner", "host-runner-missing"),
            ("writes-builds", "host-builds-dir"),
        ] {
            let rest: Vec<&str> = ALL.split(' ').filter(|one| *one != word).collect();
            assert_eq!(codes(4, &seen(&rest.join(" "))), [code]);
        }
        assert_eq!(codes(4, &seen(&ALL.replace("9999999", "1047552"))), ["host-space"], "1023 MiB");
        assert_eq!(codes(4, &seen(&format!("{ALL} has-unremovable"))), ["host-unremovable"]);
        assert_eq!(codes(5, &seen(ALL)), ["host-connections"]);
        assert_eq!(codes(4, &Inspected { sessions: 1, ..seen(ALL) }), ["host-sessions"]);
        let without =
            |words: &[&str]| ALL.split(' ').filter(|one| !words.contains(one)).collect::<Vec<_>>().join(" ");
        assert_eq!(codes(4, &seen(&without(&["has-proc"]))), [""; 0], "`pkill` is enough");
        assert_eq!(codes(4, &seen(&without(&["has-pkill"]))), [""; 0], "and so is `/proc`");
        assert_eq!(codes(4, &seen(&without(&["has-proc", "has-pkill"]))), ["host-processes"]);
        let slow = Inspected { shell: Duration::from_secs(2), ..seen(ALL) };
        assert_eq!(codes(4, &slow), ["host-shell-slow"]);
    }

    #[test]
    fn a_login_shell_that_runs_nothing_is_quoted_and_nothing_else_is_said() {
        let pool = PoolName::new("linux");
        let needs =
            Needs { pool: &pool, shell: Shell::Bash.into(), builds: "/builds", cache: "/cache", jobs: 4 };
        let closed = Inspected { said: "This account is\x1b[2J\nnot available.\n".into(), ..seen("") };
        let found = judge(&host(true), &needs, &closed, None);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("of `ci` does not run `/bin/sh`: This account is"), "{found:?}");
    }

    #[test]
    fn stages_have_what_their_own_shell_finds_and_another_path_of_a_login_is_named() {
        let pool = PoolName::new("linux");
        let plain = seen(&format!("path-/usr/bin:/bin {}", ALL.replace(" has-gitlab-runner", "")));
        let login = format!("path-/usr/bin:/opt/ci/bin:/bin {ALL}").replace(' ', "\n");
        for (login_shell, expected) in
            [(true, [].as_slice()), (false, ["host-login-path", "host-runner-missing"].as_slice())]
        {
            let shell = StageShell { login_shell, ..Shell::Bash.into() };
            let needs = Needs { pool: &pool, shell, builds: "/builds", cache: "/cache", jobs: 4 };
            let found = judge(&host(true), &needs, &plain, Some(&login));
            assert_eq!(found.iter().map(|finding| finding.code).collect::<Vec<_>>(), expected, "{found:?}");
            let named = found.iter().any(|finding| finding.message.contains("in /opt/ci/bin, stages do not"));
            assert_eq!(named, !login_shell, "{found:?}");
        }
    }

    #[test]
    fn a_changed_key_is_accepted_by_one_command_or_in_the_configuration() {
        let error = |at: &str| ConnectError::HostKey {
            at: at.into(),
            expected: "SHA256:old".into(),
            found: "SHA256:new".into(),
        };
        let remedy =
            |pin, at: &str| unusable(&host(pin), &PoolName::new("linux"), &error(at)).remedy.unwrap();
        assert!(remedy(true, "192.0.2.7:22").contains("`greenroom doctor --pin mac-1 --pool linux --yes`"));
        assert!(remedy(true, "jump host 192.0.2.1:22").contains("--pin jump "));
        assert!(remedy(false, "192.0.2.7:22").contains("correct `host_key`"));
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let pool = PoolName::new("linux");
        let at = String::from("h:22");
        let problem = String::from("no");
        let errors = [
            ConnectError::Unreachable { at: at.clone(), problem: problem.clone() },
            ConnectError::HostKey { at: at.clone(), expected: "a".into(), found: "b".into() },
            ConnectError::Refused { at, user: "ci".into(), problem: problem.clone() },
            ConnectError::TurnedAway { at: "h:22".into(), problem: problem.clone() },
            ConnectError::timed_out_in(Step::Login, "h:22", PATIENCE),
            ConnectError::Local { what: problem },
        ];
        let mut all: Vec<Finding> = errors.iter().map(|error| unusable(&host(true), &pool, error)).collect();
        all.extend([kind(&pool, true, true), kind(&pool, true, false), kind(&pool, false, false)]);
        let needs =
            Needs { pool: &pool, shell: Shell::Bash.into(), builds: "/builds", cache: "/cache", jobs: 9 };
        let bare = Inspected { sessions: 1, shell: SLOW * 2, ..seen("runs-sh free-7 has-unremovable") };
        all.extend(judge(&host(true), &needs, &bare, None));
        all.extend(judge(&host(true), &needs, &seen("runs-sh has-bash has-git"), Some("path-/opt/bin")));
        let root = RootCleaning {
            user: "root".into(),
            clean: String::new(),
            clean_keeping_cache: String::new(),
            check: String::new(),
            script: String::new(),
            sudo: None,
        };
        all.extend(host_containers::tests::provoked());
        all.push(unclean(&host(true), &pool, &root, "there is no account ci"));
        all.extend(judge(&host(true), &needs, &seen("This account is currently not available."), None));
        all
    }
}
