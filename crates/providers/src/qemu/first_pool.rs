//! The part of provider `qemu` in `greenroom init`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use toml::Value;

use super::image::GITLAB_RUNNER;
use super::image::build::packages_of_images;
use super::image::store::Images;
use super::launch::memory_in;
use crate::first_pool::{FirstPool, Found, Given, RunnerHost, Suits};

const QEMU: &str = "qemu-system-x86_64";
const KVM: &str = "/dev/kvm";
/// The memory of a virtual machine of 1 GiB, its QEMU included, in bytes.
const MACHINE_BYTES: u64 = (1024 + 128) << 20;

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "vm",
    about: "virtual machines here",
    comments: &[("vcpus", "1"), ("memory", "\"1G\""), ("allow", "[\"git.corp:443\"]")],
    look: |host| Box::new(QemuFirstPool::look(host)),
};

#[derive(Debug, Default)]
struct QemuFirstPool {
    qemu: Option<PathBuf>,
    /// The reason virtual machines are emulated; `None`: they are not.
    no_kvm: Option<String>,
    images: Vec<String>,
    processors: u32,
    /// Virtual machines of 1 GiB that fit into three quarters of the memory.
    machines: u32,
}

impl QemuFirstPool {
    fn look(host: &RunnerHost<'_>) -> Self {
        let images = Images::at(host.state_dir.join("images")).list().unwrap_or_default();
        Self {
            qemu: program(QEMU, host.set("PATH").as_ref()),
            no_kvm: no_kvm(Path::new(KVM)),
            images: images.into_iter().filter(|entry| entry.image.is_ok()).map(|entry| entry.name).collect(),
            processors: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(1)),
            machines: std::fs::read_to_string("/proc/meminfo").ok().map_or(1, |text| machines(&text)),
        }
    }
}

impl Found for QemuFirstPool {
    fn text(&self) -> Option<String> {
        let Some(path) = self.qemu.as_ref().map(|path| path.display()) else {
            return Some("QEMU is not installed".to_owned());
        };
        let images = match self.images.as_slice() {
            [] => "no image".to_owned(),
            names => format!("images: {}", names.join(", ")),
        };
        Some(match &self.no_kvm {
            None => format!("{path}, with {KVM}, {images}"),
            Some(why) => format!("{path}, emulating ({why}), {images}"),
        })
    }

    fn suits(&self) -> Suits {
        if self.qemu.is_some() { Suits::Now } else { Suits::AfterInstallation }
    }

    fn follows(&self, given: &Given<'_>) -> Vec<(&'static str, Value)> {
        let network = ("network", Value::String("internet".to_owned()));
        if given.has("network") { Vec::new() } else { vec![network] }
    }

    fn instances(&self, _given: &Given<'_>) -> Option<u32> {
        Some(self.machines.min(self.processors.saturating_mul(2)).max(1))
    }

    fn spare(&self) -> u32 {
        1
    }

    fn steps(&self, _pool: &str, given: &Given<'_>, program: &str) -> Vec<String> {
        let install = self.qemu.is_none().then(installation);
        let needs_image = self.images.is_empty() && !given.has("image");
        let build = needs_image.then(|| image_build(program, Path::new(GITLAB_RUNNER).is_file()));
        install.into_iter().chain(build).collect()
    }
}

/// The command that installs what virtual machines and their images need.
fn installation() -> String {
    let of_images = packages_of_images();
    format!("apt-get install --no-install-recommends qemu-system-x86 {of_images} nftables")
}

/// The command that builds the image.
fn image_build(program: &str, has_runner: bool) -> String {
    let runner = if has_runner { format!(" --gitlab-runner {GITLAB_RUNNER}") } else { String::new() };
    format!("{program} image build{runner}")
}

/// The first such file of a search path, and of the folders that the search path of a user may lack.
fn program(name: &str, path: Option<&OsString>) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = path.into_iter().flat_map(std::env::split_paths).collect();
    let usual = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    folders.into_iter().chain(usual).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn no_kvm(device: &Path) -> Option<String> {
    match std::fs::OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Some(format!("{} is missing", device.display()))
        }
        Err(error) => Some(format!("{}: {error}", device.display())),
    }
}

/// The number of virtual machines of 1 GiB that fit into three quarters of the memory; at least one.
fn machines(meminfo: &str) -> u32 {
    let bytes = memory_in(meminfo).unwrap_or(0);
    u32::try_from(bytes / 4 * 3 / MACHINE_BYTES).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::REPOSITORY;

    use super::*;

    const NOTHING_GIVEN: Given<'_> = Given { provider: &[], hosts: &[] };

    #[test]
    fn machines_are_counted_by_the_memory_and_limited_by_the_processors() {
        assert_eq!(machines("MemFree: 1 kB\nMemTotal:       16384000 kB\n"), 10);
        assert_eq!(machines("MemTotal: 1024 kB\n"), 1);
        assert_eq!(machines("rubbish"), 1);
        let instances = |machines, processors| {
            QemuFirstPool { processors, machines, ..QemuFirstPool::default() }.instances(&NOTHING_GIVEN)
        };
        assert_eq!([instances(5, 8), instances(9, 2), instances(0, 0)], [Some(5), Some(4), Some(1)]);
    }

    #[test]
    fn the_pages_install_what_init_names() {
        for page in ["README.md", "docs/getting-started.md"] {
            let text = std::fs::read_to_string(format!("{REPOSITORY}/{page}")).unwrap();
            assert!(text.contains(&format!("# {}\n", installation())), "{page}: {}", installation());
        }
        assert!(installation().contains(" zstd "));
    }

    #[test]
    fn the_steps_lead_to_an_image_with_the_runners_program_where_it_is_installed() {
        assert_eq!(image_build("greenroom", false), "greenroom image build");
        let with_runner = "greenroom image build --gitlab-runner /usr/bin/gitlab-runner";
        assert_eq!(image_build("greenroom", true), with_runner);
        let steps = |here: &QemuFirstPool, provider: &[(String, Value)]| {
            here.steps("vm", &Given { provider, hosts: &[] }, "greenroom").len()
        };
        let bare = QemuFirstPool::default();
        assert_eq!(steps(&bare, &[]), 2);
        assert_eq!(steps(&bare, &[("image".to_owned(), Value::String("ci".to_owned()))]), 1);
        let ready = QemuFirstPool {
            qemu: Some(QEMU.into()),
            images: vec!["default".to_owned()],
            ..QemuFirstPool::default()
        };
        assert_eq!(steps(&ready, &[]), 0);
        assert!(ready.suits() > bare.suits());
    }

    #[test]
    fn the_line_says_what_is_missing() {
        assert_eq!(QemuFirstPool::default().text().unwrap(), "QEMU is not installed");
        let here = QemuFirstPool { qemu: Some("/usr/bin/qemu".into()), ..QemuFirstPool::default() };
        assert_eq!(here.text().unwrap(), "/usr/bin/qemu, with /dev/kvm, no image");
        let why = Some("/dev/kvm is missing".to_owned());
        let emulating = QemuFirstPool { no_kvm: why, images: vec!["a".to_owned(), "b".to_owned()], ..here };
        assert_eq!(emulating.text().unwrap(), "/usr/bin/qemu, emulating (/dev/kvm is missing), images: a, b");
    }
}
