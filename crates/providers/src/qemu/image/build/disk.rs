//! A file system from a folder; nothing is mounted.

use std::path::Path;
use std::process::Stdio;

use super::tools::{self, Tool, ToolError};

/// Fills a disk from a folder. No journal: what is written to it is thrown away with its machine.
pub(in crate::qemu) fn make(
    folder: &Path,
    disk: &Path,
    bytes: u64,
    inodes: Option<u64>,
) -> Result<(), ToolError> {
    let tool = Tool::Mke2fs;
    let mut command = tool.command();
    command.args([
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-m",
        "0",
        "-L",
        "greenroom",
    ]);
    command.args(inodes.map(|inodes| format!("-N{inodes}")));
    command.arg("-d").arg(folder).arg(disk).arg(format!("{}k", bytes / 1024)).stdin(Stdio::null());
    let output = command.output().map_err(|source| ToolError::Start { tool, source })?;
    if output.status.success() { Ok(()) } else { Err(tools::failed(tool, output.status, &output.stderr)) }
}
