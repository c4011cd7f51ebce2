//! `greenroom plugin`: the plugins of provider `fleeting` on this host.

pub(super) mod args;
mod install;
mod list;
mod pools;
#[cfg(feature = "fleeting")]
mod test;

use std::path::PathBuf;

use greenroom_backends::fleeting::locate::{Places, VARIABLE};

use super::args::GlobalOptions;
use super::error::CliError;
use args::PluginCommand;

/// Runs a command; false is a negative result.
pub(super) async fn plugin(place: &GlobalOptions, command: PluginCommand) -> Result<bool, CliError> {
    match command {
        PluginCommand::List(options) => list::list(place, &options),
        PluginCommand::Install(options) => install::install(place, &options).await,
        PluginCommand::Test(options) => test::test(&options).await,
    }
}

#[cfg(not(feature = "fleeting"))]
mod test {
    //! A program without plugins: `cli::program` re-executes it as the one that has them.

    use super::args::TestOptions;
    use crate::cli::error::CliError;

    #[expect(clippy::unused_async, reason = "the signature of the other one")]
    pub(super) async fn test(_: &TestOptions) -> Result<bool, CliError> {
        Err(CliError::say("this program was built without the feature `fleeting`, and cannot run plugins"))
    }
}

/// Where plugins are: the given directory, or that of this process.
fn places(given: Option<&PathBuf>) -> Result<Places, CliError> {
    let places = Places::of_process();
    let plugins = match given {
        Some(given) => Some(std::path::absolute(given)?),
        None => places.plugins,
    };
    Ok(Places { plugins, ..places })
}

/// The plugin directory.
fn directory(places: &Places) -> Result<&PathBuf, CliError> {
    places.plugins.as_ref().ok_or_else(|| {
        CliError::say(format!(
            "there is no plugin directory: neither {VARIABLE} nor HOME is an absolute path"
        ))
        .help("name one with `--dir DIR`")
    })
}
