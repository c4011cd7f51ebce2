//! The digest of an image's content.

use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use fs_err as fs;
use greenroom_core::text::hex;
use rustix::fs::SeekFrom;
use sha2::{Digest as _, Sha256};

/// Size of the pieces in which a disk is searched for data, in bytes.
const PIECE: usize = 64 * 1024;

/// SHA-256, in hex, over kernel, initrd and the pieces of the disk that are not zero. The guest program is in the
/// initrd. Holes count as zeros, so a copy has the same digest whether it is sparse or not.
pub(in crate::qemu::image) fn of_image(kernel: &Path, initrd: &Path, rootfs: &Path) -> io::Result<String> {
    let mut digest = Sha256::new();
    for path in [kernel, initrd] {
        let bytes = fs::read(path)?;
        digest.update(bytes.len().to_le_bytes());
        digest.update(bytes);
    }
    add_disk(&mut digest, rootfs)?;
    Ok(hex(&digest.finalize()))
}

fn add_disk(digest: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    digest.update(size.to_le_bytes());
    let step = PIECE as u64;
    let (mut piece, zeros) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data / step * step,
            // Only a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        file.seek(io::SeekFrom::Start(at))?;
        let length = usize::try_from(step.min(size - at)).unwrap_or(PIECE);
        file.read_exact(&mut piece[..length])?;
        if piece[..length] != zeros[..length] {
            digest.update(at.to_le_bytes());
            digest.update(&piece[..length]);
        }
        at += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zeros_and_everything_else_counts() {
        let temporary = tempfile::tempdir().unwrap();
        let file = |name: &str| temporary.path().join(name);
        fs::write(file("kernel"), "k").unwrap();
        fs::write(file("initrd"), "i").unwrap();
        let mut content = vec![0; 3 * PIECE + 17];
        content[2 * PIECE + 5] = 1;
        fs::write(file("full"), &content).unwrap();
        let sparse = fs::File::create(file("sparse")).unwrap();
        sparse.set_len(content.len() as u64).unwrap();
        std::os::unix::fs::FileExt::write_at(sparse.file(), &[1], 2 * PIECE as u64 + 5).unwrap();
        let of = |disk: &str| of_image(&file("kernel"), &file("initrd"), &file(disk)).unwrap();
        assert_eq!(of("full"), of("sparse"));
        content[0] = 1;
        fs::write(file("other"), &content).unwrap();
        assert_ne!(of("full"), of("other"));
        assert_eq!(of("full").len(), 64);
    }
}
