//! Never starts more machines than the runner host can hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_ports::provider::ProviderError;

use super::settings::{Accel, Settings};
use super::spec::{ReservedStore, Spec};
use crate::instance_dir::{InstanceDir, Life};
use crate::launch::{instances, locked};

/// Memory that QEMU takes in addition to the guest's, in bytes.
const OVERHEAD: u64 = 64 << 20;
/// Memory that emulation takes in addition to that: translated code (`tb-size`), in bytes.
pub(super) const TRANSLATED: u64 = 64 << 20;

/// What machines take of the runner host at most, in bytes.
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

/// Checks that another machine fits beside those of all pools. `templates`: the disk of those with images. The caller holds the lock until the machine exists.
pub(super) async fn admit(
    pools: &Path,
    wanted: Resources,
    store: Option<ReservedStore>,
    (settings, templates): (&Settings, &dyn Fn() -> io::Result<u64>),
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

/// What the running and starting machines of all pools have reserved, and the bytes of their image stores by digest.
fn taken(pools: &Path) -> io::Result<(Resources, BTreeMap<String, u64>)> {
    let (mut sum, mut stores) = (Resources { memory: 0, disk: 0 }, BTreeMap::new());
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
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/meminfo lacks MemTotal"))
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
            admit(pools.path(), wanted, None, (&settings, &|| Ok(0)))
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
        drop(super::admit(pools.path(), wanted, store(70), (&settings, &templates)).await.unwrap());
        let refused =
            super::admit(pools.path(), wanted, store(71), (&settings, &templates)).await.unwrap_err();
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
