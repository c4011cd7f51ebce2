//! The kernel and the initrd of a machine: Debian's kernel, uncompressed, and the guest program with the modules that it
//! loads.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;

use cpio::newc::{Builder, ModeFileType, trailer};
use fs_err as fs;

use super::tools::{Tool, ToolError, filter};

/// Offsets of the boot protocol's fields (Documentation/arch/x86/boot.rst of the kernel).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The reason a kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("it does not follow the x86 boot protocol 2.08 or later")]
    NotBootable,
    #[error("its compression format is unknown (it begins with {0:02x?})")]
    UnknownPacking([u8; 4]),
    #[error("its compressed content is not an ELF file")]
    NoElf,
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// Unpacks the ELF file inside a kernel.
pub(super) fn unpack_kernel(vmlinuz: &[u8]) -> Result<Vec<u8>, KernelError> {
    let payload = payload(vmlinuz).ok_or(KernelError::NotBootable)?;
    let elf = match decompressor(payload) {
        // The kernel's build appends the unpacked size, 4 bytes that only gzip has in its own format.
        Some(Tool::Gzip) => filter(Tool::Gzip, payload)?,
        Some(tool) => filter(tool, &payload[..payload.len() - 4])?,
        None => {
            let start = payload.first_chunk().copied().unwrap_or_default();
            return Err(KernelError::UnknownPacking(start));
        }
    };
    if elf.starts_with(b"\x7fELF") { Ok(elf) } else { Err(KernelError::NoElf) }
}

fn payload(vmlinuz: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        let bytes = vmlinuz.get(at..at + 4)?.first_chunk().copied()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if vmlinuz.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    // Zero stands for four, for historical reasons; one more sector is the boot sector itself.
    let sectors = match vmlinuz[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + word(PAYLOAD_OFFSET)?;
    let payload = vmlinuz.get(start..start.checked_add(word(PAYLOAD_LENGTH)?)?)?;
    (payload.len() > 8).then_some(payload)
}

/// The tool that decompresses a file, by its first bytes.
pub(super) fn decompressor(packed: &[u8]) -> Option<Tool> {
    let known: [(&[u8], Tool); 4] = [
        (b"\x1f\x8b", Tool::Gzip),
        (b"\xfd7zXZ\0", Tool::Xz),
        (b"\x28\xb5\x2f\xfd", Tool::Zstd),
        (b"\x02\x21\x4c\x18", Tool::Lz4),
    ];
    known.into_iter().find(|(magic, _)| packed.starts_with(magic)).map(|(_, tool)| tool)
}

/// Drivers that a machine needs to find its disk and Greenroom, and the disk's file system.
const NEEDED: [&str; 6] = ["virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio_rng", "ext4"];

/// The folder of the modules in the archive.
const MODULES: &str = "lib/modules";

/// The reason the initrd cannot be created.
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
pub(super) fn make_initrd(modules: &Path, guest: &[u8]) -> Result<Vec<u8>, InitrdError> {
    let list = |name: &str| fs::read_to_string(modules.join(name));
    let known = Modules::read(&list("modules.dep")?, &list("modules.builtin")?);
    let files = known.in_order(&NEEDED)?;
    let mut archive = Archive::default();
    archive.file("init", 0o755, guest)?;
    archive.folder("lib")?;
    archive.folder(MODULES)?;
    let mut order = Vec::new();
    for file in files {
        let bytes = unpacked_module(&modules.join(file))?;
        let base = file.rsplit('/').next().unwrap_or(file);
        let stem = base.split('.').next().unwrap_or(base);
        let path = format!("{MODULES}/{stem}.ko");
        archive.file(&path, 0o644, &bytes)?;
        order.push(format!("/{path}\n"));
    }
    archive.file("modules", 0o644, order.concat().as_bytes())?;
    Ok(archive.finish()?)
}

fn unpacked_module(path: &Path) -> Result<Vec<u8>, InitrdError> {
    let bytes = fs::read(path)?;
    match decompressor(&bytes) {
        Some(tool) => Ok(filter(tool, &bytes)?),
        None => Ok(bytes),
    }
}

/// The content of `modules.dep` and `modules.builtin` of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    /// From a module's name to its file and to those that it needs, files relative to the kernel's folder.
    by_name: BTreeMap<String, KernelModule>,
    built_in: Vec<String>,
}

#[derive(Debug)]
struct KernelModule {
    file: String,
    needs: Vec<String>,
}

impl Modules {
    pub(super) fn read(dep: &str, builtin: &str) -> Self {
        let entries = dep.lines().filter_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            Some((module_name(file), KernelModule { file: file.to_owned(), needs }))
        });
        Self { by_name: entries.collect(), built_in: builtin.lines().map(module_name).collect() }
    }

    /// The files of these modules, each after those that it needs; built-in modules have no file.
    fn in_order(&self, names: &[&str]) -> Result<Vec<&str>, InitrdError> {
        let mut order = Vec::new();
        for name in names {
            self.add(&name.replace('-', "_"), &mut order)?;
        }
        Ok(order)
    }

    fn add<'a>(&'a self, name: &str, order: &mut Vec<&'a str>) -> Result<(), InitrdError> {
        let Some(entry) = self.by_name.get(name) else {
            let is_there = self.built_in.iter().any(|built_in| built_in == name);
            return if is_there { Ok(()) } else { Err(InitrdError::NoModule(name.to_owned())) };
        };
        if order.contains(&entry.file.as_str()) {
            return Ok(());
        }
        // The list is complete; the module that must come first stands last in it.
        for needed in entry.needs.iter().rev() {
            if let Some(needed) =
                self.by_name.get(&module_name(needed)).filter(|n| !order.contains(&n.file.as_str()))
            {
                order.push(&needed.file);
            }
        }
        order.push(&entry.file);
        Ok(())
    }
}

/// The name by which the kernel calls a module: `virtio_rng` for `kernel/drivers/virtio/virtio-rng.ko.xz`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

/// An archive that is being written. The same entries make the same bytes.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// A directory; the ones above it come first.
    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(
            Builder::new(path).mode(0o755).nlink(2).set_mode_file_type(ModeFileType::Directory),
            path,
            &[],
        )
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(Builder::new(path).mode(mode).set_mode_file_type(ModeFileType::Regular), path, content)
    }

    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        trailer(self.bytes)
    }

    /// Paths are relative: `lib/modules`. Owned by root, from 1970.
    fn entry(&mut self, builder: Builder, path: &str, content: &[u8]) -> io::Result<()> {
        let too_large = |_| io::Error::new(io::ErrorKind::FileTooLarge, path.to_owned());
        let size = u32::try_from(content.len()).map_err(too_large)?;
        self.entries += 1;
        let mut writer = builder.ino(self.entries).write(&mut self.bytes, size);
        writer.write_all(content)?;
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use greenroom_testkit::skipped::skipped;

    use super::*;

    fn compressed(command: &[&str], bytes: &[u8]) -> Vec<u8> {
        let mut packer = Command::new(command[0]);
        packer.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = packer.spawn().expect("lz4, xz-utils, zstd and gzip are installed");
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap().stdout
    }

    /// A boot sector, two of set-up, 16 bytes of code, the payload.
    fn vmlinuz(payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 3 * 512 + 16];
        file[SETUP_SECTORS] = 2;
        file[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        file[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        file[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        file.extend_from_slice(payload);
        file.extend_from_slice(b"what follows");
        file
    }

    #[test]
    fn kernels_are_unpacked_however_they_were_packed() {
        let elf = [b"\x7fELF".as_slice(), &[7; 5000]].concat();
        for (command, has_size) in [
            (&["lz4", "-l", "-c", "-"][..], true),
            (&["xz", "-c"], true),
            (&["zstd", "-c", "-q"], true),
            (&["gzip", "-c"], false),
        ] {
            let mut payload = compressed(command, &elf);
            if has_size {
                payload.extend_from_slice(&5004_u32.to_le_bytes());
            }
            assert_eq!(unpack_kernel(&vmlinuz(&payload)).unwrap(), elf, "{command:?}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_said_to_be_none() {
        assert!(matches!(unpack_kernel(b"MZ"), Err(KernelError::NotBootable)));
        assert!(matches!(unpack_kernel(&vmlinuz(b"BZh9 and so on")), Err(KernelError::UnknownPacking(_))));
        let mut cut = vmlinuz(&compressed(&["gzip", "-c"], b"\x7fELF"));
        cut.truncate(3 * 512 + 20);
        assert!(matches!(unpack_kernel(&cut), Err(KernelError::NotBootable)), "cut off");
        let other = vmlinuz(&compressed(&["gzip", "-c"], b"no kernel"));
        assert!(matches!(unpack_kernel(&other), Err(KernelError::NoElf)));
    }

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
        let archive = make_initrd(kernel.path(), b"the program").unwrap();
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
        let error = make_initrd(kernel.path(), b"").unwrap_err().to_string();
        assert_eq!(error, "the kernel has no module `virtio_blk` and cannot run in a virtual machine");
    }

    const DEP: &str = "\
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/net/core/failover.ko:
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko \
kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
";

    #[test]
    fn each_module_comes_once_and_after_those_that_it_needs() {
        let modules = Modules::read(DEP, "kernel/fs/ext4/ext4.ko\n");
        let order = modules.in_order(&["virtio_net", "ext4", "virtio-rng"]).unwrap();
        let names: Vec<String> = order.iter().map(|file| module_name(file)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "failover", "net_failover", "virtio_net", "virtio_rng"]);
    }

    #[test]
    fn a_module_that_the_kernel_lacks_is_named() {
        let modules = Modules::read(DEP, "");
        let missing = modules.in_order(&["virtio_net", "ext4"]);
        assert!(matches!(missing, Err(InitrdError::NoModule(name)) if name == "ext4"));
    }

    fn sample() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.folder("lib").unwrap();
        archive.file("lib/a", 0o644, b"hello").unwrap();
        archive.file("init", 0o755, b"").unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn every_part_begins_at_a_multiple_of_four() {
        let bytes = sample();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 4, "three entries and the last");
        assert!(starts.iter().all(|at| at % 4 == 0), "{starts:?}");
        assert_eq!(bytes, sample(), "nothing in it depends on the day");
    }

    #[test]
    fn cpio_itself_reads_it() {
        let mut cpio = Command::new("cpio");
        cpio.args(["--list", "--verbose", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = cpio.spawn() else { return skipped("cpio is missing") };
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        let output = child.wait_with_output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success());
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[0].starts_with("drwxr-xr-x   2 root"), "{listed}");
        assert!(lines[1].starts_with("-rw-r--r--") && lines[1].ends_with(" lib/a"), "{listed}");
        assert!(lines[2].starts_with("-rwxr-xr-x"), "{listed}");
    }
}
