//! Programs of other Debian packages that a build runs.
//!
//! Kernels and modules come packed in four ways. The programs that unpack them are small packages on a machine that
//! needs mmdebstrap anyway, so the binary carries no decoders.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folders to search for tools; an ordinary user's `PATH` lacks half of these.
const FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    Mmdebstrap,
    /// 1.45 or later, for `-d`.
    Mke2fs,
    Gzip,
    Lz4,
    Xz,
    Zstd,
    /// For image stores.
    Skopeo,
}

impl Tool {
    /// The tools that build an image of a virtual machine.
    pub(super) const OF_IMAGES: [Self; 6] =
        [Self::Mmdebstrap, Self::Mke2fs, Self::Gzip, Self::Lz4, Self::Xz, Self::Zstd];

    fn name(self) -> &'static str {
        match self {
            Self::Mmdebstrap => "mmdebstrap",
            Self::Mke2fs => "mke2fs",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Skopeo => "skopeo",
        }
    }

    /// The Debian package that contains it.
    fn package(self) -> &'static str {
        match self {
            Self::Mmdebstrap => "mmdebstrap",
            Self::Mke2fs => "e2fsprogs",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Xz => "xz-utils",
            Self::Zstd => "zstd",
            Self::Skopeo => "skopeo",
        }
    }

    fn path(self) -> Option<PathBuf> {
        FOLDERS.iter().map(|folder| Path::new(folder).join(self.name())).find(|path| path.is_file())
    }

    /// The command that runs it; it must be installed.
    pub(in crate::qemu) fn command(self) -> Command {
        Command::new(self.program())
    }

    /// The path of the tool, which must be installed.
    pub(in crate::qemu) fn program(self) -> OsString {
        self.path().map_or_else(|| self.name().into(), PathBuf::into_os_string)
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason a [`Tool`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The build has not started.
    #[error("{} not installed: `apt-get install --no-install-recommends {}`", missing(_0), packages(_0))]
    Missing(Vec<Tool>),
    #[error("{tool}: {source}")]
    Start { tool: Tool, source: io::Error },
    /// The tool exited with an error; with the last lines of its output.
    #[error("{tool} failed with {status}{}", indented(output))]
    Failed { tool: Tool, status: std::process::ExitStatus, output: Vec<String> },
}

fn missing(tools: &[Tool]) -> String {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn packages(tools: &[Tool]) -> String {
    let names: Vec<&str> = tools.iter().map(|tool| tool.package()).collect();
    names.join(" ")
}

fn indented(output: &[String]) -> String {
    let lines: Vec<String> = output.iter().map(|line| format!("\n  | {line}")).collect();
    lines.concat()
}

/// The Debian packages that a build of an image needs. Each Debian has gzip.
pub fn packages_of_images() -> String {
    let needed: Vec<Tool> = Tool::OF_IMAGES.into_iter().filter(|tool| *tool != Tool::Gzip).collect();
    packages(&needed)
}

/// Checks that all of them are installed, before the build starts.
pub(in crate::qemu) fn all_there(tools: &[Tool]) -> Result<(), ToolError> {
    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| tool.path().is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(ToolError::Missing(missing)) }
}

/// Sends bytes through a decompressor.
pub(super) fn filter(tool: Tool, bytes: &[u8]) -> Result<Vec<u8>, ToolError> {
    let start = |source| ToolError::Start { tool, source };
    let mut command = tool.command();
    command.args(["-d", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let input = child.stdin.take();
    // Both pipes are small, so reading and writing run concurrently.
    let (output, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || input.map_or(Ok(()), |mut input| input.write_all(bytes)));
        let output = child.wait_with_output();
        (output, writer.join())
    });
    let output = output.map_err(start)?;
    if !output.status.success() {
        return Err(failed(tool, output.status, &output.stderr));
    }
    match written {
        Ok(Ok(())) => Ok(output.stdout),
        Ok(Err(source)) => Err(start(source)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The number of lines of a failed tool that are shown.
const SHOWN: usize = 12;

/// The error of a failed tool, with the last lines of its output.
pub(super) fn failed(tool: Tool, status: std::process::ExitStatus, output: &[u8]) -> ToolError {
    let text = greenroom_core::text::clean_text(output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(SHOWN);
    ToolError::Failed { tool, status, output: lines[from..].iter().map(|line| (*line).to_owned()).collect() }
}

/// Fills a disk from a folder. No journal: what is written to it is thrown away with its machine.
pub(in crate::qemu) fn make_disk(
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
    if output.status.success() { Ok(()) } else { Err(failed(tool, output.status, &output.stderr)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_line_that_installs_it() {
        let error = ToolError::Missing(vec![Tool::Mmdebstrap, Tool::Xz]).to_string();
        assert_eq!(
            error,
            "mmdebstrap, xz are not installed: `apt-get install --no-install-recommends mmdebstrap xz-utils`"
        );
    }

    #[test]
    fn more_than_a_pipe_holds_goes_through() {
        let mut pack = Tool::Gzip.command();
        pack.args(["-c", "/proc/self/exe"]).stdin(Stdio::null());
        let packed = pack.output().unwrap().stdout;
        let twice = [packed.as_slice(), &packed].concat();
        let unpacked = filter(Tool::Gzip, &twice).unwrap();
        assert!(unpacked.len() > 150_000, "{}", unpacked.len());
        assert_eq!(unpacked[..unpacked.len() / 2], unpacked[unpacked.len() / 2..]);
    }

    #[test]
    fn a_tool_that_fails_is_quoted() {
        let error = filter(Tool::Gzip, b"no archive").unwrap_err().to_string();
        assert!(error.starts_with("gzip failed with exit status: 1\n  | "), "{error}");
    }
}
