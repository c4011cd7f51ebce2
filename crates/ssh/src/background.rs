//! Names the background process that keeps a stage's output open after its script has ended.

use std::future::pending;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_ports::connector::Output;

use super::guest::Guest;
use super::session::Session;
use super::stop_handle::StopHandle;

/// How long the output may be silent after the script's end.
pub(super) const QUIET: Duration = Duration::from_secs(3);
/// How long finding the process, and writing the line, may each take.
const WITHIN: Duration = Duration::from_secs(5);
/// Characters of a name; the kernel keeps 15.
const NAME: usize = 32;

/// Ends the stage's output with a line that names the process.
pub(super) async fn name(session: &Session<'_>, guest: &mut Guest, output: &mut dyn Output) {
    let found = match guest.handle().cloned() {
        Some(handle) => find(session, guest, &handle).await,
        None => None,
    };
    let what = found.map_or_else(|| "a background process".to_owned(), |found| found.to_string());
    let line = format!(
        "greenroom: {what} of the script still holds its output; what it prints from now on is not shown"
    );
    // A reader that takes nothing gets no line either.
    let _written = tokio::time::timeout(WITHIN, output.own_line(&line)).await;
}

#[derive(Debug, PartialEq, Eq)]
struct Background {
    pid: u32,
    name: String,
}

impl std::fmt::Display for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "background process `{}` (pid {})", self.name, self.pid)
    }
}

/// Queries the guest, while the stage's further output is discarded: unread, it would stall the connection.
async fn find(session: &Session<'_>, guest: &mut Guest, handle: &StopHandle) -> Option<Background> {
    let command = handle.holder();
    let discarding = async {
        while guest.discard_one().await {}
        pending().await
    };
    tokio::select! {
        answer = tokio::time::timeout(WITHIN, session.brief(&command)) => parse(&answer.ok()?.ok()?.1),
        never = discarding => never,
    }
}

/// Reads the line `held PID NAME`. A process chooses its name.
fn parse(output: &[u8]) -> Option<Background> {
    let mut lines = output.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(b"held "))?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let pid = std::str::from_utf8(&rest[..space]).ok()?.parse().ok()?;
    let name = clean_line(&rest[space..], NAME).replace('`', "'");
    Some(Background { pid, name: if name.is_empty() { "?".to_owned() } else { name } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_process_chose_is_cleaned() {
        for (output, expected) in [
            ("held 4711 sleep\n", Some("background process `sleep` (pid 4711)")),
            ("noise\nheld 7 a b\nheld 8 c\n", Some("background process `a b` (pid 7)")),
            ("held 7 \x1b[2Jx`\x07y\n", Some("background process `x'y` (pid 7)")),
            ("held 7 \n", Some("background process `?` (pid 7)")),
            ("held x y\n", None),
            ("held 7\n", None),
            ("", None),
        ] {
            let found = parse(output.as_bytes()).map(|found| found.to_string());
            assert_eq!(found.as_deref(), expected, "{output:?}");
        }
    }
}
