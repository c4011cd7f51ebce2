//! Extracts the uncompressed kernel from Debian's `vmlinuz`: a machine that starts it directly need not unpack it.

use super::tools::{Tool, ToolError, filter};

/// Offsets of the boot protocol's fields (Documentation/arch/x86/boot.rst of the kernel).
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// Why a kernel cannot be used.
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

/// The ELF file inside.
pub(super) fn unpack(vmlinuz: &[u8]) -> Result<Vec<u8>, KernelError> {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn packed(command: &[&str], bytes: &[u8]) -> Vec<u8> {
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
            let mut payload = packed(command, &elf);
            if has_size {
                payload.extend_from_slice(&5004_u32.to_le_bytes());
            }
            assert_eq!(unpack(&vmlinuz(&payload)).unwrap(), elf, "{command:?}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_said_to_be_none() {
        assert!(matches!(unpack(b"MZ"), Err(KernelError::NotBootable)));
        assert!(matches!(unpack(&vmlinuz(b"BZh9 and so on")), Err(KernelError::UnknownPacking(_))));
        let mut cut = vmlinuz(&packed(&["gzip", "-c"], b"\x7fELF"));
        cut.truncate(3 * 512 + 20);
        assert!(matches!(unpack(&cut), Err(KernelError::NotBootable)), "cut off");
        let other = vmlinuz(&packed(&["gzip", "-c"], b"no kernel"));
        assert!(matches!(unpack(&other), Err(KernelError::NoElf)));
    }
}
