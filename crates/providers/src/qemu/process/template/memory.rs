//! A guest's memory, as a file in memory and as a file on the disk.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom as From, fcntl_add_seals, ftruncate, memfd_create};

/// Size of one step of a copy, in bytes.
const CHUNK: usize = 256 * 1024;

/// Creates an empty memory file that can be written and sealed.
pub(super) fn new(bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create("greenroom-template", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Makes the file unchangeable for every process. Fails as long as a process has it mapped for writing.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, all)?)
}

/// Copies the data and keeps the holes and the length.
pub(super) fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while let Some(begin) = seek(from, From::Data(at))? {
        let end = seek(from, From::Hole(begin))?.unwrap_or(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        copy_exactly(from, to, end - begin)?;
        at = end;
    }
    Ok(())
}

/// `None`: no data follows.
fn seek(file: &File, to: From) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_exactly(from: &mut File, to: &mut File, bytes: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        from.read_exact(&mut chunk[..wanted])?;
        // The guest has zeroed most of the memory that it once used: zeros become holes.
        if chunk[..wanted].iter().all(|byte| *byte == 0) {
            to.seek_relative(i64::try_from(wanted).unwrap_or_default())?;
        } else {
            to.write_all(&chunk[..wanted])?;
        }
        left -= wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_copy_is_the_same_with_its_holes_and_a_sealed_one_stays_as_it_is() {
        let mut guest = File::from(new(64 << 20).unwrap());
        guest.seek(SeekFrom::Start(5 << 20)).unwrap();
        guest.write_all(b"in the middle").unwrap();
        let mut disk = tempfile::tempfile().unwrap();
        copy(&mut guest, &mut disk).unwrap();
        let found = disk.metadata().unwrap();
        assert_eq!(found.len(), 64 << 20);
        assert!(found.blocks() * 512 < 2 << 20, "{} blocks", found.blocks());
        let mut back = File::from(new(64 << 20).unwrap());
        copy(&mut disk, &mut back).unwrap();
        let back = OwnedFd::from(back);
        seal(&back).unwrap();
        let mut back = File::from(back);
        back.seek(SeekFrom::Start(5 << 20)).unwrap();
        let mut text = [0; 13];
        back.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"in the middle");
        assert!(back.write_all(b"no").is_err());
        assert!(back.set_len(1).is_err());
    }
}
