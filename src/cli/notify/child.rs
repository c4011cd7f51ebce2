//! Runs a program with a text on its standard input, in a process group that ends with the call.

use std::io;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// Of what a program prints, in bytes.
const OUTPUT: u64 = 4 << 10;

/// How it ended, and the beginning of what it printed if the command pipes it. Dropping this kills the program, with all
/// processes of its group.
pub(super) async fn run(command: &mut Command, input: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    if let Some(mut stdin) = child.stdin.take() {
        // A program need not read it.
        stdin.write_all(input.as_bytes()).await.ok();
    }
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT).read_to_end(&mut output).await?;
    }
    let status = child.wait().await?;
    group.0 = None;
    Ok((status, output))
}

/// A process group that is killed when this is dropped, unless its leader has ended.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An error: nothing of it is left.
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}
