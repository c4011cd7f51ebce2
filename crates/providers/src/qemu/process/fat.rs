//! Writes a small FAT12 volume with a few files in its root, from which cloud-init reads a machine's identity.

use std::io;

const SECTOR: usize = 512;
/// One sector is one cluster.
const SECTORS: u16 = 512;
const FAT_SECTORS: u16 = 2;
/// Entries of the root directory: 16 in a sector.
const ROOT_ENTRIES: u16 = 64;
const ROOT_SECTORS: u16 = ROOT_ENTRIES / 16;
/// Behind the boot sector, the table and the root.
const FIRST_DATA: u16 = 1 + FAT_SECTORS + ROOT_SECTORS;

const END_OF_CHAIN: u16 = 0xfff;
const IS_LABEL: u8 = 0x08;
const IS_LONG_NAME: u8 = 0x0f;

/// Offsets of a long name's characters in its entry: 5, 6 and 2 characters of 16 bits.
const LONG_NAME: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];

/// A volume with a label (11 characters) and files (names of up to 13 ASCII characters, no two with the same first
/// six).
pub(super) fn volume(label: &str, files: &[(&str, &[u8])]) -> io::Result<Vec<u8>> {
    let mut table = vec![0xff8, END_OF_CHAIN];
    let mut root = entry(&padded(label), IS_LABEL, 0, 0);
    let mut data = Vec::new();
    for (name, content) in files {
        let first = u16::try_from(table.len()).unwrap_or(u16::MAX);
        let clusters = u16::try_from(content.len().div_ceil(SECTOR).max(1)).unwrap_or(u16::MAX);
        if usize::from(first) + usize::from(clusters) > usize::from(SECTORS - FIRST_DATA) + 2
            || name.len() > 13
        {
            return Err(io::Error::other(format!("`{name}` does not fit on the seed disk")));
        }
        table.extend((first + 1..first + clusters).chain([END_OF_CHAIN]));
        let short = short_name(name);
        root.extend(long_name(name, &short));
        root.extend(entry(&short, 0, first, u32::try_from(content.len()).unwrap_or(u32::MAX)));
        data.extend_from_slice(content);
        data.resize(data.len().next_multiple_of(SECTOR).max(SECTOR), 0);
    }
    let mut volume = boot_sector(label);
    volume.extend(packed(&table));
    volume.resize(usize::from(1 + FAT_SECTORS) * SECTOR, 0);
    volume.extend(root);
    volume.resize(usize::from(FIRST_DATA) * SECTOR, 0);
    volume.extend(data);
    volume.resize(usize::from(SECTORS) * SECTOR, 0);
    Ok(volume)
}

fn boot_sector(label: &str) -> Vec<u8> {
    let mut sector = vec![0xeb, 0x3c, 0x90];
    sector.extend(b"GREENROM");
    sector.extend(512_u16.to_le_bytes()); // bytes of a sector
    sector.push(1); // sectors of a cluster
    sector.extend(1_u16.to_le_bytes()); // sectors in front of the table
    sector.push(1); // tables
    sector.extend(ROOT_ENTRIES.to_le_bytes());
    sector.extend(SECTORS.to_le_bytes());
    sector.push(0xf8); // a fixed disk
    sector.extend(FAT_SECTORS.to_le_bytes());
    sector.extend(32_u16.to_le_bytes()); // sectors of a track
    sector.extend(16_u16.to_le_bytes()); // heads: mtools 4.0.32 refuses a volume without
    sector.extend([0; 8]); // hidden and further sectors: none
    sector.extend([0x80, 0, 0x29]); // drive; an extended header follows
    sector.extend([0; 4]); // serial number
    sector.extend(padded(label));
    sector.extend(b"FAT12   ");
    sector.resize(SECTOR - 2, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

/// Two entries of 12 bits in three bytes.
fn packed(table: &[u16]) -> Vec<u8> {
    let pair = |pair: &[u16]| {
        let (a, b) = (pair[0], pair.get(1).copied().unwrap_or(0));
        let [low, middle, high, _] = (u32::from(a) | u32::from(b) << 12).to_le_bytes();
        [low, middle, high]
    };
    table.chunks(2).flat_map(pair).collect()
}

fn padded(label: &str) -> [u8; 11] {
    let mut name = [b' '; 11];
    for (place, byte) in name.iter_mut().zip(label.bytes()) {
        *place = byte;
    }
    name
}

/// `user-data` is `USER-D~1`.
fn short_name(name: &str) -> [u8; 11] {
    let front: String = name.chars().take(6).collect::<String>().to_ascii_uppercase();
    padded(&format!("{front}~1"))
}

fn long_name(name: &str, short: &[u8; 11]) -> Vec<u8> {
    let sum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    // The last, and only, part of the name.
    let mut entry = vec![0; 32];
    (entry[0], entry[11], entry[13]) = (0x41, IS_LONG_NAME, sum);
    let rest = std::iter::once(0).chain(std::iter::repeat(0xffff));
    for (place, unit) in LONG_NAME.iter().zip(name.encode_utf16().chain(rest)) {
        entry[*place..place + 2].copy_from_slice(&unit.to_le_bytes());
    }
    entry
}

fn entry(name: &[u8; 11], kind: u8, first: u16, bytes: u32) -> Vec<u8> {
    let mut entry = name.to_vec();
    entry.push(kind);
    // No times: any date is sufficient, such as 1980.
    entry.resize(26, 0);
    entry.extend(first.to_le_bytes());
    entry.extend(bytes.to_le_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::skipped::skipped;

    use super::*;

    #[test]
    fn mtools_reads_back_what_was_written() {
        let long = "line\n".repeat(3000);
        let volume = volume("CIDATA", &[("user-data", long.as_bytes()), ("meta-data", b"{}")]).unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("seed.img");
        fs_err::write(&path, &volume).unwrap();
        let read = |program: &str, file: &[&str]| {
            let ran = std::process::Command::new(program).arg("-i").arg(&path).args(file).output();
            ran.ok().map(|ran| {
                assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr));
                String::from_utf8_lossy(&ran.stdout).into_owned()
            })
        };
        let Some(text) = read("mtype", &["::user-data"]) else { return skipped("mtools are missing") };
        assert!(text == long, "{} bytes of {}", text.len(), long.len());
        assert_eq!(read("mtype", &["::meta-data"]).unwrap(), "{}");
        assert!(read("mlabel", &["-s", "::"]).unwrap().contains("CIDATA"));
    }

    #[test]
    fn files_follow_the_root_one_cluster_after_the_other() {
        let content = [7; SECTOR + 1];
        let volume = volume("CIDATA", &[("user-data", &content), ("meta-data", b"m")]).unwrap();
        assert_eq!(&volume[510..512], [0x55, 0xaa]);
        // Clusters 2 -> 3 -> end, 4 -> end.
        assert_eq!(&volume[SECTOR..SECTOR + 8], [0xf8, 0xff, 0xff, 0x03, 0xf0, 0xff, 0xff, 0x0f]);
        let data = usize::from(FIRST_DATA) * SECTOR;
        assert_eq!((volume[data], volume[data + SECTOR], volume[data + 2 * SECTOR]), (7, 7, b'm'));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let large = vec![0; usize::from(SECTORS) * SECTOR];
        assert!(volume("CIDATA", &[("user-data", &large)]).is_err());
        assert!(volume("CIDATA", &[("a-name-that-is-long", b"")]).is_err());
    }
}
