//! Plugins as OCI artifacts: their installation from a registry in GitLab's layout, and the lock file of it. Contents are named
//! by digests.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;

use greenroom_core::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

#[cfg(feature = "fleeting")]
pub mod credentials;
#[cfg(feature = "fleeting")]
pub mod document;
#[cfg(feature = "fleeting")]
pub mod install;
pub mod lock_file;
#[cfg(feature = "fleeting")]
pub mod registry;
#[cfg(feature = "fleeting")]
mod unpack;

const ALGORITHM: &str = "sha256:";

/// The digest of a content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        Self::from_hash(Sha256::new_with_prefix(content))
    }

    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut summing = Summing::new(io::sink());
        io::copy(&mut fs_err::File::open(path)?, &mut summing)?;
        Ok(summing.finish().0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first digits, for a table.
    pub fn short(&self) -> &str {
        &self.0[..ALGORITHM.len() + 12]
    }

    fn from_hash(hash: Sha256) -> Self {
        Self(format!("{ALGORITHM}{}", hex(&hash.finalize())))
    }
}

/// A text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a digest: expected `sha256:` and 64 hexadecimal digits")]
pub struct DigestError {
    text: String,
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match text.strip_prefix(ALGORITHM) {
            Some(hex) if hex.len() == 64 && hex.bytes().all(is_hex) => Ok(Self(text)),
            _ => Err(DigestError { text }),
        }
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Passes a content on, and computes its digest and length.
pub struct Summing<T> {
    inner: T,
    hash: Sha256,
    length: u64,
}

impl<T> Summing<T> {
    pub fn new(inner: T) -> Self {
        Self { inner, hash: Sha256::new(), length: 0 }
    }

    /// The digest and the length of what passed.
    pub fn finish(self) -> (Digest, u64) {
        (Digest::from_hash(self.hash), self.length)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
    }
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.count(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count(&buffer[..read]);
        Ok(read)
    }
}

impl<T> fmt::Debug for Summing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summing").field("length", &self.length).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_other_programs() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::try_from(empty.to_owned()), Ok(Digest::of(b"")));
        let mut summing = Summing::new(io::sink());
        summing.write_all(b"two ").unwrap();
        summing.write_all(b"parts").unwrap();
        assert_eq!(summing.finish(), (Digest::of(b"two parts"), 9));
    }

    #[test]
    fn other_texts_are_no_digests() {
        for text in ["", "sha256:", "sha512:00", "sha256:../../etc", &format!("sha256:{}", "A".repeat(64))] {
            assert!(Digest::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
