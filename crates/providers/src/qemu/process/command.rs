//! QEMU's command line, and how a machine of a Greenroom image is assembled from it.
//!
//! QEMU opens no path of Greenroom's: it inherits disks, kernel and memory as descriptors, and its sockets are pairs
//! whose other end is the supervisor's. So it needs no access to Greenroom's files, and leaves nothing on the disk.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs_err as fs;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::exec::PassedDescriptor;
use super::machine::{Console, listen};
use crate::qemu::accel::Accelerator;
use crate::qemu::image::Image;
use crate::qemu::launch::TRANSLATED;
use crate::qemu::settings::Network;

/// The hardware that the guest sees. A resumed clone must have exactly the hardware of its template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::qemu) struct Hardware {
    pub(in crate::qemu) engine: Accelerator,
    pub(in crate::qemu) vcpus: u32,
    /// Bytes.
    pub(in crate::qemu) memory: u64,
}

/// The way the guest uses a memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::qemu) enum Sharing {
    /// The guest writes into the file.
    Shared,
    /// The guest's writes are private; the file does not change.
    Private,
}

/// The format of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::qemu) enum DiskFormat {
    Raw,
    Qcow2,
}

impl DiskFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Denies forks, changes of privileges and scheduling, and obsolete system calls.
const SANDBOX: &str = "on,obsolete=deny,resourcecontrol=deny,elevateprivileges=deny,spawn=deny";

/// QEMU starts a proxy's helper for each connection, in a session of its own, which its filter takes for a change of
/// privileges. Real changes are impossible all the same: `exec` gives them up irrevocably before it runs QEMU.
const SANDBOX_WITH_HELPER: &str = "on,obsolete=deny,resourcecontrol=deny,elevateprivileges=allow,spawn=allow";

/// The guest program finds the disk with the image store by it.
const STORE_SERIAL: &str = "greenroom-store";

/// The size of the empty disk in place of an image store, in bytes: larger than any store.
const PLACEHOLDER: u64 = 1 << 42;

/// A command line with the descriptors that it passes on.
#[derive(Debug)]
pub(in crate::qemu) struct QemuCommand {
    pub(super) arguments: Vec<String>,
    pub(super) passed: Vec<PassedDescriptor>,
    sets: u32,
}

impl QemuCommand {
    pub(in crate::qemu) fn new(name: &str, hardware: &Hardware, network: &Network) -> Self {
        let mut command = Self { arguments: Vec::new(), passed: Vec::new(), sets: 0 };
        command.add("-name", name);
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            command.arguments.push(flag.to_owned());
        }
        command.add("-display", "none");
        let has_helper = matches!(network, Network::Proxy(_));
        command.add("-sandbox", if has_helper { SANDBOX_WITH_HELPER } else { SANDBOX });
        match hardware.engine {
            Accelerator::Kvm => {
                command.add("-accel", "kvm");
                command.add("-cpu", "host");
            }
            Accelerator::Tcg => {
                command.add("-accel", format!("tcg,tb-size={}", TRANSLATED >> 20));
                command.add("-cpu", "max");
            }
        }
        command.add("-smp", hardware.vcpus.to_string());
        command.add("-m", format!("{}M", hardware.memory >> 20));
        command.add("-object", "rng-builtin,id=random");
        command.add("-device", "virtio-rng-pci,rng=random");
        command
    }

    fn add(&mut self, option: &str, value: impl Into<String>) {
        self.arguments.extend([option.to_owned(), value.into()]);
    }

    /// Memory that is QEMU's own.
    pub(in crate::qemu) fn own_memory(&mut self) {
        self.add("-machine", "q35,dump-guest-core=off");
    }

    /// Memory that is a file.
    pub(in crate::qemu) fn memory(&mut self, file: OwnedFd, bytes: u64, sharing: Sharing) {
        let path = self.path(file);
        let share = if sharing == Sharing::Shared { "on" } else { "off" };
        let backend =
            format!("memory-backend-file,id=ram,size={bytes},mem-path={path},share={share},dump=off");
        self.add("-object", backend);
        self.add("-machine", "q35,dump-guest-core=off,memory-backend=ram");
    }

    /// The kernel that is started without a boot loader.
    pub(in crate::qemu) fn kernel(
        &mut self,
        kernel: &Path,
        initrd: &Path,
        parameters: &str,
    ) -> io::Result<()> {
        for (option, file) in [("-kernel", kernel), ("-initrd", initrd)] {
            let path = self.path(fs_err::File::open(file)?.into_file().into());
            self.add(option, path);
        }
        self.add("-append", parameters);
        Ok(())
    }

    /// The disk: layers from the read-only base to the one that the guest writes into.
    pub(in crate::qemu) fn disk(&mut self, layers: Vec<(DiskFormat, OwnedFd)>) {
        let top = layers.len().saturating_sub(1);
        for (at, (format, file)) in layers.into_iter().enumerate() {
            let file =
                json!({ "driver": "file", "filename": self.set(file), "locking": "off", "discard": "unmap" });
            let mut node = json!({
                "node-name": format!("disk{at}"), "driver": format.name(), "file": file,
                "read-only": at < top, "discard": "unmap",
                // A disk that is removed with its machine need not survive a power cut of the runner host.
                "cache": { "no-flush": true },
            });
            if format == DiskFormat::Qcow2 {
                // Never the one that the file itself names.
                node["backing"] =
                    at.checked_sub(1).map_or(Value::Null, |below| json!(format!("disk{below}")));
            }
            self.add("-blockdev", node.to_string());
        }
        self.add("-device", format!("virtio-blk-pci,drive=disk{top},bootindex=1"));
    }

    /// A second, read-only disk.
    pub(in crate::qemu) fn seed(&mut self, file: OwnedFd) {
        let file = json!({ "driver": "file", "filename": self.set(file), "locking": "off" });
        let node = json!({ "node-name": "seed", "driver": "raw", "file": file, "read-only": true });
        self.add("-blockdev", node.to_string());
        self.add("-device", "virtio-blk-pci,drive=seed");
    }

    /// The read-only disk with an image store. Without one, a larger empty disk stands in its place: a template has seen
    /// that, and its clones never read behind the end of the file system.
    pub(in crate::qemu) fn store(&mut self, file: Option<OwnedFd>) {
        let node = match file {
            Some(file) => {
                let file = json!({ "driver": "file", "filename": self.set(file), "locking": "off" });
                json!({ "node-name": "store", "driver": "raw", "file": file, "read-only": true })
            }
            None => json!({
                "node-name": "store", "driver": "null-co", "size": PLACEHOLDER, "read-zeroes": true, "read-only": true,
            }),
        };
        self.add("-blockdev", node.to_string());
        self.add("-device", format!("virtio-blk-pci,drive=store,serial={STORE_SERIAL}"));
    }

    /// A network in which the guest is 10.0.2.15. `program` is Greenroom's executable, for the proxy's helper.
    pub(in crate::qemu) fn network(&mut self, network: &Network, program: &Path) {
        let restrict = match network {
            Network::Isolated | Network::Proxy(_) => "on",
            // The rules for QEMU's user judge what the guest reaches.
            Network::Internet(_) | Network::Open => "off",
        };
        let mut options = format!("user,id=net,ipv6=off,restrict={restrict},hostfwd=tcp:127.0.0.1:0-:22");
        if let Network::Proxy(target) = network {
            // Parsed like a shell's command line; a comma would end the option.
            let program = program.display().to_string().replace('\'', "'\\''").replace(',', ",,");
            let helper = format!("'{program}' instance qemu proxy {target}");
            options = format!("{options},guestfwd=tcp:10.0.2.100:3128-cmd:{helper}");
        }
        self.add("-netdev", options);
        self.add("-device", "virtio-net-pci,netdev=net,romfile=");
    }

    /// The machine protocol; returns the supervisor's end.
    pub(in crate::qemu) fn monitor(&mut self) -> io::Result<UnixStream> {
        let stream = self.socket("qmp")?;
        self.add("-mon", "chardev=qmp,mode=control");
        Ok(stream)
    }

    /// The agent's port; returns the supervisor's end.
    pub(in crate::qemu) fn agent(&mut self) -> io::Result<UnixStream> {
        let stream = self.socket("agent")?;
        self.add("-device", "virtio-serial-pci");
        self.add("-device", "virtserialport,chardev=agent,name=greenroom.0");
        Ok(stream)
    }

    /// The console; returns the supervisor's end.
    pub(in crate::qemu) fn console(&mut self) -> io::Result<UnixStream> {
        let stream = self.socket("console")?;
        self.add("-serial", "chardev:console");
        Ok(stream)
    }

    /// QEMU waits for a command with the state to resume from.
    pub(in crate::qemu) fn incoming(&mut self) {
        self.add("-incoming", "defer");
    }

    /// Passes on a descriptor that a later command of the machine protocol names.
    pub(in crate::qemu) fn pass(&mut self, file: OwnedFd) -> i32 {
        let passed = PassedDescriptor::new(file);
        let number = passed.number();
        self.passed.push(passed);
        number
    }

    fn path(&mut self, file: OwnedFd) -> String {
        let (path, passed) = PassedDescriptor::path(file);
        self.passed.push(passed);
        path
    }

    /// Passes on a descriptor that QEMU duplicates instead of opening a file; returns its path.
    fn set(&mut self, file: OwnedFd) -> String {
        let set = self.sets;
        self.sets += 1;
        let number = self.pass(file);
        self.add("-add-fd", format!("fd={number},set={set}"));
        format!("/dev/fdset/{set}")
    }

    fn socket(&mut self, name: &str) -> io::Result<UnixStream> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let number = self.pass(theirs);
        self.add("-chardev", format!("socket,id={name},fd={number}"));
        let ours = std::os::unix::net::UnixStream::from(ours);
        ours.set_nonblocking(true)?;
        UnixStream::from_std(ours)
    }
}

/// Kernel parameters of every guest. A panic reboots, which ends the machine.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on net.ifnames=0";

/// Further parameters of an emulated guest. An emulated processor does not speculate. It reuses translated code only
/// at the same address: with every program at an address of its own, each start of one would be translated anew. On a busy
/// runner host, an emulated timer is so late that the kernel takes it for a broken one, and panics; KVM makes that check
/// needless.
const EMULATED: &str = " mitigations=off nokaslr norandmaps no_timer_check";

/// The parameters of a guest's kernel.
pub(super) fn kernel_parameters(engine: Accelerator) -> String {
    let more = if engine == Accelerator::Tcg { EMULATED } else { "" };
    format!("{KERNEL_PARAMETERS}{more}")
}

/// The parts of a machine.
#[derive(Debug)]
pub(super) struct Rig<'a> {
    /// Shown in process lists.
    pub(super) name: &'a str,
    pub(super) hardware: &'a Hardware,
    pub(super) network: &'a Network,
    pub(super) image: &'a Image,
    /// Greenroom's executable.
    pub(super) program: &'a Path,
    /// The data of an image store.
    pub(super) store: Option<&'a fs::File>,
}

/// Guest memory that is a file, and how it is shared.
#[derive(Debug)]
pub(super) struct MemoryFile {
    pub(super) file: OwnedFd,
    pub(super) sharing: Sharing,
}

impl Rig<'_> {
    /// The command line, and the supervisor's end of the agent's port. `layers` lie over the image's disk; the guest
    /// writes into the last one.
    pub(super) fn assemble(
        &self,
        memory: Option<MemoryFile>,
        layers: Vec<OwnedFd>,
        console: &Console,
    ) -> io::Result<(QemuCommand, UnixStream)> {
        let mut command = QemuCommand::new(self.name, self.hardware, self.network);
        match memory {
            Some(MemoryFile { file, sharing }) => command.memory(file, self.hardware.memory, sharing),
            None => command.own_memory(),
        }
        let parameters = kernel_parameters(self.hardware.engine);
        command.kernel(&self.image.kernel(), &self.image.initrd(), &parameters)?;
        let base = fs::File::open(self.image.rootfs())?.into_file();
        let mut disk = vec![(DiskFormat::Raw, OwnedFd::from(base))];
        disk.extend(layers.into_iter().map(|layer| (DiskFormat::Qcow2, layer)));
        command.disk(disk);
        if self.image.manifest.image_store {
            let store = self.store.map(|store| store.file().try_clone()).transpose()?;
            command.store(store.map(OwnedFd::from));
        }
        let agent = command.agent()?;
        listen(console, command.console()?);
        command.network(self.network, self.program);
        Ok((command, agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(network: &Network) -> String {
        let hardware = Hardware { engine: Accelerator::Tcg, vcpus: 2, memory: 256 << 20 };
        let mut command = QemuCommand::new("one", &hardware, network);
        command.network(network, Path::new("/opt/a,b/it's"));
        command.arguments.join(" ")
    }

    #[test]
    fn a_guest_is_shut_in_unless_the_operator_opens() {
        let isolated = network(&Network::Isolated);
        assert!(isolated.contains("restrict=on,hostfwd=tcp:127.0.0.1:0-:22 "), "{isolated}");
        assert!(isolated.contains("spawn=deny") && !isolated.contains("guestfwd"), "{isolated}");
        assert!(network(&Network::Open).contains("restrict=off"));
        let proxy = network(&Network::Proxy("127.0.0.1:3128".to_owned()));
        assert!(proxy.contains("restrict=on") && proxy.contains("spawn=allow"), "{proxy}");
        let cmd = "-cmd:'/opt/a,,b/it'\\''s' instance qemu proxy 127.0.0.1:3128 ";
        assert!(proxy.contains(cmd), "{proxy}");
    }

    #[test]
    fn only_the_top_of_a_disk_is_written() {
        let hardware = Hardware { engine: Accelerator::Kvm, vcpus: 1, memory: 128 << 20 };
        let mut command = QemuCommand::new("one", &hardware, &Network::Isolated);
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        command.disk(vec![(DiskFormat::Raw, file()), (DiskFormat::Qcow2, file())]);
        let nodes: Vec<Value> = command
            .arguments
            .iter()
            .filter_map(|argument| serde_json::from_str(argument).ok())
            .filter(Value::is_object)
            .collect();
        assert_eq!((&nodes[0]["read-only"], &nodes[1]["read-only"]), (&json!(true), &json!(false)));
        assert_eq!((&nodes[0]["backing"], &nodes[1]["backing"]), (&Value::Null, &json!("disk0")));
        assert_eq!(command.passed.len(), 2);
    }
}
