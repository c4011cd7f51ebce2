//! The settings of virtual machines, from a pool's provider table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::image;
use super::keys::{ACCELS, BOOTS, NETWORKS};
use crate::provider::keys::{KeyError, Keys};

/// The boot source of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// An image of `greenroom image build`, by its name.
    Image(String),
    /// A disk that Greenroom has not built, with cloud-init in it: a qcow2 file.
    Foreign(PathBuf),
}

/// What a guest reaches, apart from the one port on which it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Network {
    /// Nothing at all.
    Isolated,
    /// One address of the operator's (`host:port`), as 10.0.2.100:3128.
    Proxy(String),
    /// Everything that the runner host reaches, including its loopback.
    Open,
}

/// The accelerator that runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Accel {
    /// KVM if it passes a test, otherwise emulation.
    Auto,
    Kvm,
    Tcg,
}

/// How a machine boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Boot {
    /// Resumed from a template that all its clones share.
    Snapshot,
    /// The image's kernel, started by QEMU itself.
    Direct,
    /// The disk's own boot loader; its cloud-init sets it up.
    Disk,
}

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) source: Source,
    /// The directory of images; `None`: `images` in the state directory.
    pub(super) images: Option<PathBuf>,
    /// Default 1.
    pub(super) vcpus: u32,
    /// Bytes; whole MiB. Default 1 GiB.
    pub(super) memory: u64,
    /// Bytes; `None`: as large as the image's.
    pub(super) disk: Option<u64>,
    pub(super) network: Network,
    pub(super) accel: Accel,
    pub(super) boot: Boot,
    /// From QEMU's start to a guest that answers; `None`: see `default_limit`.
    pub(super) boot_timeout: Option<Duration>,
    /// How long a template's memory is kept after its last clone has ended. Default 10 minutes.
    pub(super) template_retention: Duration,
    /// Bytes for all machines of the state directory; `None`: three quarters of the runner host's memory.
    pub(super) memory_budget: Option<u64>,
    /// The user that runs QEMU if Greenroom runs as root; `None`: `greenroom-vm`, or `nobody` if that does not exist.
    pub(super) user: Option<String>,
    /// Absolute; `None`: searched for in `PATH`.
    pub(super) qemu: Option<PathBuf>,
}

const MIB: u64 = 1 << 20;

impl Settings {
    pub(super) fn read(table: &toml::Table) -> Result<Self, KeyError> {
        let mut keys = Keys::of(table);
        let source = source(keys.text("image")?)?;
        let boot = boot(keys.choice("boot", BOOTS)?, &source)?;
        let network = keys.choice("network", NETWORKS)?;
        let proxy = keys.text("proxy")?;
        let settings = Self {
            source,
            images: absolute(&mut keys, "images")?,
            vcpus: keys.count("vcpus")?.unwrap_or(1),
            memory: keys.size("memory")?.unwrap_or(1 << 30),
            disk: keys.size("disk")?,
            network: reach(network, proxy)?,
            accel: match keys.choice("accel", ACCELS)? {
                Some("kvm") => Accel::Kvm,
                Some("tcg") => Accel::Tcg,
                _ => Accel::Auto,
            },
            boot,
            boot_timeout: keys.duration("boot_timeout")?,
            template_retention: keys.duration("template_retention")?.unwrap_or(Duration::from_mins(10)),
            memory_budget: keys.size("memory_budget")?,
            user: keys.text("user")?.map(str::to_owned),
            qemu: absolute(&mut keys, "qemu")?,
        };
        keys.finish()?;
        settings.check_sizes()?;
        Ok(settings)
    }

    fn check_sizes(&self) -> Result<(), KeyError> {
        if !(1..=64).contains(&self.vcpus) {
            return Err(KeyError::new("vcpus", format!("is {}, expected 1 to 64", self.vcpus)));
        }
        if !self.memory.is_multiple_of(MIB) || self.memory < 128 * MIB {
            return Err(KeyError::new("memory", "must be in whole MiB and at least 128M"));
        }
        if self.memory_budget.is_some_and(|budget| budget < self.memory) {
            return Err(KeyError::new("memory_budget", "is less than the `memory` of one virtual machine"));
        }
        Ok(())
    }

    /// The directory of images.
    pub(super) fn images_dir(&self, state_dir: &Path) -> PathBuf {
        self.images.clone().unwrap_or_else(|| state_dir.join("images"))
    }
}

fn source(text: Option<&str>) -> Result<Source, KeyError> {
    let text = text.unwrap_or(image::DEFAULT_NAME);
    let path = Path::new(text);
    if path.is_absolute() {
        return Ok(Source::Foreign(path.to_owned()));
    }
    if image::is_name(text) {
        return Ok(Source::Image(text.to_owned()));
    }
    let expected = "expected the name of an image, or the absolute path of a qcow2 file";
    Err(KeyError::new("image", format!("is {text:?}, {expected}")))
}

/// A foreign disk comes without a separate kernel.
fn boot(chosen: Option<&str>, source: &Source) -> Result<Boot, KeyError> {
    match (chosen, source) {
        (None | Some("disk"), Source::Foreign(_)) => Ok(Boot::Disk),
        (Some(other), Source::Foreign(_)) => {
            Err(KeyError::new("boot", format!("is {other:?}, but a qcow2 file can only boot with \"disk\"")))
        }
        (Some("disk"), Source::Image(_)) => {
            Err(KeyError::new("boot", "is \"disk\", but images built by Greenroom have no boot loader"))
        }
        (Some("direct"), Source::Image(_)) => Ok(Boot::Direct),
        (_, Source::Image(_)) => Ok(Boot::Snapshot),
    }
}

fn reach(network: Option<&str>, proxy: Option<&str>) -> Result<Network, KeyError> {
    match (network, proxy) {
        (Some("proxy"), Some(target)) if is_target(target) => Ok(Network::Proxy(target.to_owned())),
        (Some("proxy"), Some(target)) => {
            Err(KeyError::new("proxy", format!("is {target:?}, expected \"host:port\"")))
        }
        (Some("proxy"), None) => {
            Err(KeyError::new("proxy", "is missing: `network = \"proxy\"` needs \"host:port\""))
        }
        (_, Some(_)) => Err(KeyError::new("proxy", "has no effect without `network = \"proxy\"`")),
        (Some("open"), None) => Ok(Network::Open),
        (_, None) => Ok(Network::Isolated),
    }
}

/// True if the text is a valid `host:port`. It goes into an option of QEMU's, where commas and blanks are special.
fn is_target(text: &str) -> bool {
    let host = |host: &str| {
        !host.is_empty()
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']'))
    };
    text.rsplit_once(':')
        .is_some_and(|(name, port)| host(name) && port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn absolute(keys: &mut Keys<'_>, key: &'static str) -> Result<Option<PathBuf>, KeyError> {
    let Some(text) = keys.text(key)? else { return Ok(None) };
    let path = PathBuf::from(text);
    if path.is_absolute() {
        return Ok(Some(path));
    }
    Err(KeyError::new(key, format!("is {text:?}, expected an absolute path")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::key_tables;

    fn read(text: &str) -> Result<Settings, String> {
        Settings::read(&text.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_table_is_isolated_and_resumes_the_light_image() {
        let settings = read("").unwrap();
        assert_eq!(settings.source, Source::Image("light".to_owned()));
        assert_eq!((settings.network, settings.boot), (Network::Isolated, Boot::Snapshot));
        assert_eq!((settings.vcpus, settings.memory), (1, 1 << 30));
    }

    #[test]
    fn a_foreign_disk_boots_by_itself() {
        let settings = read("image = \"/images/debian.qcow2\"").unwrap();
        assert_eq!(settings.boot, Boot::Disk);
        assert_eq!(settings.source, Source::Foreign(PathBuf::from("/images/debian.qcow2")));
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(super::super::keys::TABLES, "", Settings::read);
    }

    #[test]
    fn the_example_shows_every_key() {
        let is_key = |line: &str| {
            let name = line.split(" = ").next().unwrap_or_default();
            line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let example = super::super::REGISTRATION.example;
        let text: Vec<&str> = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line))
            .collect();
        let all = read(&text.join("\n")).unwrap();
        assert!(all.images.is_some() && all.disk.is_some() && all.user.is_some() && all.qemu.is_some());
        assert!(all.boot_timeout.is_some() && all.memory_budget.is_some());
        assert!(matches!(all.network, Network::Proxy(_)));
        assert_eq!(read(example).unwrap(), read("").unwrap(), "the example shows the defaults");
    }

    #[test]
    fn wrong_values_name_key_and_expectation() {
        for (text, message) in [
            ("image = \"../x\"", "`image` is \"../x\", expected the name of an image, or the absolute path"),
            ("boot = \"disk\"", "images built by Greenroom have no boot loader"),
            ("image = \"/x.qcow2\"\nboot = \"snapshot\"", "a qcow2 file can only boot with \"disk\""),
            ("network = \"proxy\"", "`proxy` is missing"),
            ("network = \"proxy\"\nproxy = \"a,b:1\"", "expected \"host:port\""),
            ("network = \"proxy\"\nproxy = \"host\"", "expected \"host:port\""),
            ("proxy = \"a:1\"", "has no effect without"),
            ("network = \"isolate\"", "did you mean \"isolated\"?"),
            ("accel = \"kwm\"", "did you mean \"kvm\"?"),
            ("vcpus = 0", "`vcpus` is 0, expected 1 to 64"),
            ("memory = \"64M\"", "at least 128M"),
            ("memory = \"2G\"\nmemory_budget = \"1G\"", "less than the `memory` of one virtual machine"),
            ("memori = \"2G\"", "did you mean `memory`?"),
            ("qemu = \"qemu\"", "expected an absolute path"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
