//! Never starts more machines than the runner host's memory can hold.

use std::io;
use std::path::Path;

use fs_err as fs;

use super::settings::{Accel, Settings};
use super::spec::Spec;
use crate::core::failure::ErrorClass;
use crate::port::provider::ProviderError;
use crate::provider::instance_dir::{InstanceDir, Life};
use crate::provider::launch::instances;

/// Memory that QEMU takes in addition to the guest's, in bytes.
pub(super) const OVERHEAD: u64 = 64 << 20;
/// Memory that emulation takes in addition to that: translated code (`tb-size`), in bytes.
pub(super) const TRANSLATED: u64 = 64 << 20;

/// The memory that a machine may take, in bytes. One that may be emulated counts as emulated.
pub(super) fn reservation(settings: &Settings) -> u64 {
    let translated = if settings.accel == Accel::Kvm { 0 } else { TRANSLATED };
    settings.memory + OVERHEAD + translated
}

/// Checks that another machine fits beside those of all pools. The caller holds the lock until the machine exists.
pub(super) fn admit(pools: &Path, wanted: u64, budget: Option<u64>) -> Result<fs::File, ProviderError> {
    let transient = |error: io::Error| ProviderError::new(ErrorClass::Transient, error.to_string());
    let budget = budget.map_or_else(default_budget, Ok).map_err(transient)?;
    let lock = fs::File::create(pools.join(".memory")).map_err(transient)?;
    lock.file().lock().map_err(transient)?;
    let taken = taken(pools).map_err(transient)?;
    if taken.saturating_add(wanted) <= budget {
        return Ok(lock);
    }
    let mib = |bytes: u64| bytes >> 20;
    let message = format!(
        "a virtual machine needs {} MiB, but {} of {} MiB are in use (`memory_budget`)",
        mib(wanted),
        mib(taken),
        mib(budget)
    );
    Err(ProviderError::new(ErrorClass::NoCapacity { scope: "memory".to_owned() }, message))
}

/// The memory that the running and starting machines of all pools have reserved, in bytes.
fn taken(pools: &Path) -> io::Result<u64> {
    let mut sum = 0_u64;
    for pool in fs::read_dir(pools)? {
        let pool = pool?;
        if !pool.file_type()?.is_dir() {
            continue;
        }
        for dir in instances(&pool.path())? {
            sum = sum.saturating_add(reserved(&dir)?);
        }
    }
    Ok(sum)
}

/// The reservation of an instance, in bytes. Instances of other providers and dead ones count nothing.
fn reserved(dir: &InstanceDir) -> io::Result<u64> {
    let is_dead = dir.life()? == Life::Ended && dir.holder()?.is_none();
    let spec: Option<Spec> = match dir.read("spec.json") {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
        other => other?,
    };
    Ok(spec.filter(|_| !is_dead).map_or(0, |spec| spec.reserved))
}

/// Three quarters of the runner host's memory, in bytes: the rest is for everything else.
pub(super) fn default_budget() -> io::Result<u64> {
    Ok(total()? / 4 * 3)
}

/// The runner host's memory, in bytes.
fn total() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/meminfo lacks MemTotal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let pools = tempfile::tempdir().unwrap();
        admit(pools.path(), 100 << 20, Some(100 << 20)).unwrap();
        let refused = admit(pools.path(), 101 << 20, Some(100 << 20)).unwrap_err();
        assert_eq!(refused.class(), &ErrorClass::NoCapacity { scope: "memory".to_owned() });
        assert!(
            refused.to_string().contains("a virtual machine needs 101 MiB, but 0 of 100 MiB are in use"),
            "{refused}"
        );
        assert!(total().unwrap() > 64 << 20);
    }

    #[test]
    fn instances_of_other_providers_take_nothing() {
        let pools = tempfile::tempdir().unwrap();
        let other = InstanceDir::at(pools.path().join("pool/one"));
        fs::create_dir_all(&other.path).unwrap();
        other.put("spec.json", &serde_json::json!({ "server": "embedded" })).unwrap();
        assert_eq!(taken(pools.path()).unwrap(), 0);
    }
}
