//! The launch of a virtual machine: what it takes of the runner host, and whether that fits beside all others.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use greenroom_ports::setup::PublicPull;

use super::image::{Image, ImageError};
use super::image_store::Stores;
use super::process;
use super::process::qcow2::{self, Qcow2Error};
use super::settings::{Accel, BootSource, Settings};
use super::spec::{PULLS, ReservedStore, Spec};
use super::{Qemu, egress};
use crate::supervised::instance_dir::{InstanceDir, Launched, Life};
use crate::supervised::launch::{Admitted, Recipe, instances, locked};

/// One launch, with everything that its directory is made from.
pub(super) struct Launch<'a> {
    qemu: &'a Qemu,
    request: &'a LaunchRequest,
    /// The part of the runner host that the machine takes, read once when it is admitted.
    reserved: OnceCell<Reserved>,
}

/// The part of the runner host that a machine may take.
struct Reserved {
    resources: Resources,
    /// The image store that it will have, if nothing changes until it boots.
    store: Option<ReservedStore>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(qemu: &'a Qemu, request: &'a LaunchRequest) -> Self {
        Self { qemu, request, reserved: OnceCell::new() }
    }

    /// The machine's part of the runner host. Without anything to boot, the launch fails now instead of the boot later.
    fn reserve(&self) -> Result<Reserved, DiskError> {
        let Qemu { context, settings, .. } = self.qemu;
        let source = source_bytes(settings, &context.state_dir)?;
        let disk = disk_bytes(settings, source)?;
        let resources = Resources { memory: memory_of_one(settings), disk };
        Ok(Reserved { resources, store: self.store() })
    }

    /// The images that a template of the machine pulls.
    fn pulls(&self) -> Vec<PublicPull> {
        let Qemu { context, settings, .. } = self.qemu;
        let pulls = context.pulls.as_ref().filter(|_| settings.templates_pull());
        pulls.map(|pulls| pulls.public()).unwrap_or_default()
    }

    fn store(&self) -> Option<ReservedStore> {
        let Qemu { context, settings, .. } = self.qemu;
        let stores = Stores::beside(&settings.images_dir(&context.state_dir));
        let (store, _) = stores.attach(settings.image_store.as_ref()?).ok()?;
        Some(ReservedStore { digest: store.manifest.digest, bytes: store.manifest.bytes })
    }
}

#[async_trait(?Send)]
impl Recipe for Launch<'_> {
    async fn admit(&self) -> Result<Admitted, ProviderError> {
        let Qemu { supervised, settings, .. } = self.qemu;
        let invalid = |error: &dyn Error| ProviderError::new(ErrorClass::Invalid, error.to_string());
        egress::check(settings).map_err(|error| invalid(&error))?;
        let reserved = self.reserve().map_err(|error| invalid(&error))?;
        let images = settings.images_dir(&self.qemu.context.state_dir);
        let templates = || process::disk_of_templates(&images);
        let Reserved { resources, store } = self.reserved.get_or_init(|| reserved);
        let lock = admit(&supervised.instances, *resources, store.clone(), settings, &templates).await?;
        Ok(Admitted { lost: None, lock: Some(lock) })
    }

    fn write(&self, dir: &InstanceDir) -> io::Result<()> {
        let Qemu { context, settings, .. } = self.qemu;
        let reserved = self.reserved.get().ok_or_else(|| io::Error::other("the machine was not admitted"))?;
        dir.fill(&self.request.keys)?;
        let pulls = self.pulls();
        if !pulls.is_empty() {
            dir.put(PULLS, &pulls)?;
        }
        dir.put(
            "spec.json",
            &Spec {
                launched: Launched::new(self.request, context.clock.now()),
                settings: settings.clone(),
                state_dir: context.state_dir.clone(),
                program: context.program.clone(),
                reserved: reserved.resources.memory,
                reserved_disk: reserved.resources.disk,
                reserved_store: reserved.store.clone(),
            },
        )
    }
}

/// The reason there is no disk for a machine, such as [`DiskTooSmall`].
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("{error}: build one with `greenroom image build {name}`")]
    Image { name: String, error: ImageError },
    #[error("the boot disk {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("cannot read the boot disk: {0}")]
    Unreadable(Qcow2Error),
    #[error("{0}: {help}", help = DiskTooSmall::HELP)]
    TooSmall(#[from] DiskTooSmall),
}

/// The value of `disk` is less than the size of what the machine boots from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`disk` is {} MiB, but {boots_from} has {} MiB", disk >> 20, needed.div_ceil(1 << 20))]
pub(super) struct DiskTooSmall {
    /// Bytes.
    disk: u64,
    boots_from: BootSource,
    /// Bytes.
    needed: u64,
}

impl DiskTooSmall {
    pub(super) const HELP: &str = "set `disk` to at least that, or remove it";
}

/// The size of what a machine boots from, in bytes.
pub(super) fn source_bytes(settings: &Settings, state_dir: &Path) -> Result<u64, DiskError> {
    match &settings.source {
        BootSource::Image(name) => match Image::open(&settings.images_dir(state_dir), name) {
            Ok(image) => Ok(image.manifest.disk_bytes),
            Err(error) => Err(DiskError::Image { name: name.clone(), error }),
        },
        BootSource::Foreign(disk) if !disk.is_file() => Err(DiskError::Missing(disk.clone())),
        BootSource::Foreign(disk) => qcow2::virtual_size(disk).map_err(DiskError::Unreadable),
    }
}

/// The size of a machine's disk in bytes: that of what it boots from, or `disk`.
pub(super) fn disk_bytes(settings: &Settings, source: u64) -> Result<u64, DiskTooSmall> {
    match settings.disk {
        Some(disk) if disk < source => {
            Err(DiskTooSmall { disk, boots_from: settings.source.clone(), needed: source })
        }
        disk => Ok(disk.unwrap_or(source)),
    }
}

/// Memory that QEMU takes in addition to the guest's, in bytes.
const OVERHEAD: u64 = 64 << 20;
/// Memory that emulation takes in addition to that: translated code (`tb-size`), in bytes.
pub(super) const TRANSLATED: u64 = 64 << 20;

/// The maximum that machines take of the runner host, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) memory: u64,
    pub(super) disk: u64,
}

/// The memory that a machine may take, in bytes. One that may be emulated counts as emulated.
pub(super) fn memory_of_one(settings: &Settings) -> u64 {
    let translated = if settings.accel == Accel::Kvm { 0 } else { TRANSLATED };
    settings.memory + OVERHEAD + translated
}

/// Checks that another machine fits beside those of all pools. `templates`: the disk of templates with images. The caller
/// holds the returned lock until the machine exists.
pub(super) async fn admit(
    pools: &Path,
    wanted: Resources,
    store: Option<ReservedStore>,
    settings: &Settings,
    templates: &dyn Fn() -> io::Result<u64>,
) -> Result<File, ProviderError> {
    let transient = |error: io::Error| ProviderError::new(ErrorClass::Transient, error.to_string());
    let budget = Resources {
        memory: memory_budget(settings).map_err(transient)?,
        disk: disk_budget(settings, pools).map_err(transient)?,
    };
    let lock = locked(&pools.join(".budget")).await?;
    let (taken, mut stores) = taken(pools).map_err(transient)?;
    // A store counts once, however many machines have it.
    stores.extend(store.map(|store| (store.digest, store.bytes)));
    let stores = stores.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    fits("memory", wanted.memory, taken.memory, budget.memory)?;
    // So do the images of a template.
    let shared = stores.saturating_add(templates().map_err(transient)?);
    fits("disk", wanted.disk, taken.disk.saturating_add(shared), budget.disk)?;
    Ok(lock)
}

fn fits(resource: &str, wanted: u64, taken: u64, budget: u64) -> Result<(), ProviderError> {
    if taken.saturating_add(wanted) <= budget {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    let message = format!(
        "a virtual machine needs {} MiB of {resource}, but {} of {} MiB are in use (`{resource}_budget`)",
        mib(wanted),
        mib(taken),
        mib(budget)
    );
    Err(ProviderError::new(ErrorClass::NoCapacity { scope: resource.to_owned() }, message))
}

/// The reservations of the running and starting machines of all pools, and the bytes of their image stores by digest.
fn taken(pools: &Path) -> io::Result<(Resources, BTreeMap<String, u64>)> {
    let mut sum = Resources { memory: 0, disk: 0 };
    let mut stores = BTreeMap::new();
    for pool in fs::read_dir(pools)? {
        let pool = pool?;
        if !pool.file_type()?.is_dir() {
            continue;
        }
        for dir in instances(&pool.path())? {
            let Some(spec) = spec_of_running(&dir)? else { continue };
            sum.memory = sum.memory.saturating_add(spec.reserved);
            sum.disk = sum.disk.saturating_add(spec.reserved_disk);
            stores.extend(spec.reserved_store.map(|store| (store.digest, store.bytes)));
        }
    }
    Ok((sum, stores))
}

/// The launch of a running or starting machine. Instances of other providers and dead ones have none.
fn spec_of_running(dir: &InstanceDir) -> io::Result<Option<Spec>> {
    let is_dead = dir.life()? == Life::Ended && dir.holder()?.is_none();
    let spec = match dir.read("spec.json") {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
        other => other?,
    };
    Ok(spec.filter(|_| !is_dead))
}

/// The memory for all machines, in bytes. The default leaves a quarter of the runner host's for everything else.
pub(super) fn memory_budget(settings: &Settings) -> io::Result<u64> {
    settings.memory_budget.map_or_else(|| Ok(total_memory()? / 4 * 3), Ok)
}

/// The disk for all machines, in bytes. The default leaves a quarter of the file system for everything else.
pub(super) fn disk_budget(settings: &Settings, pools: &Path) -> io::Result<u64> {
    settings.disk_budget.map_or_else(|| Ok(total_disk(pools)? / 4 * 3), Ok)
}

/// The runner host's memory, in bytes.
fn total_memory() -> io::Result<u64> {
    let total = memory_in(&fs::read_to_string("/proc/meminfo")?);
    total.ok_or_else(|| io::Error::other("/proc/meminfo lacks MemTotal"))
}

/// The memory that the text of /proc/meminfo states, in bytes.
pub(super) fn memory_in(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    kib.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The size of the file system that holds the machines' disks, in bytes.
fn total_disk(pools: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(pools)?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn a_disk_that_is_smaller_than_its_image_is_refused_with_both_sizes() {
        let size = |table: &str, source| {
            disk_bytes(&Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap(), source)
        };
        assert_eq!(size("", 3 << 30), Ok(3 << 30));
        assert_eq!(size("disk = \"8G\"", 3 << 30), Ok(8 << 30));
        assert_eq!(size("disk = \"3G\"", 3 << 30), Ok(3 << 30));
        let smaller = "`disk` is 1024 MiB, but the image `light` has 3072 MiB: set `disk` to at least that, or remove it";
        let refused = size("disk = \"1G\"\nimage = \"light\"", 3 << 30).unwrap_err();
        assert_eq!(DiskError::from(refused).to_string(), smaller);
    }

    fn settings(table: &str) -> Settings {
        Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn what_does_not_fit_is_refused_with_the_numbers() {
        let pools = tempfile::tempdir().unwrap();
        let settings =
            settings("memory = \"128M\"\ndisk = \"1G\"\nmemory_budget = \"200M\"\ndisk_budget = \"3G\"");
        let admit = |memory: u64, disk: u64| {
            let wanted = Resources { memory: memory << 20, disk: disk << 20 };
            admit(pools.path(), wanted, None, &settings, &|| Ok(0))
        };
        drop(admit(200, 3072).await.unwrap());
        for (memory, disk, scope, message) in [
            (201, 3072, "memory", "needs 201 MiB of memory, but 0 of 200 MiB are in use (`memory_budget`)"),
            (200, 3073, "disk", "needs 3073 MiB of disk, but 0 of 3072 MiB are in use (`disk_budget`)"),
        ] {
            let refused = admit(memory, disk).await.unwrap_err();
            assert_eq!(refused.class(), &ErrorClass::NoCapacity { scope: scope.to_owned() });
            assert!(refused.to_string().contains(message), "{refused}");
        }
        let store = |mib: u64| Some(ReservedStore { digest: "d".to_owned(), bytes: mib << 20 });
        let wanted = Resources { memory: 1, disk: 3000 << 20 };
        let templates = || Ok(2 << 20);
        drop(super::admit(pools.path(), wanted, store(70), &settings, &templates).await.unwrap());
        let refused = super::admit(pools.path(), wanted, store(71), &settings, &templates).await.unwrap_err();
        assert!(refused.to_string().contains("but 73 of 3072 MiB are in use (`disk_budget`)"), "{refused}");
        assert!(total_memory().unwrap() > 64 << 20);
        assert!(total_disk(pools.path()).unwrap() > 64 << 20);
    }

    #[test]
    fn instances_of_other_providers_take_nothing() {
        let pools = tempfile::tempdir().unwrap();
        let other = InstanceDir::at(pools.path().join("pool/one"));
        fs::create_dir_all(&other.path).unwrap();
        other.put("spec.json", &serde_json::json!({ "server": "embedded" })).unwrap();
        assert_eq!(taken(pools.path()).unwrap(), (Resources { memory: 0, disk: 0 }, BTreeMap::new()));
    }
}
