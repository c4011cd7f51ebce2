//! The command line: names, help texts, defaults.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::image::args::ImageCommand;

/// Where the configuration lies unless somebody says otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/greenroom/greenroom.toml";

/// Keeps CI machines warm for GitLab Runner's custom executor.
#[derive(Debug, Parser)]
#[command(name = "greenroom", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 done; 1 the job or the question has a bad answer (a script failed, doctor \
found errors); 2 something else went wrong, with a sentence on stderr. GitLab Runner's own values for 1 and 2 \
(BUILD_FAILURE_EXIT_CODE, SYSTEM_FAILURE_EXIT_CODE) are used where it sets them."
)]
pub struct Cli {
    #[command(flatten)]
    pub place: GlobalOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// Which configuration and which state directory.
#[derive(Debug, Clone, Default, Args)]
pub struct GlobalOptions {
    /// The configuration file [default: /etc/greenroom/greenroom.toml]
    #[arg(long, global = true, env = "GREENROOM_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// The state directory; overrides `state_dir` of the configuration
    #[arg(long, global = true, env = "GREENROOM_STATE_DIR", value_name = "DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
}

impl GlobalOptions {
    /// The configuration file that is named, or the usual one; absolute.
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
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// The processes behind `local` instances
    #[command(hide = true)]
    Instance {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
}

/// What GitLab Runner calls.
#[derive(Debug, Subcommand)]
pub enum RunnerCall {
    /// [GitLab Runner] Print directories, shell and environment of a job as JSON
    Config(PoolOption),
    /// [GitLab Runner] Acquire an instance for the job: a warm one, or one booted on demand
    Prepare(PoolOption),
    /// [GitLab Runner] Run a stage's script on the job's instance
    Run {
        /// The script file that the runner wrote
        script: PathBuf,
        /// The stage's name; any name is accepted
        stage: String,
    },
    /// [GitLab Runner] Give the job's instance back; returns before the provider has done anything
    Cleanup(PoolOption),
}

/// What people and timers call.
#[derive(Debug, Subcommand)]
pub enum OperatorCommand {
    /// Keep all pools in the foreground: the recommended way, as a service of its own
    Keep {
        /// Started by a call that needed a keeper: detach, log to keeper.log, end when all is settled
        #[arg(long, hide = true)]
        background: bool,
    },
    /// One pass, for cron: end dead attempts, retire, terminate, reap orphans; launch nothing
    Reap {
        /// Only this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print what the pass would do, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Look at pools and steer them
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Tell what happened to a job, an instance or a pool, and why
    #[command(after_help = "For example: `greenroom explain 4711` (or `#4711`, or the job's address), \
`greenroom explain linux-7f3a01c2-12`, `greenroom explain linux`. The answer reaches back as far as `history_days`. \
Exit status: 0 explained; 1 nothing by that name is known; 2 something else went wrong.")]
    Explain {
        /// A job's number, an instance or a pool
        what: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Look for what is wrong, or will go wrong, and say what to do about it
    #[command(
        after_help = "Things are tried for real: a file is written and locked in the state directory, each \
pool's lock is taken, every record is read, the runner's stanza is read the way its calls will be. Without a flag \
nothing is changed. Each finding has a stable code, explained in docs/doctor.md. Exit status: 0 no errors (there may \
be warnings), or the instance of `--boot` came up and is gone; 1 errors, or it did not come up; 2 doctor could not do \
what it was told."
    )]
    Doctor(DoctorOptions),
    /// Play GitLab Runner's part: a whole job, in front of your eyes
    Try(TryOptions),
    /// Build the images of virtual machines, and look after them
    #[command(subcommand)]
    Image(ImageCommand),
}

#[derive(Debug, Args)]
pub struct PoolOption {
    /// The pool, instead of what the rules of the configuration say
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Instances, waiting jobs and the policy in force, at a glance
    #[command(
        after_help = "Exit status: 0; 1 if the state of a pool cannot be read; 2 something else went wrong. \
`--watch` ends with ctrl-C, or when whoever reads it goes; with `--json` it prints one document a line. `--wide` asks \
each link, which takes a second where one does not answer, and adds `links` to the instances of `--json`."
    )]
    Status {
        /// Only this pool
        pool: Option<String>,
        /// Also the links: the processes that hold the connections to instances
        #[arg(long)]
        wide: bool,
        /// Again and again, until interrupted
        #[arg(long)]
        watch: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// What the provider has and no record knows: instances, volumes and others that bill for nothing
    #[command(
        after_help = "Each pool's provider is asked for all that it has. Left over is what has our owner and no record, \
and what was made for an instance that is not recorded or gone, if it is older than `reap_grace`. What another state \
directory made, what is younger, and what an open attempt of a job names is named, not counted, and left alone. Things of \
ours that were never launched from here mean that somebody works with a copy of the state directory, or that a part of it \
is lost: as long as there are any, nothing of their pool is deleted. A `doctor --boot` that was cut off is left over, \
too. Exit status: 0 nothing is left over; 1 something is, or \
there are such things; 2 it could not be found out."
    )]
    Leaks(LeaksOptions),
    /// No new jobs; instances are terminated when their present jobs have ended
    Drain {
        /// The pool [default: the only one]
        pool: Option<String>,
        /// Only this instance; the pool goes on
        #[arg(long, value_name = "ID")]
        instance: Option<String>,
        /// Return when everything drained is gone
        #[arg(long)]
        wait: bool,
        /// Print what would be drained, and drain nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a drained pool work again, end a pause, ask refused offerings anew, or bring back an instance that was set aside
    Resume {
        /// The pool [default: the only one]
        pool: Option<String>,
        /// Only this instance
        #[arg(long, value_name = "ID")]
        instance: Option<String>,
        /// Print what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Default, Args)]
pub struct LeaksOptions {
    /// Only this pool
    pub pool: Option<String>,
    /// Delete what is left over, and wait until it is gone
    #[arg(long)]
    pub terminate: bool,
    /// With --terminate: print what would be deleted, and delete nothing
    #[arg(long, requires = "terminate")]
    pub dry_run: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct DoctorOptions {
    /// The runner's own configuration, to check its stanza for us
    #[arg(long, value_name = "FILE", default_value = "/etc/gitlab-runner/config.toml")]
    pub runner_config: PathBuf,
    /// Mend damaged state: keep what is valid, save the rest aside
    #[arg(long)]
    pub repair: bool,
    /// The state directory was moved here on purpose: go on with the same owner
    #[arg(long, conflicts_with = "new_owner")]
    pub take_over: bool,
    /// This state directory is a copy: become an owner of our own, and leave the other's instances alone
    #[arg(long)]
    pub new_owner: bool,
    /// Show the fingerprint of a host's key (`jump`: the jump host's), ask, and accept it from now on
    #[arg(long, value_name = "HOST", conflicts_with_all = ["repair", "take_over", "new_owner", "json"])]
    pub pin: Option<String>,
    /// With --pin: the host's pool [default: the only one that has it]
    #[arg(long, value_name = "NAME", requires = "pin")]
    pub pool: Option<String>,
    /// With --pin: do not ask, and replace a key that was pinned before
    #[arg(long, requires = "pin")]
    pub yes: bool,
    /// Start an instance of this pool for real, and say how long each stage takes until it is gone again
    #[arg(long, value_name = "POOL", conflicts_with_all = ["repair", "take_over", "new_owner", "json", "pin"])]
    pub boot: Option<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TryOptions {
    /// The pool to try [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// The job's script
    #[arg(default_value = "echo \"Hello from $(hostname), $(uname -sr)\"; pwd")]
    pub script: String,
}
