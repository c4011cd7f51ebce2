//! `greenroom provider`: help for authors of programs for the provider `external`.

mod new;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::error::CliError;

/// Runs a command; false is a negative result.
pub(super) async fn provider(command: ProviderCommand) -> Result<bool, CliError> {
    match command {
        ProviderCommand::Test(options) => test::test(&options).await,
        ProviderCommand::New(options) => new::new(&options).map(|()| true),
    }
}

#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Check with the conformance kit that a program keeps the promises of provider `external`
    #[command(after_help = "\
Without --live, the kit creates no machine. It calls every verb with requests that the program has to answer or refuse, \
and terminates nothing that exists. With --live, it states the price that the program reports, and asks. Then it creates \
about six machines in the pools `greenroom-kit` and `greenroom-kit-2`. At the end, and after Ctrl-C, it terminates \
all of them.

Examples:
  greenroom provider test ./machines --settings settings.toml
  greenroom provider test ./machines --settings settings.toml --env HCLOUD_TOKEN --live
  greenroom provider test ./machines --settings settings.toml --clean

docs/providers/external-kit.md explains each check.

Exit status:
  0  the program conforms; with --clean: nothing is left
  1  at least one check failed; with --clean: something is left
  2  the kit could not be run, or was interrupted; stderr states the cause")]
    Test(Box<TestOptions>),
    /// Write a working program for provider `external`, with its test, to start from
    #[command(after_help = "\
The program works as it is: each of its machines is an `sshd` on this host. It passes `greenroom provider test --live`. \
To adapt it, replace one function after the other.

Example:
  greenroom provider new cloud --language python
  cloud/test

Exit status:
  0  the files are written
  2  failure, such as a file that exists; stderr states the cause")]
    New(NewOptions),
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct TestOptions {
    /// Path of the program
    pub program: PathBuf,
    /// TOML file with the key `settings` of the pool's table
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Name of an environment variable to pass on, as the key `env` does (repeatable)
    #[arg(long, value_name = "NAME")]
    pub env: Vec<String>,
    /// Environment variable with the content of a file, as the key `secrets` does (repeatable)
    #[arg(long, value_name = "NAME=FILE", value_parser = secret)]
    pub secret: Vec<(String, PathBuf)>,
    /// Working directory of the program [default: the program's directory]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Time limit of each call in seconds [default: that of its verb]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub call_timeout: Option<u64>,
    /// Also create machines
    #[arg(long)]
    pub live: bool,
    /// With --live: skip the question
    #[arg(long, requires = "live")]
    pub yes: bool,
    /// With --live: account that logs in to the machines
    #[arg(long, value_name = "NAME", default_value = "root")]
    pub user: String,
    /// With --live: longest time from a launch to the first login, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub boot_timeout: u64,
    /// With --live: longest time from a termination until the machine is gone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub end_timeout: u64,
    /// With --live: command that deletes a machine without the program, with the machine's ID as its argument
    #[arg(long, value_name = "COMMAND")]
    pub delete_with: Option<PathBuf>,
    /// With --live: file with public keys of the certificate authorities that sign host keys, one per line
    #[arg(long, value_name = "FILE")]
    pub host_key_ca: Option<PathBuf>,
    /// Only terminate the machines that an interrupted run has left in the kit's pools
    #[arg(long, conflicts_with = "live")]
    pub clean: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The language of a new program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// POSIX shell, with jq
    Sh,
    /// Python 3, without packages
    Python,
    /// Go, without modules
    Go,
}

#[derive(Debug, Args)]
pub struct NewOptions {
    /// Name of the program: lower-case letters, digits and hyphens
    pub name: String,
    /// Language of the program
    #[arg(long, value_enum)]
    pub language: Language,
    /// Directory to write, which must be empty or missing [default: NAME]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// An environment variable without its file.
#[derive(Debug, thiserror::Error)]
#[error("write NAME=FILE")]
struct NoFile;

fn secret(text: &str) -> Result<(String, PathBuf), NoFile> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(file)))
        }
        _ => Err(NoFile),
    }
}
