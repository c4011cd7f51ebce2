//! The guest shells on this machine.

use std::process::Command;

use crate::skipped::skipped;

/// Debian's `sh` is dash.
const SHELLS: [&[&str]; 3] = [&["sh"], &["bash"], &["busybox", "ash"]];

/// The shells that a test runs a guest's script with. Reports the ones that are missing.
pub fn shells() -> impl Iterator<Item = &'static [&'static str]> {
    SHELLS.into_iter().filter(|shell| {
        let tried = Command::new(shell[0]).args(&shell[1..]).args(["-c", "exit 0"]).status();
        let present = tried.is_ok_and(|status| status.success());
        if !present {
            skipped(format_args!("{} is missing", shell[0]));
        }
        present
    })
}
