//! The local part of a launch: the instance's spec, and the failures that the operator injects.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_core::time::{Stamp, millis};
use greenroom_keys::ValueType;
use greenroom_keys::table::Table;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest, ProviderError};
use serde::{Deserialize, Serialize};

use super::settings::{ServerKind, Settings};
use crate::supervised::instance_dir::{InstanceDir, Launched, make_private, write_private};
use crate::supervised::launch::{Admitted, Recipe, instances, random};

/// One launch, with everything that its directory is made from.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    pub(super) pool_dir: &'a Path,
    pub(super) settings: &'a Settings,
    pub(super) request: &'a LaunchRequest,
    pub(super) now: Stamp,
}

fn refused(error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, error.to_string())
}

#[async_trait(?Send)]
impl Recipe for Launch<'_> {
    async fn admit(&self) -> Result<Admitted, ProviderError> {
        if let Some(limit) = self.settings.no_capacity {
            let there = instances(self.pool_dir).map_err(|error| refused(&error))?.len();
            if there >= limit as usize {
                let message = format!("{there} instances exist (no_capacity = {limit})");
                let scope = "no_capacity".to_owned();
                return Err(ProviderError::new(ErrorClass::NoCapacity { scope }, message));
            }
        }
        let Some(fail) = &self.settings.fail_launch else { return Ok(Admitted::default()) };
        let failure = fail.count(&self.pool_dir.join(".faults.json")).map_err(|error| refused(&error))?;
        match failure {
            Some(failure) if failure.class().is_definite() => Err(failure),
            lost => Ok(Admitted { lost, lock: None }),
        }
    }

    fn write(&self, dir: &InstanceDir) -> io::Result<()> {
        let settings = self.settings;
        let spec = Spec {
            launched: Launched::new(self.request, self.now),
            cookie: format!("{}:{}", self.request.instance, random()?),
            server: settings.server,
            sshd: settings.sshd.clone(),
            boot_delay: settings.boot_delay,
            die_after_ms: settings.die_after.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            list_lag: settings.list_lag,
        };
        spec.fill(dir, &self.request.keys)
    }
}

/// The settings of a launched instance; never changed afterwards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(flatten)]
    pub(super) launched: Launched,
    /// Part of the environment of all processes of the instance, which identifies them in any session.
    pub(super) cookie: String,
    pub(super) server: ServerKind,
    #[serde(default)]
    pub(super) sshd: Option<PathBuf>,
    #[serde(with = "millis")]
    pub(super) boot_delay: Duration,
    /// Milliseconds.
    #[serde(default)]
    pub(super) die_after_ms: Option<u64>,
    #[serde(with = "millis")]
    pub(super) list_lag: Duration,
}

impl Spec {
    /// Writes the files of a new instance; the caller moves the directory into place.
    pub(super) fn fill(&self, dir: &InstanceDir, keys: &InstanceKeys) -> io::Result<()> {
        dir.fill(keys)?;
        for inner in ["home", "work", "sessions"] {
            make_private(&dir.file(inner))?;
        }
        write_private(&dir.file("spec.json"), &serde_json::to_vec_pretty(self)?)
    }
}

pub(super) const CLASSES: &[&str] =
    &["no-capacity", "quota", "denied", "invalid", "throttled", "transient", "unknown"];

/// The first `first` launches fail with an error class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FailLaunch {
    class: String,
    first: u32,
}

/// The number of failed launches so far, and the setting that it belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct InjectedFailures {
    setting: FailLaunch,
    failed: u32,
}

impl FailLaunch {
    pub(super) fn read(table: &Table<'_>) -> Self {
        let classes = format!("set it to {}", ValueType::Word(CLASSES));
        let class = table.required("class", table.word("class"), classes);
        let first =
            table.required("first", table.count("first"), "set it to the number of launches that fail");
        Self { class: class.or_default().to_owned(), first: first.or_default() }
    }

    /// Counts one launch and returns the failure to inject, if any. A changed setting restarts the count.
    pub(super) fn count(&self, file: &Path) -> io::Result<Option<ProviderError>> {
        let before: Option<InjectedFailures> = match fs::read(file) {
            // A torn counter does not fail the launch: the count restarts.
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let failed = before.filter(|before| before.setting == *self).map_or(0, |before| before.failed);
        if failed >= self.first {
            return Ok(None);
        }
        let counted = InjectedFailures { setting: self.clone(), failed: failed + 1 };
        fs::write(file, serde_json::to_vec(&counted)?)?;
        let message = format!("injected by `fail_launch` ({} of {})", failed + 1, self.first);
        Ok(Some(ProviderError::new(self.error_class(), message)))
    }

    fn error_class(&self) -> ErrorClass {
        match self.class.as_str() {
            "no-capacity" => ErrorClass::NoCapacity { scope: "fail_launch".to_owned() },
            "quota" => ErrorClass::Quota,
            "denied" => ErrorClass::Denied,
            "invalid" => ErrorClass::Invalid,
            "throttled" => ErrorClass::Throttled { until: None },
            "unknown" => ErrorClass::Unknown,
            _ => ErrorClass::Transient,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(class: &str, first: u32) -> FailLaunch {
        FailLaunch { class: class.to_owned(), first }
    }

    #[test]
    fn the_first_launches_fail_whoever_asks_and_a_changed_setting_starts_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults.json");
        let class = |setting: &FailLaunch| setting.count(&file).unwrap().map(|e| e.class().clone());
        for _ in 0..2 {
            assert_eq!(class(&fail("quota", 2)), Some(ErrorClass::Quota));
        }
        assert_eq!(class(&fail("quota", 2)), None);
        assert_eq!(class(&fail("denied", 1)), Some(ErrorClass::Denied));
        assert_eq!(class(&fail("denied", 1)), None);
    }

    #[test]
    fn every_class_of_the_example_is_its_own() {
        let classes: Vec<ErrorClass> = CLASSES.iter().map(|class| fail(class, 1).error_class()).collect();
        for (at, class) in classes.iter().enumerate() {
            assert!(!classes[..at].contains(class), "{class}");
        }
    }
}
