//! Checks whether `network = "internet"` can work here.

use std::io::{self, Write};

use greenroom_core::ids::PoolName;
use greenroom_ports::finding::{Finding, Severity};

use super::{Internet, NOT_ROOT, Targets, command, nft, outcome, rules, uids};

/// The findings for a pool.
pub(in crate::qemu) fn findings(pool: &PoolName, internet: &Internet) -> Vec<Finding> {
    let error = |code, message: String, remedy: &str| {
        vec![Finding { code, severity: Severity::Error, message, remedy: Some(remedy.to_owned()) }]
    };
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
fn try_rules(uid: u32) -> io::Result<()> {
    let mut child = command(&nft()?).arg("--check").spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may exit before it has read everything: its message explains more than a closed pipe.
        drop(stdin.write_all(rules::install(uid, &[], &Targets::default(), None).as_bytes()));
    }
    outcome(&child.wait_with_output()?).map(drop)
}
