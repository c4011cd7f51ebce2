//! `greenroom provider`: help for authors of programs for the provider `external`.

pub(super) mod args;
mod new;
mod progress;
mod run;
mod test;

use args::ProviderCommand;

use super::error::CliError;

/// Runs a command; false is a negative result.
pub(super) async fn provider(command: ProviderCommand) -> Result<bool, CliError> {
    match command {
        ProviderCommand::Test(options) => test::test(&options).await,
        ProviderCommand::New(options) => new::new(&options).map(|()| true),
    }
}
