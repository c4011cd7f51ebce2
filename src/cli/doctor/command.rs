//! The command `doctor`.

use std::path::Path;

use super::examine::{CheckPaths, examine};
use super::keeper::UNIT_DIRS;
use crate::cli::args::{DoctorOptions, GlobalOptions};
use crate::cli::error::CliError;
use crate::cli::locate::config_file;
use crate::cli::{program, ui};

/// This directory exists if systemd manages the runner host: `sd_booted(3)`.
const SYSTEMD: &str = "/run/systemd/system";

/// Examines the installation; false if an error is among the findings.
pub(in crate::cli) async fn doctor(place: &GlobalOptions, options: &DoctorOptions) -> Result<bool, CliError> {
    if let Some(host) = &options.pin {
        return super::pin::pin(place, options, host).await;
    }
    if let Some(host) = &options.clean_script {
        return super::clean_script::print(place, options.pool.as_deref(), host);
    }
    if let Some(pool) = &options.boot {
        return super::boot::boot(place, pool).await;
    }
    let config = config_file(place)?;
    let program = program::driver()?;
    let unit_dirs: Vec<&Path> = UNIT_DIRS.iter().map(Path::new).collect();
    let ground = CheckPaths {
        config: &config,
        state_dir: place.state_dir.as_deref(),
        program: &program,
        unit_dirs: &unit_dirs,
        has_systemd: Path::new(SYSTEMD).is_dir(),
    };
    let examined = examine(&ground, options).await?;
    if options.json {
        ui::out(&format!("{:#}\n", examined.json()));
    } else {
        ui::out(&examined.text(ui::width()));
    }
    Ok(!examined.is_bad())
}
