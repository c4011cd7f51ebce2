//! The options of `init`.

use std::path::PathBuf;

use clap::Args;

pub const AFTER_HELP: &str = "\
In a terminal, init asks for everything that no option sets. Without a terminal, it uses options and defaults alone:

  greenroom init --provider qemu --merge-runner
  greenroom init --provider static --host ci@build-1 --host ci@build-2 --set key=/etc/greenroom/hosts_key
  greenroom init --provider gce --set project=my-project --set image=IMAGE --set machine_types=e2-standard-4 \\
      --set zones=us-east1-b,us-east1-c
  greenroom init --provider kubernetes --set context=ci --set namespace=ci-jobs --set image=IMAGE

An existing configuration is never changed: init prints the tables of a new pool instead. The runner's file is changed \
only with --merge-runner or after a question; its earlier text is kept beside it.

Exit status:
  0  success; doctor found no errors
  1  the files are in place, but doctor found errors
  2  failure; stderr states the cause";

/// What the operator has decided; the rest is asked for, or has a default.
#[derive(Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct InitOptions {
    /// Provider of the pool's instances: qemu, static, local, aws-ec2, gce, kubernetes, external or fleeting
    #[arg(long, value_name = "KIND")]
    pub provider: Option<String>,
    /// Name of the pool [default: vm, hosts, local, ec2, gce, pods or machines, by provider]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Limit of instances [default: what memory allows for qemu, the number of hosts for static, otherwise 4]
    #[arg(long, value_name = "COUNT")]
    pub max_instances: Option<u32>,
    /// Spare job slots that are kept ready [default: 1 for qemu and local, otherwise 0]
    #[arg(long, value_name = "COUNT")]
    pub idle_count: Option<u32>,
    /// With `--provider static`: a host, or its name in `~/.ssh/config` (repeatable)
    #[arg(long = "host", value_name = "[USER@]HOST[:PORT]")]
    pub hosts: Vec<String>,
    /// Set a key of the provider's table or of the pool; commas separate the values of a list (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub keys: Vec<String>,
    /// Path of the runner's own configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/gitlab-runner/config.toml")]
    pub runner_config: PathBuf,
    /// Name of the runner whose `[[runners]]` section calls Greenroom [default: the only one that can]
    #[arg(long, value_name = "NAME")]
    pub runner: Option<String>,
    /// Change the runner's configuration, and keep its earlier text beside it
    #[arg(long)]
    pub merge_runner: bool,
    /// With --merge-runner: change a section that has another executor, or calls another program
    #[arg(long, requires = "merge_runner")]
    pub change_executor: bool,
    /// Enable and start the keeper and the timer of `reap` with systemd
    #[arg(long)]
    pub enable_units: bool,
    /// Ask no questions
    #[arg(long)]
    pub no_questions: bool,
    /// Print everything that would be written, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
