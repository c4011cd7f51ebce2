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

use super::{Start, StoreResult, Up};
use crate::qemu::process::agent::Identity;
use crate::qemu::process::command::{Format, QemuCommand};
use crate::qemu::process::fat;
use crate::qemu::process::machine::{BootError, Machine, listen};
use crate::qemu::process::qcow2::virtual_size;
use crate::qemu::process::rig::new_layer;

/// Interval between connections to a guest that does not answer yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How long a server may take to send its banner. QEMU accepts connections before a server in the guest listens.
const BANNER_TIMEOUT: Duration = Duration::from_secs(5);

/// The guest writes this into the agent's port when all effects of cloud-init are in place.
const SIGN: &str = "UP\n";

/// The user that logs in: every cloud image has it.
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
        let signs = command.agent()?;
        let begun = Instant::now();
        let machine = slot.insert(Machine::start(self.own, command, &self.site.console).await?);
        machine.within(self.limit, "the guest's cloud-init did not finish", sign(signs)).await?;
        let port = machine.ssh_port().await?;
        let left = self.limit.saturating_sub(begun.elapsed());
        machine.within(left, "the guest's SSH server did not respond", greeted(port)).await?;
        Ok(Up {
            tier: "disk",
            because: None,
            user: USER.to_owned(),
            agent: None,
            store: StoreResult::default(),
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
    file.write_all(&fat::volume("CIDATA", &files)?)?;
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
}
