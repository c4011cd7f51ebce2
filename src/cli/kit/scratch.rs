//! A directory for the keys of a kit's run.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use fs_err as fs;
use greenroom_core::text::hex;
use greenroom_ssh::{Ssh, SshSettings};

use crate::cli::error::CliError;

/// A directory for keys, which goes with the run.
#[derive(Debug)]
pub(in crate::cli) struct Scratch {
    path: PathBuf,
    /// Distinguishes this run's launches.
    pub(in crate::cli) run: String,
}

impl Scratch {
    pub(in crate::cli) fn make() -> Result<Self, CliError> {
        let mut random = [0_u8; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let run = hex(&random);
        let path = std::env::temp_dir().join(format!("greenroom-kit-{run}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, run })
    }

    #[cfg(feature = "fleeting")]
    pub(in crate::cli) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(in crate::cli) fn ssh(&self) -> Ssh {
        Ssh::new(SshSettings::new(self.path.join("keys")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}
