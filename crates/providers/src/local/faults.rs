//! Failed launches that the operator injects.
//!
//! The counter is a file of the pool, so that it works across processes. The caller holds the pool's lock.

use std::io;
use std::path::Path;

use fs_err as fs;
use greenroom_core::failure::ErrorClass;
use greenroom_keys::Takes;
use greenroom_keys::table::Table;
use greenroom_ports::provider::ProviderError;
use serde::{Deserialize, Serialize};

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
struct Counted {
    setting: FailLaunch,
    failed: u32,
}

impl FailLaunch {
    pub(super) fn read(table: &Table<'_>) -> Self {
        let classes = format!("set it to {}", Takes::Word(CLASSES));
        let class = table.required("class", table.word("class"), classes);
        let first =
            table.required("first", table.count("first"), "set it to the number of launches that fail");
        Self { class: class.or_default().to_owned(), first: first.or_default() }
    }

    /// Counts one launch and returns the failure to inject, if any. A changed setting restarts the count.
    pub(super) fn count(&self, file: &Path) -> io::Result<Option<ProviderError>> {
        let before: Option<Counted> = match fs::read(file) {
            // A torn counter does not fail the launch: the count restarts.
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let failed = before.filter(|before| before.setting == *self).map_or(0, |before| before.failed);
        if failed >= self.first {
            return Ok(None);
        }
        let counted = Counted { setting: self.clone(), failed: failed + 1 };
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
