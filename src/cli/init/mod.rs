//! The command `init`: a configuration, the runner's section and the units, from what is on this machine.
//!
//! All checks come before the first write. Each file is written whole, so a call that is interrupted can be
//! repeated: it finds what is there, and goes on.

mod draft;
mod files;
mod pool;
mod runner;
mod stanza;
mod units;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use clap::Args;
use greenroom_core::time::ManagerId;
use greenroom_keys::schema;
use greenroom_manager::runner_host::SystemClock;
use greenroom_ports::host_keys::Unconnected;

use super::args::GlobalOptions;
use super::error::CliError;
use super::prompt::Questions;
use super::setup::{ProviderContext, objection};
use super::{program, ui};
use crate::config::{Config, ConfigError, Diagnostics, default_state_dir};
use crate::provider;
use draft::Draft;
use pool::FoundHere;
use units::Units;

/// The plan for the configuration.
enum ConfigPlan {
    Write { text: String, draft: Box<Draft>, surroundings: FoundHere },
    Keep,
}

/// Sets up Greenroom; false if doctor finds errors afterwards.
pub(super) fn init(place: &GlobalOptions, options: &InitOptions) -> Result<bool, CliError> {
    let path = place.config_file()?;
    let ask = Questions::new(options.no_questions);
    let units = Units::look();
    if let (true, Some((problem, help))) = (options.enable_units, units.problem()) {
        return Err(CliError::say(format!("`--enable-units`: {problem}")).help(help));
    }
    let (config, plan) = match path.symlink_metadata() {
        Ok(_) => kept(place, options, &path, ask)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => new(place, options, &path, ask)?,
        Err(error) => return Err(runner::cannot("read", &path, &error)),
    };
    let runner = runner::plan(place, options, &config, ask)?;
    if options.dry_run {
        show(&path, &plan);
        runner.show(&options.runner_config);
        units::show(&units, options.enable_units);
        ui::out("Nothing was changed: this is a dry run.\n");
        return Ok(true);
    }
    write(&path, &plan)?;
    runner.carry_out(&options.runner_config, options.merge_runner, ask)?;
    if units == Units::Ready
        && (options.enable_units
            || ask.yes("Enable the keeper and the timer of `reap` with systemd?", true)?)
    {
        units::enable()?;
        ui::out("Enabled the keeper and the timer of `reap`.\n");
    } else {
        units::show(&units, false);
    }
    let is_new = matches!(plan, ConfigPlan::Write { .. });
    let is_sound = doctor(place, &options.runner_config, is_new)?;
    // Last, because the findings are about what these commands do.
    if let ConfigPlan::Write { draft, surroundings, .. } = &plan {
        units::show_next(draft, surroundings, &units::calls_of(place));
    }
    Ok(is_sound)
}

/// A configuration that is there stays as it is.
fn kept(
    place: &GlobalOptions,
    options: &InitOptions,
    path: &Path,
    ask: Questions,
) -> Result<(Config, ConfigPlan), CliError> {
    let shown = path.display();
    let read = Config::read(path).map_err(|error| {
        CliError::config(error).help(format!("correct `{shown}`, or move it away, then run init again"))
    });
    let (config, _) = read?;
    let names: Vec<&str> = config.pools.keys().map(greenroom_core::ids::PoolName::as_str).collect();
    ui::out(&format!("`{shown}` exists and is not changed. Its pools: {}.\n", names.join(", ")));
    let known = options.provider.as_deref().map(provider::find).transpose();
    let known = known.map_err(|wrong| CliError::system(wrong).help("name one with `--provider KIND`"))?;
    let wanted = known.map(|known| options.pool.as_deref().unwrap_or(known.first_pool.name));
    if wanted.is_some_and(|pool| !names.contains(&pool)) {
        let draft = pool::draft(options, &look(place), ask)?;
        if names.contains(&draft.name.as_str()) {
            let problem = format!("`{shown}` has a pool `{}` already", draft.name);
            return Err(CliError::say(problem).help("name a new pool with `--pool NAME`"));
        }
        check(&draft.file(place.state_dir.as_deref()), &config.state_dir)?;
        ui::out(&format!("To add pool `{}`, append this to it:\n\n{}\n", draft.name, draft.tables()));
        if names.len() == 1 {
            ui::out(&format!(
                "and say which pool serves which jobs: `default_pool = \"{}\"` at the top of the file, or `[[rule]]` \
                 entries.\n\n",
                names[0]
            ));
        }
    }
    Ok((config, ConfigPlan::Keep))
}

/// A new configuration, checked as calls will check it.
fn new(
    place: &GlobalOptions,
    options: &InitOptions,
    path: &Path,
    ask: Questions,
) -> Result<(Config, ConfigPlan), CliError> {
    let surroundings = look(place);
    ui::out(&format!("{}\n", surroundings.text()));
    let draft = pool::draft(options, &surroundings, ask)?;
    let state_dir = place.state_dir.as_deref().map(std::path::absolute).transpose()?;
    let text = draft.file(state_dir.as_deref());
    let config = check(&text, &place.state_dir.clone().unwrap_or_else(|| default_state_dir().to_owned()))?;
    if ask.possible() && !options.dry_run {
        ui::out(&format!("\n{text}\n"));
        if !ask.yes(&format!("Write this to `{}`?", path.display()), true)? {
            return Err(CliError::say("nothing was written")
                .help("run init again with other answers; `greenroom init --help` lists what options set"));
        }
    }
    Ok((config, ConfigPlan::Write { text, draft: Box::new(draft), surroundings }))
}

fn look(place: &GlobalOptions) -> FoundHere {
    let state_dir = place.state_dir.as_deref().unwrap_or(default_state_dir());
    FoundHere::look(state_dir, |name| std::env::var_os(name))
}

/// Parses a new configuration, and builds the providers of its pools.
fn check(text: &str, state_dir: &Path) -> Result<Config, CliError> {
    let refused = |diagnostics: Diagnostics| {
        CliError::config(ConfigError::Invalid(diagnostics))
            .help("nothing was written; set or correct the key with `--set KEY=VALUE`")
    };
    let config = Config::parse(text, "the new greenroom.toml").map_err(refused)?;
    let around = ProviderContext {
        state_dir: state_dir.to_owned(),
        program: program::driver()?,
        clock: Rc::new(SystemClock::new(ManagerId::default())?),
    };
    for pool in config.pools.values() {
        let known = provider::find(&pool.provider.kind)?;
        let context = around.of(pool, Rc::new(Unconnected));
        (known.build)(&context, &pool.provider.table).map_err(|wrong| refused(config.diagnostics(wrong)))?;
        if let Some(objection) = objection(&config, pool, known) {
            return Err(refused(objection));
        }
    }
    Ok(config)
}

fn show(path: &Path, plan: &ConfigPlan) {
    if let ConfigPlan::Write { text, .. } = plan {
        let schema = path.with_file_name(schema::FILE);
        ui::out(&format!("`{}` would be written:\n\n{text}\n", path.display()));
        ui::out(&format!("`{}` would be written: its schema, for editors.\n", schema.display()));
    }
}

fn write(path: &Path, plan: &ConfigPlan) -> Result<(), CliError> {
    let beside = path.with_file_name(schema::FILE);
    let text = super::schema();
    if let ConfigPlan::Write { text, .. } = plan {
        let written = files::create(path, text).map_err(|error| runner::cannot("write", path, &error))?;
        // Another call of init with the same answers does no harm.
        if !written && std::fs::read_to_string(path).ok().as_deref() != Some(text) {
            let problem = format!("`{}` was written by another program meanwhile", path.display());
            return Err(CliError::say(problem).help("run init again: it leaves that file as it is"));
        }
        ui::out(&format!("Wrote `{}`.\n", path.display()));
    } else if !is_generated(&beside) {
        return Ok(());
    }
    let refreshed = files::refresh(&beside, &text, is_generated);
    if refreshed.map_err(|error| runner::cannot("write", &beside, &error))? {
        ui::out(&format!("Wrote `{}`, for editors.\n", beside.display()));
    }
    Ok(())
}

/// True if the file is one of `greenroom schema`.
fn is_generated(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(schema::COMMENT))
}

/// Runs doctor as a program of its own: a cloud's pool needs the other program. `is_new`: that there is no state directory is
/// no finding.
fn doctor(place: &GlobalOptions, runner_config: &Path, is_new: bool) -> Result<bool, CliError> {
    let mut command = Command::new(program::driver()?);
    for (flag, path) in [("--config", &place.config), ("--state-dir", &place.state_dir)] {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    ui::out("\nFindings of doctor:\n");
    command.arg("doctor").arg("--runner-config").arg(runner_config);
    command.args(is_new.then_some("--new-installation"));
    let ended = command.status()?;
    match ended.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(CliError::say(format!("doctor ended with {ended}")).help("run `greenroom doctor`")),
    }
}

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

/// The operator's decisions; init asks for the rest, or takes a default.
#[derive(Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one command")]
pub struct InitOptions {
    #[arg(long, value_name = "KIND", help = format!("Provider of the pool's instances: {}", provider::kinds_in_help()))]
    pub provider: Option<String>,
    #[arg(long, value_name = "NAME", help = format!("Name of the pool [default: {}, by provider]", provider::pool_names_in_help()))]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::setup::tests::refused;

    #[test]
    fn init_refuses_what_a_provider_cannot_do() {
        for (text, wrong) in refused() {
            let error = check(&text, Path::new("/s")).unwrap_err().in_a_line();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
