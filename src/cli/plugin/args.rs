//! Arguments of `greenroom plugin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List the installed plugins, and the pools that use them
    #[command(after_help = "\
The digest is that of the version's index in the registry, from the lock file `greenroom-plugins.lock` in the plugin \
directory. Plugins that another program has installed have none.

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
  greenroom plugin install                          the plugins of all pools, in locked versions

An installed version that the name allows is enough, unless `--upgrade` is given. Each content is checked against its \
digest, and against the lock file. Accounts of registries come from `auths` in Docker's `config.json`. \
docs/providers/fleeting-plugins.md has more.

Exit status:
  0  all plugins are installed
  2  failure; stderr states the cause")]
    Install(InstallOptions),
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
