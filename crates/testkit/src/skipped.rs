//! Reports a test that cannot run on this machine, past the capture of its output.

use std::fmt::Display;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Names the file in which `scripts/test` collects the tests that were skipped: a line each, the test, a tab, the reason.
const FILE: &str = "GREENROOM_SKIPPED";

/// Reports that the running test, or the rest of it, is skipped, and why. All tests with the same reason give the same
/// text. Without a file, standard error gets the line.
pub fn skipped(why: impl Display) {
    let program = std::env::current_exe().ok();
    let program =
        program.as_ref().and_then(|path| path.file_name()?.to_str()?.rsplit_once('-')).map(|(name, _)| name);
    let thread = std::thread::current();
    let test = format!("{}::{}", program.unwrap_or("tests"), thread.name().unwrap_or("?"));
    let why = why.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let file =
        std::env::var_os(FILE).and_then(|file| std::fs::OpenOptions::new().append(true).open(file).ok());
    // One write each: several tests may do this concurrently.
    let written = file.is_some_and(|mut file| file.write_all(format!("{test}\t{why}\n").as_bytes()).is_ok());
    if !written {
        // `eprintln!` would be captured.
        let _told = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
    }
}

// Whether the rules of `network = "internet"` can be tried on this machine, in a network namespace.

/// A rule with everything that Greenroom's rules need of the kernel.
const RULE: &str = "add table inet t; add chain inet t c { type filter hook output priority 0; }; \
                    add rule inet t c meta skuid 1 fib daddr type local reject";

/// The reason to skip a test of rules of `nft`, for [`skipped`]; `None`: it can run.
pub fn nft_obstacle() -> Option<&'static str> {
    let mut command = Command::new("unshare");
    command.args(["--net", "nft", RULE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let works = command.status().is_ok_and(|status| status.success());
    (!works).then_some("nftables cannot be used in a network namespace (`unshare --net nft`)")
}
