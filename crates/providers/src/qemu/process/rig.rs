//! Assembles a machine of a Greenroom image, in the same way for a template and for its clones.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs_err as fs;
use tokio::net::UnixStream;

use super::command::{Format, Hardware, QemuCommand, Sharing};
use super::console::Console;
use super::machine::listen;
use super::qcow2;
use crate::qemu::accel::Engine;
use crate::qemu::image::Image;
use crate::qemu::settings::Network;

/// Kernel parameters of every guest. A panic reboots, which ends the machine.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on net.ifnames=0";

/// Further parameters of an emulated guest. An emulated processor does not speculate. It reuses translated code only
/// at the same address: with every program at an address of its own, each start of one would be translated anew. On a busy
/// runner host, an emulated timer is so late that the kernel takes it for a broken one, and panics; KVM makes that check needless.
const EMULATED: &str = " mitigations=off nokaslr norandmaps no_timer_check";

/// The parameters of a guest's kernel.
pub(super) fn kernel_parameters(engine: Engine) -> String {
    let more = if engine == Engine::Tcg { EMULATED } else { "" };
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
        let mut disk = vec![(Format::Raw, OwnedFd::from(base))];
        disk.extend(layers.into_iter().map(|layer| (Format::Qcow2, layer)));
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

/// Creates an empty disk layer.
pub(super) fn new_layer(path: &Path, bytes: u64) -> io::Result<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(path)?;
    // On a full disk, the part that fitted goes.
    qcow2::write_empty(&mut file, bytes).inspect_err(|_| drop(fs::remove_file(path)))?;
    Ok(file.into_file().into())
}
