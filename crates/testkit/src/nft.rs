//! Whether the rules of `network = "internet"` can be tried on this machine, in a network namespace.

use std::process::{Command, Stdio};

/// A rule with everything that Greenroom's rules need of the kernel.
const RULE: &str = "add table inet t; add chain inet t c { type filter hook output priority 0; }; \
                    add rule inet t c meta skuid 1 fib daddr type local reject";

/// The reason to skip a test; `None`: it can run.
pub fn obstacle() -> Option<&'static str> {
    let mut command = Command::new("unshare");
    command.args(["--net", "nft", RULE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let works = command.status().is_ok_and(|status| status.success());
    (!works).then_some("nftables cannot be used in a network namespace (`unshare --net nft`)")
}
