//! A script of the host's, which runs before the machine has an identity.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::identity::proxy_environment;
use crate::sys;

const SHELL: &str = "/bin/sh";
/// The engine of containers keeps files there.
const HOME: &str = "/root";

/// The parts that have come so far.
#[derive(Debug, Default)]
pub(crate) struct Script(Vec<u8>);

impl Script {
    pub(crate) fn add(&mut self, part: &[u8]) {
        self.0.extend(part);
    }

    /// Runs it; `each` gets every line that it writes. It reports its failures itself: its status says nothing more.
    pub(crate) fn run(
        self,
        proxy: Option<&str>,
        mut each: impl FnMut(String) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut command = Command::new(SHELL);
        // What it writes about its own failures goes to the console.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("HOME", HOME);
        for (name, value) in proxy.into_iter().flat_map(proxy_environment) {
            command.env(name, value).env(name.to_ascii_uppercase(), value);
        }
        let mut child = command.spawn()?;
        // The shell reads all of it before the first command runs: nothing is written meanwhile.
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(&self.0));
        let told = child.stdout.take().map_or(Ok(()), |stdout| {
            for line in BufReader::new(stdout).split(b'\n') {
                each(String::from_utf8_lossy(&line?).into_owned())?;
            }
            Ok(())
        });
        child.wait()?;
        sys::sync_disks();
        written.and(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_put_together_and_knows_the_proxy() {
        let mut script = Script::default();
        for part in ["main() { echo \"$http_proxy $NO_PROXY\"; ", "echo over; exit 3; }\nmain </dev/null\n"] {
            script.add(part.as_bytes());
        }
        let mut lines = Vec::new();
        let each = |line| {
            lines.push(line);
            Ok(())
        };
        script.run(Some("http://10.0.2.100:3128"), each).unwrap();
        assert_eq!(lines, ["http://10.0.2.100:3128 localhost,127.0.0.1,::1", "over"]);
    }
}
