//! `greenroom plugin install`.

use greenroom_backends::fleeting::artifact::lock_file::LockFile;
use greenroom_backends::fleeting::reference::Reference;

use super::args::InstallOptions;
use super::{directory, places, plugin_pools};
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;

/// Installs the named plugins, or those of the pools, or those of the lock file.
pub(super) async fn install(place: &GlobalOptions, options: &InstallOptions) -> Result<bool, CliError> {
    let places = places(options.dir.as_ref())?;
    let directory = directory(&places)?;
    let references = if options.plugins.is_empty() {
        wanted(place, &LockFile::read(directory)?)?
    } else {
        named(options)?
    };
    for reference in &references {
        carried_out::install(directory, reference, options).await?;
    }
    Ok(true)
}

fn named(options: &InstallOptions) -> Result<Vec<Reference>, CliError> {
    let read = |text: &String| {
        let wrong = |wrong| CliError::say(format!("the name `{text}` {wrong}"));
        Reference::parse(text, options.registry.as_deref()).map_err(wrong)
    };
    options.plugins.iter().map(read).collect()
}

/// The plugins that the configuration's pools name; without such pools, those of the lock file.
fn wanted(place: &GlobalOptions, locked: &LockFile) -> Result<Vec<Reference>, CliError> {
    let mut references = Vec::new();
    let pools = plugin_pools(place)?;
    for pool in &pools {
        references.extend(pool.source()?.reference().filter(|wanted| !references.contains(*wanted)).cloned());
    }
    if pools.is_empty() {
        references = locked.references();
    }
    if references.is_empty() {
        return Err(CliError::say(
            "no pool of the configuration names a plugin to install, and the lock file is empty",
        )
        .help("name a plugin: `greenroom plugin install aws`"));
    }
    Ok(references)
}

#[cfg(feature = "fleeting")]
mod carried_out {
    //! The installation itself, in the program that can call registries.

    use std::cell::Cell;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use greenroom_backends::fleeting::artifact::credentials::{self, Credentials};
    use greenroom_backends::fleeting::artifact::document::Platform;
    use greenroom_backends::fleeting::artifact::install::{
        self, InstallError, InstallProgress, InstallRequest,
    };
    use greenroom_backends::fleeting::reference::Reference;

    use crate::cli::error::CliError;
    use crate::cli::plugin::args::InstallOptions;
    use crate::cli::ui;

    /// The interval at which a long download reports its progress.
    const INTERVAL: Duration = Duration::from_secs(2);

    pub(super) async fn install(
        directory: &Path,
        reference: &Reference,
        options: &InstallOptions,
    ) -> Result<(), CliError> {
        let request = InstallRequest {
            directory,
            reference,
            upgrade: options.upgrade,
            insecure: options.insecure,
            platform: &Platform::here(),
        };
        let registry = &reference.plugin.registry;
        let credentials = async || match credentials::path() {
            Some(path) => credentials::read(&path, registry).await,
            None => Ok(Credentials::default()),
        };
        let last = Cell::new(Instant::now());
        let report = |progress: InstallProgress<'_>| report(reference, &last, progress);
        let outcome = Box::pin(install::install(&request, credentials, &report)).await.map_err(explained)?;
        let version = &outcome.installed.version;
        let program = outcome.installed.program.display();
        let name = reference.plugin.short();
        ui::out(&if outcome.is_new {
            format!("installed {name} {version}: {program}\n")
        } else {
            format!("{name} {version} is already installed: {program}\n")
        });
        Ok(())
    }

    fn explained(error: InstallError) -> CliError {
        let help = error.help();
        let error = CliError::system(error);
        match help {
            Some(help) => error.help(help),
            None => error,
        }
    }

    fn report(reference: &Reference, last: &Cell<Instant>, progress: InstallProgress<'_>) {
        match progress {
            InstallProgress::Waiting => ui::tell("another installation is running; waiting for it"),
            InstallProgress::Found { version, bytes } => {
                last.set(Instant::now());
                ui::tell(&format!(
                    "downloading {} {version}, {}",
                    reference.plugin.short(),
                    megabytes(bytes)
                ));
            }
            InstallProgress::Downloaded { bytes, of } if last.get().elapsed() >= INTERVAL => {
                last.set(Instant::now());
                ui::tell(&format!("downloaded {} of {}", megabytes(bytes), megabytes(of)));
            }
            InstallProgress::Downloaded { .. } => {}
        }
    }

    fn megabytes(bytes: u64) -> String {
        format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
    }
}

#[cfg(not(feature = "fleeting"))]
mod carried_out {
    //! A program without calls of registries: [`cli::program`](crate::cli::program) re-executes it as the one that has them.

    use std::path::Path;

    use greenroom_backends::fleeting::reference::Reference;

    use crate::cli::error::CliError;
    use crate::cli::plugin::args::InstallOptions;

    #[expect(clippy::unused_async, reason = "the signature of the other one")]
    pub(super) async fn install(_: &Path, _: &Reference, _: &InstallOptions) -> Result<(), CliError> {
        Err(CliError::say(
            "this program was built without the feature `fleeting`, and cannot install plugins",
        ))
    }
}
