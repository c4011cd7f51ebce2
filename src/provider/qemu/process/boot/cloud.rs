//! Boots somebody else's disk, which cloud-init sets up.
//!
//! There is no agent in it: that it is up is seen by its SSH server's first words. The identity comes on a second
//! disk of cloud-init's NoCloud kind, which exists in memory only.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use fs_err as fs;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{Start, Up};
use crate::provider::qemu::process::agent::Identity;
use crate::provider::qemu::process::command::{Format, QemuCommand};
use crate::provider::qemu::process::fat;
use crate::provider::qemu::process::machine::{BootError, Machine, listen};
use crate::provider::qemu::process::rig::new_layer;

/// How often a guest that is still silent is called.
const CALL_EVERY: Duration = Duration::from_millis(500);

/// How long a server may take to say its first words. QEMU takes calls before anybody in the guest listens.
const ANSWER: Duration = Duration::from_secs(5);

/// Who logs in: everybody's cloud image has it.
const USER: &str = "root";

impl Start<'_> {
    pub(super) async fn cloud(&self, disk: &Path, slot: &mut Option<Machine>) -> Result<Up, BootError> {
        let spec = &self.site.spec;
        let (name, network) = (spec.launched.instance.as_str(), &spec.settings.network);
        let bytes = self.disk_bytes(virtual_size(disk)?)?;
        let own = new_layer(&self.fresh("disk.qcow2")?, bytes)?;
        let below = OwnedFd::from(fs::File::open(disk)?.into_file());
        let mut command = QemuCommand::new(name, &self.hardware, network);
        command.own_memory();
        command.disk(vec![(Format::Qcow2, below), (Format::Qcow2, own)]);
        let public = fs::read_to_string(self.site.dir.file("host_key.pub"))?;
        command.seed(seed(name, &self.identity, &public)?);
        listen(&self.site.console, command.console()?);
        command.network(network, &spec.program);
        let machine = slot.insert(Machine::start(self.runner, command, &self.site.console).await?);
        let port = machine.ssh_port().await?;
        machine.within(self.limit, "the guest's SSH server did not answer", greeted(port)).await?;
        Ok(Up { tier: "disk", because: None, user: USER.to_owned(), agent: None, holder: None })
    }
}

/// Calls until an SSH server says its first words.
async fn greeted(port: u16) -> io::Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    loop {
        let call = async {
            let mut words = [0; 4];
            TcpStream::connect(address).await?.read_exact(&mut words).await?;
            io::Result::Ok(words)
        };
        if let Ok(Ok([b'S', b'S', b'H', b'-'])) = timeout(ANSWER, call).await {
            return Ok(());
        }
        sleep(CALL_EVERY).await;
    }
}

/// The size of a qcow2 disk as a guest sees it, in bytes.
fn virtual_size(path: &Path) -> io::Result<u64> {
    let mut header = [0_u8; 32];
    fs::File::open(path)?.read_exact(&mut header)?;
    let (magic, size) = (header.first_chunk::<4>(), header.last_chunk::<8>());
    match (magic, size) {
        (Some(b"QFI\xfb"), Some(size)) => Ok(u64::from_be_bytes(*size)),
        _ => Err(io::Error::other(format!("{} is no qcow2 file", path.display()))),
    }
}

/// The disk that cloud-init looks for.
fn seed(instance: &str, identity: &Identity, host_public: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("greenroom-seed", MemfdFlags::CLOEXEC)?);
    let user_data = format!("#cloud-config\n{}\n", user_data(identity, host_public));
    // YAML, to which all JSON belongs.
    let meta_data = json!({ "instance-id": instance, "local-hostname": identity.hostname }).to_string();
    let files = [("user-data", user_data.as_bytes()), ("meta-data", meta_data.as_bytes())];
    file.write_all(&fat::volume("CIDATA", &files)?)?;
    // QEMU takes a descriptor in place of a file only if it allows just what the file would be opened for.
    let read_only = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(read_only.into_file().into())
}

fn user_data(identity: &Identity, host_public: &str) -> serde_json::Value {
    let mut data = json!({
        "hostname": identity.hostname,
        "disable_root": false,
        "ssh_pwauth": false,
        "ssh_authorized_keys": [identity.authorized_key.trim()],
        // No other host key than ours, which the connector expects from the first byte.
        "ssh_deletekeys": true,
        "ssh_genkeytypes": [],
        "ssh_keys": { "ed25519_private": identity.host_key, "ed25519_public": host_public.trim() },
    });
    if let Some(proxy) = &identity.proxy {
        let lines = format!("export http_proxy={proxy} https_proxy={proxy}\n");
        data["write_files"] = json!([{ "path": "/etc/profile.d/proxy.sh", "content": lines }]);
    }
    data
}

#[cfg(test)]
mod tests {
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
        assert_eq!(data["ssh_genkeytypes"], json!([]));
        assert!(
            data["write_files"][0]["content"]
                .as_str()
                .unwrap()
                .contains("http_proxy=http://10.0.2.100:3128 ")
        );
    }

    #[test]
    fn a_disk_says_how_large_it_is_or_is_none() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("disk.qcow2");
        drop(new_layer(&path, 8 << 30).unwrap());
        assert_eq!(virtual_size(&path).unwrap(), 8 << 30);
        fs::write(&path, [0; 64]).unwrap();
        assert!(virtual_size(&path).unwrap_err().to_string().contains("is no qcow2 file"));
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
}
