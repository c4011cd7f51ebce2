//! Boots a foreign disk, which cloud-init configures.
//!
//! The disk has no agent. The identity comes on a second disk of cloud-init's NoCloud kind, which exists in memory
//! only. With it comes a script that cloud-init runs last, and which gives a sign over the agent's port. An SSH server
//! that answers is not enough: cloud-init restarts it after a while to turn off passwords.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::{BootAttempt, BootedGuest, MountedStore};
use crate::qemu::launch::DiskError;
use crate::qemu::process::agent::Identity;
use crate::qemu::process::command::{DiskFormat, QemuCommand};
use crate::qemu::process::machine::{BootError, Machine, listen};
use crate::qemu::process::qcow2::{new_layer, virtual_size};

/// Interval between connections to a guest that does not answer yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The time limit for a server to send its banner. QEMU accepts connections before a server in the guest listens.
const BANNER_TIMEOUT: Duration = Duration::from_secs(5);

/// The guest writes this into the agent's port when all effects of cloud-init are in place.
const SIGN: &str = "UP\n";

/// The user that logs in: every cloud image has it.
const USER: &str = "root";

impl BootAttempt<'_> {
    pub(super) async fn cloud(
        &self,
        disk: &Path,
        slot: &mut Option<Machine>,
    ) -> Result<BootedGuest, BootError> {
        let spec = &self.site.spec;
        let name = spec.launched.instance.as_str();
        let network = &spec.settings.network;
        let bytes = self.disk_bytes(virtual_size(disk).map_err(DiskError::Unreadable)?)?;
        let own = new_layer(&self.fresh("disk.qcow2")?, bytes)?;
        let below = OwnedFd::from(fs::File::open(disk)?.into_file());
        let mut command = QemuCommand::new(name, &self.hardware, network);
        command.own_memory();
        command.disk(vec![(DiskFormat::Qcow2, below), (DiskFormat::Qcow2, own)]);
        let public = fs::read_to_string(self.site.dir.file("host_key.pub"))?;
        command.seed(seed(name, &self.identity, &public)?);
        listen(&self.site.console, command.console()?);
        command.network(network, &spec.program);
        let signs = command.agent()?;
        let begun = Instant::now();
        let machine = slot.insert(Machine::start(self.own, command, &self.site.console).await?);
        machine.within(self.limit, "the guest's cloud-init did not finish", sign(signs)).await?;
        let port = machine.ssh_port().await?;
        let left = self.limit.saturating_sub(begun.elapsed());
        machine.within(left, "the guest's SSH server did not respond", greeted(port)).await?;
        Ok(BootedGuest {
            tier: "disk",
            because: None,
            user: USER.to_owned(),
            agent: None,
            store: MountedStore::default(),
            images: Vec::new(),
            without: Vec::new(),
            holder: None,
        })
    }
}

/// Waits for the guest's sign.
async fn sign(mut port: UnixStream) -> io::Result<()> {
    port.read_exact(&mut [0; SIGN.len()]).await?;
    Ok(())
}

/// Connects until an SSH server sends its banner.
async fn greeted(port: u16) -> io::Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    loop {
        let connection = async {
            let mut banner = [0; 4];
            TcpStream::connect(address).await?.read_exact(&mut banner).await?;
            io::Result::Ok(banner)
        };
        if let Ok(Ok([b'S', b'S', b'H', b'-'])) = timeout(BANNER_TIMEOUT, connection).await {
            return Ok(());
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// The disk that cloud-init reads.
fn seed(instance: &str, identity: &Identity, host_public: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("greenroom-seed", MemfdFlags::CLOEXEC)?);
    let user_data = parts(&user_data(identity, host_public));
    // YAML, to which all JSON belongs.
    let meta_data = json!({ "instance-id": instance, "local-hostname": identity.hostname }).to_string();
    let files = [("user-data", user_data.as_bytes()), ("meta-data", meta_data.as_bytes())];
    file.write_all(&fat_volume("CIDATA", &files)?)?;
    // QEMU accepts a descriptor in place of a file only if it has exactly the access mode that QEMU would open with.
    let read_only = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(read_only.into_file().into())
}

/// Settings and script in one file. The script is a part of its own because a command among the settings would replace
/// those of the image; by its name it runs after them.
fn parts(settings: &serde_json::Value) -> String {
    let sign = SIGN.trim_end();
    format!(
        "Content-Type: multipart/mixed; boundary=\"greenroom\"\nMIME-Version: 1.0\n\n\
         --greenroom\nContent-Type: text/cloud-config\n\n\
         #cloud-config\n{settings}\n\
         --greenroom\nContent-Type: text/x-shellscript\n\
         Content-Disposition: attachment; filename=\"zz-greenroom\"\n\n\
         #!/bin/sh\necho {sign} > /dev/virtio-ports/greenroom.0\n\
         --greenroom--\n"
    )
}

fn user_data(identity: &Identity, host_public: &str) -> serde_json::Value {
    let mut data = json!({
        "hostname": identity.hostname,
        "disable_root": false,
        "ssh_pwauth": false,
        "ssh_authorized_keys": [identity.authorized_key.trim()],
        // Only the host key of the launch, which the connector expects from the first byte.
        "ssh_deletekeys": true,
        "ssh_keys": { "ed25519_private": identity.host_key, "ed25519_public": host_public.trim() },
    });
    if let Some(proxy) = &identity.proxy {
        // Read at every login, unlike the profile: a stage does not run in a login shell.
        let lines = format!("\nhttp_proxy={proxy}\nhttps_proxy={proxy}\n");
        data["write_files"] = json!([{ "path": "/etc/environment", "content": lines, "append": true }]);
    }
    data
}

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
pub(super) fn fat_volume(label: &str, files: &[(&str, &[u8])]) -> io::Result<Vec<u8>> {
    let mut table = vec![0xff8, END_OF_CHAIN];
    let mut root = directory_entry(&padded(label), IS_LABEL, 0, 0);
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
        root.extend(directory_entry(&short, 0, first, u32::try_from(content.len()).unwrap_or(u32::MAX)));
        data.extend_from_slice(content);
        data.resize(data.len().next_multiple_of(SECTOR).max(SECTOR), 0);
    }
    let mut volume = boot_sector(label);
    volume.extend(packed_table(&table));
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
fn packed_table(table: &[u16]) -> Vec<u8> {
    let pair = |pair: &[u16]| {
        let a = pair[0];
        let b = pair.get(1).copied().unwrap_or(0);
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

/// The short name of a file: `USER-D~1` for `user-data`.
fn short_name(name: &str) -> [u8; 11] {
    let front: String = name.chars().take(6).collect::<String>().to_ascii_uppercase();
    padded(&format!("{front}~1"))
}

fn long_name(name: &str, short: &[u8; 11]) -> Vec<u8> {
    let sum = short.iter().fold(0_u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    // The last, and only, part of the name.
    let mut entry = vec![0; 32];
    entry[0] = 0x41;
    entry[11] = IS_LONG_NAME;
    entry[13] = sum;
    let rest = std::iter::once(0).chain(std::iter::repeat(0xffff));
    for (place, unit) in LONG_NAME.iter().zip(name.encode_utf16().chain(rest)) {
        entry[*place..place + 2].copy_from_slice(&unit.to_le_bytes());
    }
    entry
}

fn directory_entry(name: &[u8; 11], kind: u8, first: u16, bytes: u32) -> Vec<u8> {
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
    fn the_guest_gets_our_host_key_and_lets_in_ours_alone() {
        let identity = Identity {
            hostname: "linux-1".to_owned(),
            host_key: "-----BEGIN\nkey\n-----END\n".to_owned(),
            authorized_key: "ssh-ed25519 AAAA client\n".to_owned(),
            proxy: Some("http://10.0.2.100:3128".to_owned()),
        };
        let data = user_data(&identity, "ssh-ed25519 BBBB\n");
        assert_eq!(data["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA client"]));
        assert_eq!(data["ssh_keys"]["ed25519_private"], identity.host_key);
        assert_eq!(data["ssh_deletekeys"], true);
        let environment = data["write_files"][0]["content"].as_str().unwrap();
        assert!(environment.contains("\nhttp_proxy=http://10.0.2.100:3128\n"), "{environment}");
    }

    #[test]
    fn the_sign_is_given_behind_the_settings_by_a_script_of_its_own() {
        let text = parts(&json!({ "hostname": "linux-1" }));
        let parts: Vec<&str> = text.split("--greenroom").collect();
        let [head, settings, script, "--\n"] = parts.as_slice() else { panic!("{text}") };
        assert!(head.contains("boundary=\"greenroom\"\n") && head.ends_with("\n\n"), "{head}");
        assert!(settings.ends_with("\n\n#cloud-config\n{\"hostname\":\"linux-1\"}\n"), "{settings}");
        assert!(script.ends_with("\n\n#!/bin/sh\necho UP > /dev/virtio-ports/greenroom.0\n"), "{script}");
    }

    #[tokio::test]
    async fn a_server_that_only_takes_calls_is_not_up() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            drop(listener.accept().await.unwrap());
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"SSH-2.0-x\r\n").await.unwrap();
            stream
        };
        let (up, _stream) = tokio::join!(greeted(port), server);
        up.unwrap();
    }

    #[test]
    fn mtools_reads_back_what_was_written() {
        let long = "line\n".repeat(3000);
        let volume = fat_volume("CIDATA", &[("user-data", long.as_bytes()), ("meta-data", b"{}")]).unwrap();
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
        let volume = fat_volume("CIDATA", &[("user-data", &content), ("meta-data", b"m")]).unwrap();
        assert_eq!(&volume[510..512], [0x55, 0xaa]);
        // Clusters 2 -> 3 -> end, 4 -> end.
        assert_eq!(&volume[SECTOR..SECTOR + 8], [0xf8, 0xff, 0xff, 0x03, 0xf0, 0xff, 0xff, 0x0f]);
        let data = usize::from(FIRST_DATA) * SECTOR;
        assert_eq!((volume[data], volume[data + SECTOR], volume[data + 2 * SECTOR]), (7, 7, b'm'));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let large = vec![0; usize::from(SECTORS) * SECTOR];
        assert!(fat_volume("CIDATA", &[("user-data", &large)]).is_err());
        assert!(fat_volume("CIDATA", &[("a-name-that-is-long", b"")]).is_err());
    }
}
