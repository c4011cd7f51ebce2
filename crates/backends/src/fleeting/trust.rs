//! Verifies an instance's host key: the protocol of plugins has none.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::endpoint::{self, Endpoint};
use greenroom_core::failure::ErrorClass;
use greenroom_core::text::clean_line;
use greenroom_ports::host_keys::{self, PresentedKey};
use greenroom_ports::provider::ProviderError;
use tokio::sync::Semaphore;

use super::settings::HostKeys;
use crate::environment::Environment;
use crate::held::Ending;
use crate::program::{Exit, Program};

/// How long an instance may take to present its key.
const PRESENT_WITHIN: Duration = Duration::from_secs(10);
/// How long the operator's program may take, and the most that it may print, in bytes.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
const OUTPUT: u64 = 64 << 10;
/// Longest line of the program's in a message, in characters.
const SHOWN: usize = 200;

/// How a pool's instances are verified.
pub(super) struct Trust {
    pub(super) ways: HostKeys,
    pub(super) reader: Rc<dyn host_keys::HostKeys>,
    /// Greenroom's own program, which holds the operator's.
    pub(super) holder: PathBuf,
    pub(super) environment: Environment,
}

impl Trust {
    /// What an instance must present at each connection if its key needs no record: a certificate.
    pub(super) fn certified(&self, id: &str, address: &str) -> Option<String> {
        let HostKeys::Certificates { authorities, name } = &self.ways else { return None };
        let names = name.as_ref().map_or_else(|| vec![address, id], |name| vec![name.as_str()]);
        Some(endpoint::certified(&names, authorities))
    }

    /// The host key that a new instance must present from now on. `at` is its endpoint without one.
    pub(super) async fn establish(&self, id: &str, at: &Endpoint) -> Result<String, ProviderError> {
        match &self.ways {
            HostKeys::Certificates { .. } => Ok(self.certified(id, &at.address).unwrap_or_default()),
            HostKeys::FirstUse => {
                let presented = self.presented(at).await?;
                Ok(endpoint::on_first_use(&presented.line, &presented.fingerprint))
            }
            HostKeys::Command(program) => {
                let expected = self.ask(program, id, &at.address).await?;
                let presented = self.presented(at).await?;
                if matches(&expected, &presented) {
                    return Ok(presented.line);
                }
                let why = format!(
                    "{} presents host key {}, which `{}` does not print",
                    at.place(),
                    presented.fingerprint,
                    program.display()
                );
                Err(ProviderError::new(ErrorClass::Denied, why))
            }
        }
    }

    async fn presented(&self, at: &Endpoint) -> Result<PresentedKey, ProviderError> {
        let presented = self.reader.presented(at, PRESENT_WITHIN).await;
        presented.map_err(|error| ProviderError::new(ErrorClass::Transient, error.to_string()))
    }

    /// What the operator's program prints about an instance.
    async fn ask(&self, path: &Path, id: &str, address: &str) -> Result<String, ProviderError> {
        let program = Program {
            holder: self.holder.clone(),
            path: path.to_owned(),
            arguments: vec![id.to_owned()],
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
            environment: self.environment.clone(),
            output_limit: OUTPUT,
            concurrent: Rc::new(Semaphore::new(1)),
        };
        let ended = program.call(address, COMMAND_WITHIN, b"{}".to_vec()).await;
        if ended.exit == Exit::Ended(Ending::Code(0)) {
            return Ok(String::from_utf8_lossy(&ended.output).into_owned());
        }
        let how = match &ended.exit {
            Exit::Ended(Ending::Code(code)) => format!("ended with exit code {code}"),
            Exit::Ended(Ending::NotStarted(why)) => format!("cannot be started: {why}"),
            Exit::Ended(Ending::TimeLimit) => "did not end in time".to_owned(),
            Exit::OutputLimit(_) => "printed too much".to_owned(),
            Exit::Ended(_) | Exit::Lost => "was killed".to_owned(),
        };
        let last = ended.log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let log =
            if last.is_empty() { String::new() } else { format!(": {}", clean_line(last.as_bytes(), SHOWN)) };
        let why = format!("`{}`, which prints host keys, {how}{log}", path.display());
        Err(ProviderError::new(ErrorClass::Transient, why))
    }
}

/// True if one of the lines is the key's fingerprint, or the key itself.
fn matches(output: &str, presented: &PresentedKey) -> bool {
    output.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_fingerprint = words.contains(&presented.fingerprint.as_str());
        is_fingerprint || words.windows(2).any(|pair| pair.join(" ") == presented.line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_or_a_key_matches_and_nothing_else_does() {
        let presented =
            PresentedKey { line: "ssh-ed25519 AAAAkey".to_owned(), fingerprint: "SHA256:abc".to_owned() };
        for (output, expected) in [
            ("SHA256:abc", true),
            ("256 SHA256:abc root@a (ED25519)\n", true),
            ("SHA256:other\nSHA256:abc\n", true),
            ("ssh-ed25519 AAAAkey root@a\n", true),
            ("10.0.0.7 ssh-ed25519 AAAAkey", true),
            ("", false),
            ("SHA256:abcd", false),
            ("SHA256", false),
            ("ssh-ed25519 AAAAkeyother", false),
            ("AAAAkey", false),
        ] {
            assert_eq!(matches(output, &presented), expected, "{output}");
        }
    }
}
