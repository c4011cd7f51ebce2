//! The disk with images of containers that the host may attach, mounted where the engine looks for images.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::naming;
use crate::sys::{self, MS_NOATIME, MS_RDONLY};

/// Where the engine's settings name it. Empty as long as the host attaches nothing.
const AT: &str = "/var/lib/greenroom/image-store";
/// How the host marks the disk.
const SERIAL: &str = "greenroom-store";
const DISKS: &str = "/sys/block";

/// Mounts the host's disk. A template has seen an empty one in its place.
pub(crate) fn mount() -> io::Result<()> {
    let disk = disk(Path::new(DISKS)).map_err(naming(DISKS))?;
    let disk = disk.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no disk for images"))?;
    fs::create_dir_all(AT).map_err(naming(AT))?;
    let name = disk.to_str().ok_or(io::ErrorKind::InvalidData)?;
    sys::mount_at(name, Path::new(AT), "ext4", MS_RDONLY | MS_NOATIME, "").map_err(naming(disk.display()))
}

/// The device with the mark.
fn disk(disks: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(disks)? {
        let entry = entry?;
        // Not every disk has one.
        let serial = fs::read_to_string(entry.path().join("serial")).unwrap_or_default();
        if serial.trim() == SERIAL {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_found_by_its_mark_alone() {
        let disks = std::env::temp_dir().join(format!("greenroom-disks-{}", std::process::id()));
        for (name, serial) in [("vda", None), ("vdb", Some("other")), ("vdc", Some("greenroom-store\n"))] {
            fs::create_dir_all(disks.join(name)).unwrap();
            if let Some(serial) = serial {
                fs::write(disks.join(name).join("serial"), serial).unwrap();
            }
        }
        assert_eq!(disk(&disks).unwrap(), Some(PathBuf::from("/dev/vdc")));
        fs::remove_dir_all(disks.join("vdc")).unwrap();
        assert_eq!(disk(&disks).unwrap(), None);
        fs::remove_dir_all(disks).unwrap();
    }
}
