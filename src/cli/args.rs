//! The command line: names, help texts, defaults, and what `--version` prints.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::history::HistoryOptions;
use super::image::args::ImageCommand;
use super::init::InitOptions;
use super::plugin::args::PluginCommand;
use super::provider::ProviderCommand;
use crate::config::MetricsAddress;

/// The path of the configuration, unless `--config` or GREENROOM_CONFIG names another.
pub const DEFAULT_CONFIG: &str = "/etc/greenroom/greenroom.toml";

/// Keep CI machines warm for GitLab Runner's custom executor.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, long_version = LONG_VERSION, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Exit status:
  0  success
  1  negative result: for example, a script failed, or doctor found errors
  2  failure; stderr states the cause

In GitLab Runner's calls, the values of BUILD_FAILURE_EXIT_CODE and SYSTEM_FAILURE_EXIT_CODE replace 1 and 2.")]
pub struct Cli {
    #[command(flatten)]
    pub place: GlobalOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// The configuration and the state directory.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalOptions {
    /// Path of the configuration [default: /etc/greenroom/greenroom.toml]
    #[arg(long, global = true, env = "GREENROOM_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Path of the state directory; overrides `state_dir` in the configuration
    #[arg(long, global = true, env = "GREENROOM_STATE_DIR", value_name = "DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

impl GlobalOptions {
    /// The path of the configuration: the given one, or the default; absolute.
    pub fn config_file(&self) -> std::io::Result<PathBuf> {
        std::path::absolute(self.config.as_deref().unwrap_or(std::path::Path::new(DEFAULT_CONFIG)))
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    Runner(RunnerCall),
    #[command(flatten)]
    Operator(OperatorCommand),
    /// Print shell completions
    Completions {
        /// Name of the shell
        shell: clap_complete::Shell,
    },
    /// Print a man page, or write all of them
    #[command(after_help = "\
Examples:
  greenroom man | man -l -               the page of greenroom itself
  greenroom man pool status | man -l -   the page of a command
  greenroom man --dir man1               one file for each command")]
    Man {
        /// Words of a command, such as `pool status` [default: greenroom itself]
        command: Vec<String>,
        /// Write the pages of all commands into this directory
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
    /// Print the JSON Schema of the configuration, for editors
    #[command(after_help = "\
Editors with taplo, such as Visual Studio Code with Even Better TOML, complete and check keys by it. A configuration \
names it in its first line:

  #:schema ./greenroom.schema.json

`greenroom init` writes that line and the file beside the configuration. By hand:

  greenroom schema > /etc/greenroom/greenroom.schema.json")]
    Schema,
    /// Run the processes of `local` instances
    #[command(hide = true)]
    Instance {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// The calls of GitLab Runner.
#[derive(Debug, Subcommand)]
pub enum RunnerCall {
    /// [GitLab Runner] Print directories, shell and environment of a job as JSON
    Config(PoolOption),
    /// [GitLab Runner] Acquire an instance for the job, warm or booted on demand
    Prepare(PoolOption),
    /// [GitLab Runner] Run a stage's script on the job's instance
    Run {
        /// Path of the script that the runner wrote
        script: PathBuf,
        /// Name of the stage; any name is accepted
        stage: String,
    },
    /// [GitLab Runner] Release the job's instance, without waiting for the provider
    Cleanup(PoolOption),
}

/// The commands of operators and timers.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Set up Greenroom: write a configuration, change the runner's, enable the units
    #[command(after_help = super::init::AFTER_HELP)]
    Init(InitOptions),
    /// Run the keeper in the foreground, as a service: it reconciles all pools
    Keep {
        /// Serve metrics at `unix:PATH` or `ADDRESS:PORT`; overrides `metrics` in the configuration
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<MetricsAddress>,
        /// Detach, log to keeper.log, and exit when nothing is left to do: set by the call that needs a keeper
        #[arg(long, hide = true)]
        background: bool,
    },
    /// Run one reconcile pass that ends dead attempts and reaps orphans, without launches
    Reap {
        /// Name of the pool [default: all pools]
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print what the pass would do, without doing it
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print metrics of all pools in Prometheus' text format
    #[command(after_help = "\
Example, in cron, for the textfile collector of the node exporter:
  greenroom metrics --output /var/lib/prometheus/node-exporter/greenroom.prom

`greenroom keep --metrics` serves the same metrics over HTTP. docs/metrics.md describes each of them.

Exit status:
  0  success
  1  the state of a pool cannot be read; the metrics say so
  2  failure; stderr states the cause")]
    Metrics {
        /// Write to this file instead of standard output, and replace it atomically
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Print OpenMetrics 1.0 instead
        #[arg(long)]
        openmetrics: bool,
    },
    /// Inspect and control pools
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Explain what happened to a job, an instance, an offering or a pool, and why
    #[command(after_help = "\
Examples:
  greenroom explain 4711                 a job; or #4711, or its URL
  greenroom explain linux-7f3a01c2-12    an instance
  greenroom explain linux                a pool
  greenroom explain 'us-east1-b n2d-standard-4 spot'    an offering, as `pool status` names it

Each answer ends with the present state, and with the key or command that changes it. Events are kept for `history_days`.

Exit status:
  0  success
  1  no such job, instance, offering or pool
  2  failure; stderr states the cause")]
    Explain {
        /// Number or URL of a job, or name of an instance, an offering or a pool
        what: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the jobs of a period: waits, instances, and how each job ended
    #[command(after_help = "\
Examples:
  greenroom history                              the last 24 hours
  greenroom history --since yesterday            since the start of yesterday
  greenroom history --since 06:30 --until 22:00  between two times today
  greenroom history --since 30d --project 'acme/*' --json

WHEN is a duration before now (`12h`, `2d`), a date (`2026-11-20`), `today`, `yesterday`, a time (`22:30`, \
`2026-11-20 22:30`), or RFC 3339 (`2026-11-20T22:30:00Z`). Without an offset, it is the runner host's time. The period \
contains each job that was waiting or running at any moment in it.

Events are kept for `history_days`. docs/history.md explains the columns.

Exit status:
  0  success, with or without jobs
  1  some records cannot be read
  2  failure; stderr states the cause")]
    History(HistoryOptions),
    /// Diagnose the installation and suggest fixes
    #[command(after_help = "\
The checks are real operations. Doctor writes and locks a file in the state directory, takes the lock of each pool, \
and reads every record. It parses the runner's `[[runners]]` sections as the runner's calls will. Without a flag, \
doctor changes nothing. docs/doctor.md explains the code of each finding.

Exit status:
  0  no errors, but perhaps warnings; with --boot: the instance came up, and is gone
  1  at least one error; with --boot: the instance did not come up, or something of it remains
  2  failure; stderr states the cause")]
    Doctor(DoctorOptions),
    /// Run a job with the calls that GitLab Runner makes, without GitLab
    Try(TryOptions),
    /// Build and manage images of virtual machines
    #[command(subcommand)]
    Image(ImageCommand),
    /// Write and check programs for provider `external`
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Install, list and check plugins for provider `fleeting`
    #[command(subcommand)]
    Plugin(PluginCommand),
}

#[derive(Debug, Args)]
pub struct PoolOption {
    /// Name of the pool; overrides the rules in the configuration
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Show instances, waiting jobs and the active policy
    #[command(after_help = "\
The output fits on one screen: instances that need attention come first, and others are counted. `--wide` shows all \
of them, and the links. It queries each link, and waits at most one second for one that does not respond. `--json` \
always has all instances; `--wide` adds `links` to each of them.
`--watch` redraws in place until Ctrl-C, with a bar of the slots of each pool. Without a terminal, it prints one block \
after the other until its output is closed; with `--json`, one document per line.

Exit status:
  0  success
  1  the state of a pool cannot be read
  2  failure; stderr states the cause")]
    Status {
        /// Name of the pool [default: all pools]
        pool: Option<String>,
        /// Show all instances, waiting jobs and notes, and the links: the processes that hold the connections
        #[arg(long)]
        wide: bool,
        /// Repeat every second until interrupted
        #[arg(long)]
        watch: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List orphaned resources: instances, volumes and others that cost money but have no record
    #[command(after_help = "\
The provider lists all resources of each pool. Those of this state directory's owner are orphaned if they have no \
record, or if their instance has none or is gone.

Listed, but neither counted nor deleted: resources younger than `reap_grace`, resources of other owners, and instances \
that an open attempt of a job names.

A resource of this owner that was never launched from this state directory has one of two causes: a copy of the \
directory is in use, or a part of it is lost. While such resources exist, nothing of their pool is deleted.

The instance of an interrupted `doctor --boot` is orphaned, too.

Exit status:
  0  no orphaned resources
  1  orphaned resources, or resources that were never launched from this state directory
  2  failure; stderr states the cause")]
    Leaks(LeaksOptions),
    /// Drain a pool or an instance: accept no new jobs, and terminate when the running ones have finished
    Drain {
        /// Name of the pool [default: the only pool]
        pool: Option<String>,
        /// ID of one instance to drain instead of the pool
        #[arg(long, value_name = "ID")]
        instance: Option<String>,
        /// Wait until all drained instances are gone
        #[arg(long)]
        wait: bool,
        /// Print what would be drained, without draining it
        #[arg(long)]
        dry_run: bool,
    },
    /// Resume a drained or paused pool, retry its unavailable offerings, or return an instance to service
    Resume {
        /// Name of the pool [default: the only pool]
        pool: Option<String>,
        /// ID of one instance to resume instead of the pool
        #[arg(long, value_name = "ID")]
        instance: Option<String>,
        /// Release a static host from its trust domain: after a cleaning, it serves the next job of any
        /// domain
        #[arg(long, requires = "instance")]
        unbind: bool,
        /// Only drop the records of instances in another account, region or project, or of another
        /// kind of provider. Greenroom no longer terminates them
        #[arg(long, conflicts_with_all = ["instance", "unbind"])]
        forget_elsewhere: bool,
        /// Only drop the records of instances whose provider no longer answers, such as those of a
        /// closed account or a deleted cluster. Greenroom no longer terminates them
        #[arg(long, conflicts_with_all = ["instance", "unbind", "forget_elsewhere"])]
        forget_unreachable: bool,
        /// Print what would change, without changing it
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Default, Args)]
pub struct LeaksOptions {
    /// Name of the pool [default: all pools]
    pub pool: Option<String>,
    /// Delete orphaned resources, and wait until they are gone
    #[arg(long)]
    pub terminate: bool,
    /// With --terminate: print what would be deleted, without deleting it
    #[arg(long, requires = "terminate")]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct DoctorOptions {
    /// Path of the runner's own configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/gitlab-runner/config.toml")]
    pub runner_config: PathBuf,
    /// Repair damaged state, and save the damaged files as backup files
    #[arg(long)]
    pub repair: bool,
    /// Do not report that the state directory does not exist yet
    #[arg(long, hide = true)]
    pub new_installation: bool,
    /// Keep the owner of a state directory that was moved here
    #[arg(long, conflicts_with = "new_owner")]
    pub take_over: bool,
    /// Give a copied state directory an owner of its own
    #[arg(long)]
    pub new_owner: bool,
    /// Show the key of a static host (`jump`: the jump host), and pin it
    #[arg(long, value_name = "HOST", group = "one_host", conflicts_with_all = ["repair", "take_over", "new_owner", "json"])]
    pub pin: Option<String>,
    /// Print the script with which a `clean_user` other than root cleans a static host
    #[arg(long, value_name = "HOST", group = "one_host", conflicts_with_all = ["repair", "take_over", "new_owner", "json", "boot"])]
    pub clean_script: Option<String>,
    /// With --pin or --clean-script: name of the host's pool [default: the only one]
    #[arg(long, value_name = "NAME", requires = "one_host")]
    pub pool: Option<String>,
    /// With --pin: skip the question, and replace a pinned key
    #[arg(long, requires = "pin")]
    pub yes: bool,
    /// Boot an instance of a pool, report each stage, and terminate it
    #[arg(long, value_name = "POOL", conflicts_with_all = ["repair", "take_over", "new_owner", "json", "pin"])]
    pub boot: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TryOptions {
    /// Name of the pool; overrides the rules in the configuration
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Script of the job
    #[arg(default_value = "echo \"Hello from $(hostname), $(uname -sr)\"; pwd")]
    pub script: String,
}

/// The line of `-V`, and two lines that tell builds of one version apart. `build.rs` decides what the commit is.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("GREENROOM_BUILD_COMMIT"),
    "\nfeatures: ",
    env!("GREENROOM_BUILD_FEATURES"),
);

#[cfg(test)]
mod tests {
    #[test]
    fn every_feature_of_this_build_is_named_and_no_other() {
        let built = [
            ("aws-ec2", cfg!(feature = "aws-ec2")),
            ("crash-points", cfg!(feature = "crash-points")),
            ("external", cfg!(feature = "external")),
            ("fleeting", cfg!(feature = "fleeting")),
            ("gce", cfg!(feature = "gce")),
            ("https", cfg!(feature = "https")),
            ("kubernetes", cfg!(feature = "kubernetes")),
            ("server", cfg!(feature = "server")),
            ("test-plugin", cfg!(feature = "test-plugin")),
        ];
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let manifest: toml::Table = manifest.parse().unwrap();
        let features = manifest["features"].as_table().unwrap().keys().map(String::as_str);
        let mut features: Vec<&str> =
            features.filter(|name| !matches!(*name, "backends" | "all-backends")).collect();
        features.sort_unstable();
        assert_eq!(features, built.map(|(name, _)| name), "Cargo.toml has another feature");

        let set: Vec<&str> = built.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        let expected = if set.is_empty() { "none".to_owned() } else { set.join(", ") };
        assert_eq!(env!("GREENROOM_BUILD_FEATURES"), expected);
    }
}
