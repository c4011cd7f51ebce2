//! `network = "internet"`: the guest reaches the internet and the addresses of `allow`, and nothing near the runner host.
//!
//! QEMU is the guest's only way out. It runs under a user ID of the machine's own, and rules of the runner host's
//! firewall (nftables) judge the connections that this user ID opens.

use std::cell::RefCell;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::text::clean_line;
use greenroom_ports::finding::{Finding, Severity};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::settings::Settings;
use crate::mistakes::finding;
use crate::supervised::supervisor::note;
use allow::{ResolveError, Targets};
use uids::{TakenUid, Uids};

mod allow;
mod rules;
mod uids;

pub(super) use allow::Allowed;

const NFT: &str = "nft";
/// The folders in which Debian has `nft`, and which a service's PATH may lack.
const SYSTEM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The time limit for `nft`. It needs some milliseconds, more on a busy host.
const NFT_WITHIN: Duration = Duration::from_secs(30);

/// Interval at which a supervisor checks that its machine's rules still exist.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The time that processes of a machine may take to exit after its supervisor.
const EXIT_WITHIN: Duration = Duration::from_secs(5);

/// The keys of `network = "internet"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Internet {
    pub(super) allow: Vec<Allowed>,
    pub(super) first_uid: u32,
}

impl Internet {
    fn uids(&self) -> Range<u32> {
        self.first_uid..self.first_uid + uids::COUNT
    }
}

/// The reason the network rules of a machine cannot be set.
#[derive(Debug, thiserror::Error)]
pub(super) enum EgressError {
    #[error("`network = \"internet\"` requires `nft`, which is not installed: `apt-get install nftables`")]
    NoNft,
    #[error("`nft` did not exit within {} s", NFT_WITHIN.as_secs())]
    NftLate,
    #[error("`nft` failed ({status}): {message}")]
    NftFailed { status: ExitStatus, message: String },
    #[error("cannot resolve `{name}`, which `allow` names: {problem}")]
    Resolve { name: String, problem: ResolveError },
    #[error("all user IDs from {} to {} (`first_uid`) are in use", .0.start, .0.end - 1)]
    NoUid(Range<u32>),
    #[error("another process holds the lock of {}", .0.display())]
    Locked(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Checks that machines with these settings can be launched here, as far as a launch knows immediately.
pub(super) fn check(settings: &Settings) -> Result<(), EgressError> {
    settings.network.internet().map_or(Ok(()), |_| nft().map(drop))
}

/// The reason a pool with these settings is invalid for a user other than root.
pub(super) const NOT_ROOT: &str = "`network = \"internet\"` requires that Greenroom runs as root: it sets rules of the runner host's firewall";

/// The path of `nft`.
fn nft() -> Result<PathBuf, EgressError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(SYSTEM_DIRS.map(PathBuf::from));
    dirs.map(|dir| dir.join(NFT)).find(|program| program.is_file()).ok_or(EgressError::NoNft)
}

/// Has `nft` carry out a transaction; returns what it prints.
async fn apply(text: &str) -> Result<String, EgressError> {
    let mut command = tokio::process::Command::from(command(&nft()?));
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut stdin = child.stdin.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let work = async {
        // It may exit before it has read everything: its message explains more than a closed pipe.
        drop(stdin.write_all(text.as_bytes()).await);
        drop(stdin);
        child.wait_with_output().await
    };
    outcome(&timeout(NFT_WITHIN, work).await.map_err(|_| EgressError::NftLate)??)
}

/// The command `nft` that reads a transaction from its standard input.
fn command(nft: &Path) -> Command {
    let mut command = Command::new(nft);
    command.args(["--numeric", "--file", "-"]).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn outcome(output: &Output) -> Result<String, EgressError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let first = output.stderr.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Err(EgressError::NftFailed { status: output.status, message: clean_line(first, 200) })
}

/// The IPv4 addresses of the runner host's name servers: QEMU passes a guest's queries on to them.
fn resolvers(resolv_conf: &str) -> Vec<Ipv4Addr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim_start().strip_prefix("nameserver"));
    servers.filter_map(|rest| rest.split_whitespace().next()?.parse().ok()).collect()
}

/// The rules of a running machine, and the user ID that they judge.
#[derive(Debug)]
pub(super) struct Guard {
    taken: RefCell<TakenUid>,
    uid: u32,
    resolvers: Vec<Ipv4Addr>,
    targets: Targets,
    rules: RefCell<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    /// The rules as `nft` shows them.
    shown: String,
    port: Option<u16>,
}

impl Guard {
    /// Takes a user ID and installs its rules. No process with that user ID exists before.
    pub(super) async fn raise(internet: &Internet) -> Result<Self, EgressError> {
        let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let targets = allow::resolve(&internet.allow).await?;
        let taken = {
            let uids = Uids::lock().await?;
            if let Err(error) = remove_stale(&uids).await {
                note(&format!("cannot remove rules of virtual machines that are gone: {error}"));
            }
            // CRASH: from here on the file names the user ID, so a later sweep removes its rules.
            uids.take(internet.uids())?
        };
        let uid = taken.uid;
        let resolvers = resolvers(&resolv_conf);
        let rules = RefCell::default();
        let guard = Self { taken: RefCell::new(taken), uid, resolvers, targets, rules };
        guard.install().await?;
        Ok(guard)
    }

    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    fn text(&self) -> String {
        rules::install(self.uid, &self.resolvers, &self.targets, self.rules.borrow().port)
    }

    /// Needs no lock: each text is one transaction, and nothing removes the table while the user ID is taken.
    async fn install(&self) -> Result<(), EgressError> {
        apply(&self.text()).await?;
        let shown = apply(&rules::show(self.uid)).await?;
        self.rules.borrow_mut().shown = shown;
        Ok(())
    }

    /// Lets only root connect to the machine's forwarded port.
    pub(super) async fn guard_port(&self, port: u16) -> Result<(), EgressError> {
        self.taken.borrow_mut().record(port)?;
        self.rules.borrow_mut().port = Some(port);
        apply(&self.text()).await.map(drop)
    }

    /// Installs the rules again whenever another program has removed or changed them, such as a restart of the runner
    /// host's firewall. Returns why that failed.
    pub(super) async fn keep(&self) -> EgressError {
        loop {
            sleep(CHECK_INTERVAL).await;
            if apply(&rules::show(self.uid)).await.is_ok_and(|now| now == self.rules.borrow().shown) {
                continue;
            }
            note(
                "another program has changed the network rules of this virtual machine: installing them again",
            );
            if let Err(error) = self.install().await {
                return error;
            }
        }
    }
}

/// Removes the rules of machines without a supervisor, and the table with the last of them. Never fails: what cannot be
/// removed judges user IDs that no process has, and the next machine's supervisor tries again.
pub(super) async fn sweep() {
    if !Uids::any() {
        return;
    }
    let swept = async { remove_stale(&Uids::lock().await?).await };
    if let Err(error) = swept.await {
        note(&format!("cannot remove the network rules: {error}"));
    }
}

async fn remove_stale(uids: &Uids) -> Result<(), EgressError> {
    let begun = tokio::time::Instant::now();
    loop {
        let mut waits = false;
        for stale in uids.stale()? {
            // Killed with its supervisor, but not gone yet.
            if stale.is_busy && begun.elapsed() < EXIT_WITHIN {
                waits = true;
            } else if !stale.is_busy {
                apply(&rules::remove(stale.uid, stale.port)).await?;
                uids.forget(stale.uid)?;
            }
        }
        if !waits {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    if uids.all()?.is_empty() {
        apply(&rules::remove_table()).await?;
    }
    Ok(())
}

/// The findings for a pool.
pub(in crate::qemu) fn findings(pool: &PoolName, internet: &Internet) -> Vec<Finding> {
    let error = |code, message, remedy: &str| vec![finding(code, Severity::Error, message, remedy)];
    if !rustix::process::geteuid().is_root() {
        return error(
            "qemu-internet-root",
            NOT_ROOT.to_owned(),
            "run Greenroom as root, or use `network = \"proxy\"`",
        );
    }
    if let Err(problem) = nft() {
        return error(
            "qemu-nft-missing",
            problem.to_string(),
            "apt-get install --no-install-recommends nftables",
        );
    }
    let range = internet.uids();
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let conflict =
        uids::conflict(&range, &text("/etc/passwd"), &text("/etc/subuid"), &text("/proc/self/uid_map"));
    let mut found = Vec::new();
    if let Some(why) = conflict {
        let what = format!(
            "pool `{pool}` runs each QEMU under a user ID from {} to {}, but one of them is {why}",
            range.start,
            range.end - 1
        );
        found.extend(error("qemu-uids-taken", what, "set `first_uid` to the first of 1024 unused user IDs"));
    }
    if let Err(problem) = try_rules(range.start) {
        let what = format!("the rules for guests of pool `{pool}` cannot be installed: {problem}");
        let remedy = "use a kernel with nftables (modules nf_tables, nft_fib_inet, nft_reject_inet)";
        found.extend(error("qemu-nft-refused", what, remedy));
    }
    found
}

/// Has `nft` and the kernel check the rules of a machine, without installing them.
fn try_rules(uid: u32) -> Result<(), EgressError> {
    let mut child = command(&nft()?).arg("--check").spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may exit before it has read everything: its message explains more than a closed pipe.
        drop(stdin.write_all(rules::install(uid, &[], &Targets::default(), None).as_bytes()));
    }
    outcome(&child.wait_with_output()?).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_without_ipv4_are_none_of_the_guests() {
        let text = "# nameserver 192.0.2.9\nsearch corp\nnameserver 127.0.0.53\n nameserver\t10.0.0.2 # x\nnameserver ::1\n";
        assert_eq!(resolvers(text), [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(10, 0, 0, 2)]);
    }

    #[test]
    fn the_message_of_nft_is_quoted() {
        use std::os::unix::process::ExitStatusExt;
        let failed = |stderr: &str| Output {
            status: std::process::ExitStatus::from_raw(256),
            stdout: Vec::new(),
            stderr: stderr.into(),
        };
        let error =
            outcome(&failed("/dev/stdin:1:1-3: Error: Operation not permitted\nadd\n^^^\n")).unwrap_err();
        let expected = "`nft` failed (exit status: 1): /dev/stdin:1:1-3: Error: Operation not permitted";
        assert_eq!(error.to_string(), expected);
    }
}
