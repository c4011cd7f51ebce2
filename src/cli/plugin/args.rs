//! Arguments of `greenroom plugin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List the installed plugins, and the pools that use them
    #[command(after_help = "\
The digest is that of the version's index in the registry, from the lock file `greenroom-plugins.lock` in the plugin \
directory. Plugins that another program installed have none.

Exit status:
  0  success
  1  the plugin of a pool is not installed
  2  failure; stderr states the cause")]
    List(ListOptions),
    /// Install plugins from an OCI registry
    #[command(after_help = "\
Examples:
  greenroom plugin install aws                      the newest release of GitLab's plugin for AWS
  greenroom plugin install googlecloud:1 --upgrade  the newest release 1.x.y
  greenroom plugin install hetznercloud/fleeting-plugin-hetzner:1.4.5
  greenroom plugin install registry.example.com/team/own:1.2.3
  greenroom plugin install                          the plugins of all pools, in the locked versions

An installed version that the name allows is kept, unless `--upgrade` is given. Each download is checked against its \
digest, and against the lock file. Credentials for registries come from `auths` in Docker's `config.json`. \
docs/providers/fleeting-plugins.md has the details.

Exit status:
  0  all plugins are installed
  2  failure; stderr states the cause")]
    Install(InstallOptions),
    /// Check with the conformance kit that a plugin does what Greenroom relies on
    #[command(after_help = "\
Without --live, the kit creates no instance: it starts the plugin twice, and lists its group. With --live, it needs an \
empty group of its own, and asks first. It creates up to three instances, kills the plugin once, and removes the \
instances one after the other. At the end, and after Ctrl-C, it removes every instance of the group.

Examples:
  greenroom plugin test googlecloud --table pool.toml
  greenroom plugin test ./fleeting-plugin-own --table pool.toml --live
  greenroom plugin test googlecloud --table pool.toml --clean

docs/providers/fleeting-kit.md explains each check.

Exit status:
  0  the plugin conforms; with --clean: nothing is left
  1  at least one check failed; with --clean: something is left
  2  the kit could not be run, or was interrupted; stderr states the cause")]
    Test(TestOptions),
}

#[derive(Debug, Args)]
pub struct ListOptions {
    /// Path of the plugin directory [default: ~/.config/fleeting/plugins]
    #[arg(long, env = "FLEETING_PLUGIN_PATH", value_name = "DIR", hide_env_values = true)]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InstallOptions {
    /// `[[REGISTRY/]REPOSITORY/]NAME[:VERSION]`; VERSION is `latest`, `1`, `1.2` or `1.2.3` [default: what pools name]
    #[arg(value_name = "NAME[:VERSION]")]
    pub plugins: Vec<String>,
    /// Install the newest version that the name allows
    #[arg(long)]
    pub upgrade: bool,
    /// Registry of names without one [default: registry.gitlab.com]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub registry: Option<String>,
    /// Allow plain HTTP, without encryption; on loopback, it is always allowed
    #[arg(long)]
    pub insecure: bool,
    /// Path of the plugin directory [default: ~/.config/fleeting/plugins]
    #[arg(long, env = "FLEETING_PLUGIN_PATH", value_name = "DIR", hide_env_values = true)]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct TestOptions {
    /// The plugin as a pool names it, or a path [default: the table's key `plugin`]
    pub plugin: Option<String>,
    /// TOML file with the keys of a pool's provider table, such as `plugin_config`
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
    /// Also create instances
    #[arg(long)]
    pub live: bool,
    /// Skip the question
    #[arg(long)]
    pub yes: bool,
    /// With --live: longest time from the request of an instance to a login, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub boot_timeout: u64,
    /// With --live: longest time from the request of a removal until the instance is gone, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub end_timeout: u64,
    /// Only remove every instance of the group
    #[arg(long, conflicts_with = "live")]
    pub clean: bool,
    /// Path of the plugin directory [default: ~/.config/fleeting/plugins]
    #[arg(long, env = "FLEETING_PLUGIN_PATH", value_name = "DIR", hide_env_values = true)]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
