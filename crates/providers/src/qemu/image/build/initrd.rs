//! The first file system of a machine: the guest program as `/init`, the modules it loads, and their order.

use std::io;
use std::path::Path;

use fs_err as fs;

use super::cpio::Archive;
use super::kernel::decompressor;
use super::modules::Modules;
use super::tools::{ToolError, filter};

/// Drivers that a machine needs to find its disk and Greenroom, and the disk's file system.
const NEEDED: [&str; 6] = ["virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio_rng", "ext4"];

/// Where the modules lie in the archive.
const MODULES: &str = "lib/modules";

/// Why the initrd cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum InitrdError {
    #[error("the kernel has no module `{0}` and cannot run in a virtual machine")]
    NoModule(String),
    #[error(transparent)]
    Tool(#[from] ToolError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Creates the archive from a kernel's folder, `…/lib/modules/RELEASE`.
pub(super) fn make(modules: &Path, guest: &[u8]) -> Result<Vec<u8>, InitrdError> {
    let list = |name: &str| fs::read_to_string(modules.join(name));
    let known = Modules::read(&list("modules.dep")?, &list("modules.builtin")?);
    let files = known.in_order(&NEEDED).map_err(InitrdError::NoModule)?;
    let mut archive = Archive::default();
    archive.file("init", 0o755, guest)?;
    archive.folder("lib")?;
    archive.folder(MODULES)?;
    let mut order = Vec::new();
    for file in files {
        let bytes = unpacked(&modules.join(file))?;
        let base = file.rsplit('/').next().unwrap_or(file);
        let stem = base.split('.').next().unwrap_or(base);
        let path = format!("{MODULES}/{stem}.ko");
        archive.file(&path, 0o644, &bytes)?;
        order.push(format!("/{path}\n"));
    }
    archive.file("modules", 0o644, order.concat().as_bytes())?;
    Ok(archive.finish()?)
}

fn unpacked(path: &Path) -> Result<Vec<u8>, InitrdError> {
    let bytes = fs::read(path)?;
    match decompressor(&bytes) {
        Some(tool) => Ok(filter(tool, &bytes)?),
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(dep: &str) -> tempfile::TempDir {
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("modules.dep"), dep).unwrap();
        fs::write(temporary.path().join("modules.builtin"), "kernel/fs/ext4/ext4.ko\n").unwrap();
        temporary
    }

    #[test]
    fn the_archive_has_the_guest_program_and_the_modules_in_their_order() {
        let dep = "a/virtio.ko:\na/virtio_pci.ko: a/virtio.ko\na/virtio_blk.ko:\na/virtio_net.ko:\n\
                   a/virtio_console.ko:\na/virtio-rng.ko:\n";
        let kernel = kernel(dep);
        fs::create_dir(kernel.path().join("a")).unwrap();
        for line in dep.lines() {
            let file = line.split(':').next().unwrap();
            fs::write(kernel.path().join(file), format!("bytes of {file}")).unwrap();
        }
        let archive = make(kernel.path(), b"the program").unwrap();
        let text = String::from_utf8_lossy(&archive);
        let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is in it"));
        assert!(place("the program") < place("bytes of a/virtio.ko"));
        place("/lib/modules/virtio.ko\n/lib/modules/virtio_pci.ko\n/lib/modules/virtio_blk.ko\n");
    }

    #[test]
    fn a_kernel_that_lacks_a_driver_is_refused() {
        let kernel = kernel("a/virtio_pci.ko:\n");
        fs::create_dir(kernel.path().join("a")).unwrap();
        fs::write(kernel.path().join("a/virtio_pci.ko"), "").unwrap();
        let error = make(kernel.path(), b"").unwrap_err().to_string();
        assert_eq!(error, "the kernel has no module `virtio_blk` and cannot run in a virtual machine");
    }
}
