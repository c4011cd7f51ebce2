//! `greenroom plugin test`: runs the conformance kit, and cleans up whatever happens.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_backends::fleeting::group::GroupInfo;
use greenroom_backends::fleeting::kit::{Kit, KitError, KitSite, Limits, MACHINES};
use greenroom_providers::conformance::report::{CheckGroup, KitReport};
use greenroom_providers::conformance::verdict::CheckVerdict;

use super::args::TestOptions;
use super::places;
use crate::cli::error::CliError;
use crate::cli::kit::{Scratch, Words, cleaned_up, is_confirmed, show};
use crate::cli::program::driver;
use crate::cli::ui;

const WORDS: Words = Words { things: "instances", ending: "removing", ended: "removed" };
const GROUPS: [CheckGroup; 3] = [CheckGroup::Calls, CheckGroup::Cheap, CheckGroup::Live];

/// Runs the kit; false if a check failed.
pub(super) async fn test(options: &TestOptions) -> Result<bool, CliError> {
    let scratch = Scratch::make()?;
    let (table, plugin) = table(options)?;
    let kit = kit(options, &scratch, &table)?;
    // The plugin's process has to end before its directory does.
    let judged = judged(options, &kit, plugin).await;
    kit.close().await;
    judged
}

async fn judged(options: &TestOptions, kit: &Kit, plugin: String) -> Result<bool, CliError> {
    if options.clean {
        return clean(options, kit).await;
    }
    let known = kit.check_cheap().await;
    let (why, left) = match (&known, options.live) {
        (Err(verdict), _) => (verdict.text(), Vec::new()),
        (Ok(_), false) => ("it needs instances: add `--live`".to_owned(), Vec::new()),
        (Ok(_), true) if kit.outcomes.failures() > 0 => {
            ("instances are created only if all checks without instances pass".to_owned(), Vec::new())
        }
        (Ok(group), true) => (
            "an earlier check failed, without which it makes no sense".to_owned(),
            live(options, kit, group).await?,
        ),
    };
    let group = known.ok().map(|group| group.id);
    let mut report = KitReport::new(plugin, group, options.live, kit.outcomes.all(&GROUPS, &why));
    report.calls = kit.calls();
    report.remaining = left;
    show(&report, options.json, "plugin")?;
    Ok(report.conforms)
}

/// Makes instances, and removes them. Returns the IDs of those that are left.
async fn live(options: &TestOptions, kit: &Kit, group: &GroupInfo) -> Result<Vec<String>, CliError> {
    let existing = kit.existing().await.map_err(said)?;
    if !existing.is_empty() {
        let message = format!("the group `{}` is not empty: {}", group.id, existing.join(", "));
        return Err(CliError::say(message).help(
            "name a group of its own in `plugin_config`; if an interrupted run has left these instances, remove them with \
             `--clean`",
        ));
    }
    let number = group.max_size.map_or(MACHINES, |most| most.min(MACHINES));
    let instances = ui::plural(number as usize, "instance");
    ui::err(&format!("The kit creates {instances} in the group `{}`, and removes them.\n", group.id));
    if !is_confirmed("Create them?", options.yes)? {
        return Err(
            CliError::say("no instance was created").help("leave out `--live` to check without instances")
        );
    }
    let checks = Box::pin(kit.check_live(group));
    let clean_up = Box::pin(kit.clean_up());
    cleaned_up(&WORDS, checks, clean_up).await
}

/// Removes every instance of the group.
async fn clean(options: &TestOptions, kit: &Kit) -> Result<bool, CliError> {
    let existing = kit.existing().await.map_err(said)?;
    if existing.is_empty() {
        ui::out("the group has no instances\n");
        return Ok(true);
    }
    let instances = ui::plural(existing.len(), "instance");
    ui::err(&format!("The group has {instances}: {}\n", existing.join(", ")));
    if !is_confirmed("Remove them?", options.yes)? {
        return Err(CliError::say("no instance was removed"));
    }
    let left = kit.clean_up().await;
    let ended = existing.len().saturating_sub(left.len());
    ui::out(&format!("{} removed, {} left\n", ui::plural(ended, "instance"), left.len()));
    Ok(left.is_empty())
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn said(verdict: CheckVerdict) -> CliError {
    CliError::say(verdict.text())
}

/// The pool's table as the kit uses it, and the plugin's name.
fn table(options: &TestOptions) -> Result<(toml::Table, String), CliError> {
    let mut table = match &options.table {
        Some(file) => read(file)?,
        None => toml::Table::new(),
    };
    table.remove("kind");
    if let Some(plugin) = &options.plugin {
        table.insert("plugin".to_owned(), toml::Value::String(absolute(plugin)?));
    }
    // The kit's own instances: a pool's table has to choose.
    table.entry("host_keys").or_insert_with(|| toml::Value::String("first-use".to_owned()));
    let Some(plugin) = table.get("plugin").and_then(toml::Value::as_str).map(str::to_owned) else {
        return Err(CliError::say("no plugin is named").help(
            "name it as in `greenroom plugin test googlecloud`, or with the key `plugin` in the table",
        ));
    };
    Ok((table, plugin))
}

fn read(file: &Path) -> Result<toml::Table, CliError> {
    let text = fs::read_to_string(file)?;
    text.parse().map_err(|error: toml::de::Error| {
        CliError::say(format!("`{}` is not valid TOML: {}", file.display(), error.message()))
            .help("write the keys of a pool's provider table, such as `plugin_config = { name = \"kit\" }`")
    })
}

/// A name of the command line that begins with a dot is a path.
fn absolute(plugin: &str) -> Result<String, CliError> {
    if !plugin.starts_with('.') {
        return Ok(plugin.to_owned());
    }
    Ok(std::path::absolute(plugin)?.to_string_lossy().into_owned())
}

fn kit(options: &TestOptions, scratch: &Scratch, table: &toml::Table) -> Result<Kit, CliError> {
    let ssh = Rc::new(scratch.ssh());
    let site = KitSite {
        guard: driver()?,
        places: places(options.dir.as_ref())?,
        dir: scratch.path().to_owned(),
        reader: Rc::<greenroom_ssh::Ssh>::clone(&ssh),
        connector: ssh,
    };
    let limits = Limits {
        boot: Duration::from_secs(options.boot_timeout),
        end: Duration::from_secs(options.end_timeout),
    };
    Kit::new(&site, table, limits).map_err(|error| match error {
        KitError::Table(problems) => CliError::say(problems.to_string()),
        KitError::Key(error) => CliError::say(error.to_string()),
    })
}
