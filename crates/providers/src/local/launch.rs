//! The local part of a launch: the instance's spec, and injected faults.

use std::io;
use std::path::Path;

use async_trait::async_trait;
use greenroom_core::failure::ErrorClass;
use greenroom_core::time::Stamp;
use greenroom_ports::provider::{LaunchRequest, ProviderError};

use super::dir::Spec;
use super::settings::Settings;
use crate::instance_dir::{InstanceDir, Launched};
use crate::launch::{Admitted, Recipe, instances, random};

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
