//! A machine of one of our images, put together: the same for the one that becomes a template and for its clones.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use fs_err as fs;
use tokio::net::UnixStream;

use super::command::{Format, Hardware, QemuCommand, Sharing};
use super::console::Console;
use super::machine::listen;
use super::qcow2;
use crate::provider::qemu::accel::Engine;
use crate::provider::qemu::image::Image;
use crate::provider::qemu::settings::Network;

/// What every guest's kernel is told. A panic reboots, which ends the machine.
const KERNEL_WORDS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 random.trust_cpu=on net.ifnames=0";

/// What an emulated one is told beside. An emulated processor speculates on nothing. It finds code that it has
/// translated only at the same address again: with every program at an address of its own, each start of one would be
/// translated anew.
const EMULATED: &str = " mitigations=off nokaslr norandmaps";

/// What a kernel is told.
pub(super) fn kernel_words(engine: Engine) -> String {
    let more = if engine == Engine::Tcg { EMULATED } else { "" };
    format!("{KERNEL_WORDS}{more}")
}

/// Everything that a machine is made of.
#[derive(Debug)]
pub(super) struct Rig<'a> {
    /// Shown in process lists.
    pub(super) name: &'a str,
    pub(super) hardware: &'a Hardware,
    pub(super) network: &'a Network,
    pub(super) image: &'a Image,
    /// Our own executable.
    pub(super) program: &'a Path,
}

/// Memory that is a file of its own, and who else has it.
#[derive(Debug)]
pub(super) struct MemoryFile {
    pub(super) file: OwnedFd,
    pub(super) sharing: Sharing,
}

impl Rig<'_> {
    /// The command line, and our end of the agent's port. `layers` lie over the image's disk; the last one is written.
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
        let words = kernel_words(self.hardware.engine);
        command.kernel(&self.image.kernel(), &self.image.initrd(), &words)?;
        let base = fs::File::open(self.image.rootfs())?.into_file();
        let mut disk = vec![(Format::Raw, OwnedFd::from(base))];
        disk.extend(layers.into_iter().map(|layer| (Format::Qcow2, layer)));
        command.disk(disk);
        let agent = command.agent()?;
        listen(console, command.console()?);
        command.network(self.network, self.program);
        Ok((command, agent))
    }
}

/// A new empty disk, to lie over others.
pub(super) fn new_layer(path: &Path, bytes: u64) -> io::Result<OwnedFd> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(path)?;
    qcow2::write_empty(&mut file, bytes)?;
    Ok(file.into_file().into())
}
