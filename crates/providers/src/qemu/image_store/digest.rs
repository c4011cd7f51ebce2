//! SHA-256 of files and texts, in hex.

use std::io::{self, Read as _};
use std::path::Path;

use fs_err as fs;
use greenroom_core::text::hex;
use sha2::{Digest as _, Sha256};

/// Size of one read, in bytes.
const PIECE: usize = 1 << 20;

/// Of a file's whole content.
pub(super) fn of(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut digest = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&piece[..read]),
        }
    }
}

/// Of a manifest, as registries write it.
pub(super) fn of_manifest(text: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(text)))
}

/// True if the text is a digest. It becomes the name of a file.
pub(super) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
