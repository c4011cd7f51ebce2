//! The keys of provider `qemu`, and the settings that a pool's table gives them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Value};
use greenroom_keys::TakesEffect::{Launch, Pass};
use greenroom_keys::ValueType::{self, HostPath, Range, Size, Text, Texts, Word};
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::{Got, ValueError};
use greenroom_keys::{KeyTable, key};
use serde::{Deserialize, Serialize};

use super::egress::{Allowed, Internet};
use super::image;

/// The values of `network`, `accel` and `boot`.
const NETWORKS: &[&str] = &["isolated", "proxy", "internet", "open"];
/// User IDs end at 2^31 for many programs.
const LAST_FIRST_UID: u32 = 2_147_480_000;
const ACCELS: &[&str] = &["auto", "kvm", "tcg"];
const BOOTS: &[&str] = &["snapshot", "direct", "disk"];

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are virtual machines (VMs) on the runner host, through QEMU. \
            [providers/qemu.md](providers/qemu.md) explains how they boot and what isolates them.",
    keys: &[
        key("image", Text, Value("\"light\""), Launch)
            .doc("Name of an image of `greenroom image build`, or absolute path of a qcow2 file with cloud-init.")
            .notes("A qcow2 file boots more slowly: see `boot`."),
        key("images", HostPath, Described("`images` in the state directory"), Launch)
            .doc("Directory of images.")
            .notes("`greenroom image` takes the same directory by `--images`."),
        key("image_store", Text, Described("none"), Launch)
            .doc("Name of an image store of `greenroom image store build`: its images are on each VM that starts. \
                    [image-stores.md](image-stores.md) explains them.")
            .notes("Requires an image of `greenroom image build --containers`. `pull_policy` decides whether a job \
                        contacts the registry all the same."),
        key("vcpus", Range(1, 64), Value("1"), Launch).unit("processors").doc("Processors of each VM."),
        key("memory", Size, Value("\"1G\""), Launch)
            .doc("Memory of each VM, in whole MiB and at least `128M`.")
            .notes("Must not exceed `memory_budget`."),
        key("disk", Size, Described("the size of the image"), Launch)
            .doc("Size of the disk as the guest sees it; the guest's file system grows with it.")
            .notes("Must not be smaller than the image, nor exceed `disk_budget`."),
        key("network", Word(NETWORKS), Value("\"isolated\""), Launch)
            .doc("What a guest reaches: nothing, one address, the internet, or all that the runner host reaches, its \
                    loopback included.")
            .notes("Jobs need GitLab: with `\"isolated\"` they cannot fetch sources. `\"internet\"` requires root \
                        and `nft`."),
        key("allow", Texts, Described("none"), Launch)
            .doc("Addresses, networks and names, with or without `:port`, that guests reach in addition to the \
                    internet: `[\"10.0.0.5\", \"git.corp:443\"]`. A name is resolved when a VM starts.")
            .notes("Refused without `network = \"internet\"`. The runner host's own addresses open only to an entry that is \
                        an address, not to a network or a name."),
        // From a range of user IDs that Linux distributions and systemd leave unused.
        key("first_uid", Range(1000, LAST_FIRST_UID), Value("1900000000"), Launch)
            .doc("First of 1024 user IDs. Each VM's QEMU has one of its own.")
            .notes("Only with `network = \"internet\"`. No user of the runner host may have one of them."),
        key("proxy", Text, Described("none"), Launch)
            .doc("Address that guests reach as 10.0.2.100:3128, as `\"host:port\"`; `http_proxy` is set in the \
                    guest.")
            .notes("Required with `network = \"proxy\"`, refused otherwise."),
        key("accel", Word(ACCELS), Value("\"auto\""), Launch)
            .doc("Accelerator: KVM, or emulation (`\"tcg\"`), which is 5 to 30 times slower.")
            .notes("`\"auto\"` tests KVM before it uses it, and emulates if the test fails."),
        key("boot", Word(BOOTS), Value("\"snapshot\""), Launch)
            .doc("How a VM boots: resumed from a template that has booted once, by its image's kernel, or by the \
                    boot loader of its disk.")
            .notes("A qcow2 file in `image` boots by `\"disk\"`, which is the default then; other images \
                        cannot."),
        key("boot_timeout", ValueType::Duration(0), Described("30 s with KVM, 3 min emulated; with a qcow2 file 2 min and 10 min"), Launch)
            .doc("How long a guest may take from the start of QEMU to its first answer.")
            .notes("`launch_timeout` bounds the whole launch."),
        key("template_retention", ValueType::Duration(0), Value("\"10m\""), Launch)
            .doc("How long the memory of a template (some 100 MiB) is kept after its last clone has terminated.")
            .notes("Only with `boot = \"snapshot\"`."),
        key("memory_budget", Size, Described("three quarters of the runner host's memory"), Pass)
            .doc("Memory for all VMs of the state directory together; a VM that does not fit is refused with no \
                    capacity.")
            .notes("Each VM counts with its `memory` and 128 MiB more, or 64 MiB with `accel = \"kvm\"`. VMs \
                        of other pools count, too."),
        key("disk_budget", Size, Described("three quarters of the file system that holds the disks"), Pass)
            .doc("Disk space for all VMs of the state directory together; a VM that does not fit is refused with no \
                    capacity.")
            .notes("Each VM counts with its `disk`, however much of it is written. VMs of other pools count, \
                        too. An image store in use counts once, and so do templates with images of containers."),
        key("user", Text, Described("`greenroom-vm` if there is such a user, otherwise `nobody`"), Launch)
            .doc("User that runs QEMU where Greenroom runs as root; not root."),
        key("qemu", HostPath, Described("`qemu-system-x86_64`, searched for in `PATH`"), Launch).doc("Path of QEMU."),
    ],
}];

/// The boot source of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BootSource {
    /// An image of `greenroom image build`, by its name.
    Image(String),
    /// A disk that Greenroom has not built, with cloud-init in it: a qcow2 file.
    Foreign(PathBuf),
}

impl fmt::Display for BootSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(name) => write!(f, "the image `{name}`"),
            Self::Foreign(disk) => write!(f, "the boot disk {}", disk.display()),
        }
    }
}

/// The network that a guest reaches, apart from the one port on which it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Network {
    /// The guest reaches nothing at all.
    Isolated,
    /// One address of the operator's (`host:port`), as 10.0.2.100:3128.
    Proxy(String),
    /// The internet, and addresses of the operator's; not the runner host and what is near it.
    Internet(Internet),
    /// Everything that the runner host reaches, including its loopback.
    Open,
}

impl Network {
    /// The keys of `"internet"`; `None` for all others.
    pub(super) fn internet(&self) -> Option<&Internet> {
        match self {
            Self::Internet(internet) => Some(internet),
            Self::Isolated | Self::Proxy(_) | Self::Open => None,
        }
    }
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

/// The way a machine boots.
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

/// A pool's provider table, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) source: BootSource,
    /// The directory of images; `None`: `images` in the state directory.
    pub(super) images: Option<PathBuf>,
    /// The image store of its machines, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image_store: Option<String>,
    pub(super) vcpus: u32,
    /// Bytes; whole MiB. Default 1 GiB.
    pub(super) memory: u64,
    /// Bytes; `None`: as large as the image's.
    pub(super) disk: Option<u64>,
    pub(super) network: Network,
    pub(super) accel: Accel,
    pub(super) boot: Boot,
    /// The time limit from QEMU's start to a guest that answers; `None`: see `default_limit`.
    pub(super) boot_timeout: Option<Duration>,
    /// The time for which a template's memory is kept after its last clone has ended. Default 10 minutes.
    pub(super) template_retention: Duration,
    /// Bytes for all machines of the state directory; `None`: three quarters of the runner host's memory.
    pub(super) memory_budget: Option<u64>,
    /// Bytes for the disks of all machines of the state directory; `None`: three quarters of their file system.
    #[serde(default)]
    pub(super) disk_budget: Option<u64>,
    /// The user that runs QEMU if Greenroom runs as root; `None`: `greenroom-vm`, or `nobody` if that does not exist.
    pub(super) user: Option<String>,
    /// Absolute; `None`: searched for in `PATH`.
    pub(super) qemu: Option<PathBuf>,
}

const MIB: u64 = 1 << 20;

impl Settings {
    /// True if templates of its machines may get images of containers. Without a network, they reach no registry.
    pub(super) fn templates_pull(&self) -> bool {
        let is_cloned = self.boot == Boot::Snapshot && matches!(self.source, BootSource::Image(_));
        is_cloned && self.network != Network::Isolated
    }

    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let source = table.parsed("image", table.text("image"), source);
        let vcpus = table.count("vcpus").or_declared();
        let given = table.size("memory");
        let memory = table.parsed("memory", given.clone(), |memory| match memory {
            memory if memory.is_multiple_of(MIB) && memory >= 128 * MIB => Ok(memory),
            _ => Err(ValueError::rule("be in whole MiB and at least 128M")),
        });
        let is_bad = memory.is_bad();
        let memory = memory.or(given.or_declared());
        let memory_budget = table.size("memory_budget").into_value();
        if !is_bad && memory_budget.is_some_and(|budget| budget < memory) {
            table.refuse("memory_budget", "is less than the `memory` of one virtual machine");
        }
        let disk = table.size("disk").into_value();
        let disk_budget = table.size("disk_budget").into_value();
        if disk.zip(disk_budget).is_some_and(|(disk, budget)| budget < disk) {
            table.refuse("disk_budget", "is less than the `disk` of one virtual machine");
        }
        let image_store = image_store(table, &source);
        let path = |name: &str| table.text(name).into_value().map(PathBuf::from);
        Self {
            boot: boot(table, &source),
            source: source.effective().cloned().unwrap_or_else(|| BootSource::Image(String::new())),
            images: path("images"),
            image_store,
            vcpus,
            memory,
            disk,
            network: network(table),
            accel: match table.word("accel").or_declared() {
                "kvm" => Accel::Kvm,
                "tcg" => Accel::Tcg,
                _ => Accel::Auto,
            },
            boot_timeout: table.duration("boot_timeout").into_value(),
            template_retention: table.duration("template_retention").or_declared(),
            memory_budget,
            disk_budget,
            user: table.text("user").into_value(),
            qemu: path("qemu"),
        }
    }

    /// The directory of images.
    pub(super) fn images_dir(&self, state_dir: &Path) -> PathBuf {
        self.images.clone().unwrap_or_else(|| state_dir.join("images"))
    }
}

fn source(text: String) -> Result<BootSource, ValueError> {
    if Path::new(&text).is_absolute() {
        return Ok(BootSource::Foreign(text.into()));
    }
    if image::is_name(&text) {
        return Ok(BootSource::Image(text));
    }
    Err(ValueError::value(text, "the name of an image, or the absolute path of a qcow2 file"))
}

/// The key `image_store`. Only the guest program of Greenroom's own images mounts a store.
fn image_store(table: &Table<'_>, source: &Got<BootSource>) -> Option<String> {
    let name = table.parsed("image_store", table.text("image_store"), |name: String| {
        if image::is_name(&name) {
            Ok(name)
        } else {
            Err(ValueError::value(name, "the name of an image store"))
        }
    });
    let name = name.into_value()?;
    if let Got::Good(BootSource::Foreign(_), _) = source {
        table.refuse("image_store", "is set, but a qcow2 file cannot use an image store");
        return None;
    }
    Some(name)
}

/// The key `boot`. A foreign disk comes without a separate kernel.
fn boot(table: &Table<'_>, source: &Got<BootSource>) -> Boot {
    let chosen = table.word("boot");
    match (chosen.value().copied(), source) {
        (None | Some("disk"), Got::Good(BootSource::Foreign(_), _)) => return Boot::Disk,
        (Some(other), Got::Good(BootSource::Foreign(_), _)) => {
            table.refuse("boot", format!("is {other:?}, but a qcow2 file can only boot with \"disk\""));
        }
        (Some("disk"), Got::Good(BootSource::Image(_), _) | Got::Absent(_)) => {
            table.refuse("boot", "is \"disk\", but images built by Greenroom have no boot loader");
        }
        (Some("direct"), _) => return Boot::Direct,
        (None | Some(_), _) => {}
    }
    Boot::Snapshot
}

fn network(table: &Table<'_>) -> Network {
    let network = table.word("network");
    let proxy = table.text("proxy");
    let allow = table.texts("allow");
    let first_uid = table.count("first_uid");
    let chosen = network.or_declared();
    if allow.value().is_some() && chosen != "internet" && !network.is_bad() {
        table.refuse("allow", "has no effect without `network = \"internet\"`");
    }
    match chosen {
        "proxy" => {
            let help = "set it to the address that guests reach, as \"host:port\"";
            let proxy = table.parsed("proxy", table.required("proxy", proxy, help), |target| {
                // It may contain a password.
                if is_target(&target) {
                    Ok(target)
                } else {
                    Err(ValueError::rule("be an address such as \"host:port\""))
                }
            });
            return Network::Proxy(proxy.or_default());
        }
        _ if proxy.value().is_some() && !network.is_bad() => {
            table.refuse("proxy", "has no effect without `network = \"proxy\"`");
        }
        "internet" => {
            let texts = allow.or_default();
            table.check_each("allow", &texts, |text| text.parse::<Allowed>().map(drop));
            let allow = texts.iter().filter_map(|(text, _)| text.parse().ok()).collect();
            return Network::Internet(Internet { allow, first_uid: first_uid.or_declared() });
        }
        "open" => return Network::Open,
        _ => {}
    }
    Network::Isolated
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

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, String> {
        settings(&text.parse().unwrap()).map_err(|problems| problems.to_string())
    }

    #[test]
    fn an_empty_table_is_isolated_and_resumes_the_light_image() {
        let settings = read("").unwrap();
        assert_eq!(settings.source, BootSource::Image("light".to_owned()));
        assert_eq!(image::DEFAULT_NAME, "light", "`greenroom image build` makes what an empty table boots");
        assert_eq!((settings.network, settings.boot), (Network::Isolated, Boot::Snapshot));
        assert_eq!((settings.vcpus, settings.memory), (1, 1 << 30));
    }

    #[test]
    fn a_foreign_disk_boots_by_itself() {
        let settings = read("image = \"/images/debian.qcow2\"").unwrap();
        assert_eq!(settings.boot, Boot::Disk);
        assert_eq!(settings.source, BootSource::Foreign(PathBuf::from("/images/debian.qcow2")));
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(TABLES, "", settings);
    }

    #[test]
    fn the_example_shows_every_key() {
        let is_key = |line: &str| {
            let name = line.split(" = ").next().unwrap_or_default();
            line.contains(" = ") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let example = crate::qemu::REGISTRATION.example;
        let text: Vec<&str> = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line))
            .collect();
        let all = read(&text.join("\n")).unwrap();
        assert!(all.images.is_some() && all.disk.is_some() && all.user.is_some() && all.qemu.is_some());
        assert!(all.boot_timeout.is_some() && all.memory_budget.is_some() && all.disk_budget.is_some());
        assert!(matches!(all.network, Network::Internet(Internet { allow, .. }) if allow.len() == 3));
        assert_eq!(read(example).unwrap(), read("").unwrap(), "the example shows the defaults");
    }

    #[test]
    fn wrong_values_name_key_and_expectation() {
        for (text, message) in [
            ("image = \"../x\"", "`image` is \"../x\", expected the name of an image, or the absolute path"),
            ("boot = \"disk\"", "images built by Greenroom have no boot loader"),
            ("image = \"/x.qcow2\"\nboot = \"snapshot\"", "a qcow2 file can only boot with \"disk\""),
            ("network = \"proxy\"", "`proxy` is missing in `[pool.linux.provider]` (set it to the address"),
            ("network = \"proxy\"\nproxy = \"a,b:1\"", "such as \"host:port\""),
            ("network = \"proxy\"\nproxy = \"host\"", "such as \"host:port\""),
            ("proxy = \"a:1\"", "`proxy` has no effect without"),
            ("allow = [\"10.0.0.5\"]", "`allow` has no effect without `network = \"internet\"`"),
            ("network = \"internet\"\nproxy = \"a:1\"", "`proxy` has no effect without"),
            (
                "network = \"internet\"\nallow = [\"10.0.0\"]",
                "`allow` contains \"10.0.0\", expected an IPv4 address, a",
            ),
            ("network = \"isolate\"", "did you mean \"isolated\"?"),
            ("accel = \"kwm\"", "did you mean \"kvm\"?"),
            ("vcpus = 0", "`vcpus` in `[pool.linux.provider]` must be a whole number from 1 to 64"),
            ("vcpus = 65", "`vcpus` in `[pool.linux.provider]` must be a whole number from 1 to 64"),
            ("memory = \"64M\"", "at least 128M"),
            ("image_store = \"../x\"", "is \"../x\", expected the name of an image store"),
            ("image = \"/x.qcow2\"\nimage_store = \"ci\"", "a qcow2 file cannot use an image store"),
            ("memory = \"2G\"\nmemory_budget = \"1G\"", "less than the `memory` of one virtual machine"),
            ("disk = \"2G\"\ndisk_budget = \"1G\"", "less than the `disk` of one virtual machine"),
            ("memori = \"2G\"", "did you mean `memory`?"),
            ("qemu = \"qemu\"", "`qemu` in `[pool.linux.provider]` must be an absolute path"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(message) && !error.contains("; "), "{text}: {error}");
        }
    }

    #[test]
    fn a_wrong_value_is_not_held_against_other_keys() {
        for text in [
            "image = \"../x\"\nboot = \"disk\"",
            "network = \"prox\"\nproxy = \"a:1\"",
            "network = \"internt\"\nallow = [\"10.0.0.5\"]",
            "memory = \"64M\"\nmemory_budget = \"32M\"",
        ] {
            assert_eq!(settings(&text.parse().unwrap()).unwrap_err().0.len(), 1, "{text}");
        }
    }
}
