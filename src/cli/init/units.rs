//! The next steps after `init`: the units that the package brings, and the commands of the operator.

use std::path::Path;
use std::process::Command;

use super::draft::Draft;
use super::pool::FoundHere;
use crate::cli::args::GlobalOptions;
use crate::cli::error::CliError;
use crate::cli::ui;

const UNITS: [&str; 2] = ["greenroom.service", "greenroom-reap.timer"];
/// The directory that exists if systemd manages the runner host: `sd_booted(3)`.
const BOOTED: &str = "/run/systemd/system";

/// The state of the units on this host: they can be enabled, or the reason for which they cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Units {
    Ready,
    NoSystemd,
    Missing(&'static str),
}

impl Units {
    pub(super) fn look() -> Self {
        Self::of(Path::new(BOOTED).is_dir(), crate::cli::doctor::keeper::UNIT_DIRS)
    }

    fn of(is_booted: bool, dirs: &[&str]) -> Self {
        let is_there = |unit: &str| dirs.iter().any(|dir| Path::new(dir).join(unit).is_file());
        match UNITS.into_iter().find(|unit| !is_there(unit)) {
            _ if !is_booted => Self::NoSystemd,
            Some(missing) => Self::Missing(missing),
            None => Self::Ready,
        }
    }

    /// The reason for which the units cannot be enabled, and what to do instead.
    pub(super) fn problem(&self) -> Option<(String, &'static str)> {
        match self {
            Self::Ready => None,
            Self::NoSystemd => Some((
                "systemd does not manage this machine".to_owned(),
                "run `greenroom keep` as a service of another manager, and `greenroom reap` from cron",
            )),
            Self::Missing(unit) => Some((
                format!("the unit `{unit}` is not installed"),
                "install Greenroom's package, which brings it, or copy the units of the archive that `scripts/package` makes",
            )),
        }
    }
}

/// The command that enables and starts them.
pub(super) fn command() -> Vec<&'static str> {
    [&["systemctl", "enable", "--now"], &UNITS[..]].concat()
}

pub(super) fn enable() -> Result<(), CliError> {
    let line = command();
    let shown = line.join(" ");
    let ended = Command::new(line[0]).args(&line[1..]).status();
    let ended = ended.map_err(|error| {
        CliError::say(format!("cannot run `{shown}`: {error}")).help("enable the units by hand")
    })?;
    if ended.success() {
        return Ok(());
    }
    Err(CliError::say(format!("`{shown}` ended with {ended}"))
        .help("run it as root; `journalctl -u greenroom` shows why a unit does not start"))
}

/// Shows how the keeper and `reap` run as services.
pub(super) fn show(units: &Units, will_enable: bool) {
    match units.problem() {
        Some((problem, help)) => {
            ui::out(&format!("The keeper does not run as a service: {problem}.\n  help: {help}\n"));
        }
        None if will_enable => ui::out(&format!("This would run: {}\n", command().join(" "))),
        None => ui::out(&format!("To run the keeper as a service: {}\n", command().join(" "))),
    }
}

/// The command with which the operator calls Greenroom from now on: with this call's `--config`, unless the variable is
/// set.
pub(super) fn calls_of(place: &GlobalOptions) -> String {
    // The state directory is in the configuration.
    let is_set = |path: &Path| std::env::var_os("GREENROOM_CONFIG").is_some_and(|set| set == *path);
    match place.config.as_deref().filter(|path| !is_set(path)) {
        Some(path) => format!("greenroom --config {}", path.display()),
        None => "greenroom".to_owned(),
    }
}

/// The commands that the pool still needs. `program`: how they call Greenroom.
pub(super) fn show_next(draft: &Draft, surroundings: &FoundHere, program: &str) {
    let found = surroundings.of(draft.known.kind);
    let mut lines = found.map(|found| found.steps(&draft.name, &draft.given(), program)).unwrap_or_default();
    lines.push(format!("{program} try"));
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}\n")).collect();
    ui::out(&format!("\nNext:\n{}", lines.concat()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_ready_where_systemd_runs_and_both_are_installed() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().to_str().unwrap();
        let dirs = ["/no/such/directory", dir];
        assert_eq!(Units::of(true, &dirs), Units::Missing("greenroom.service"));
        std::fs::write(home.path().join("greenroom.service"), "").unwrap();
        assert_eq!(Units::of(true, &dirs), Units::Missing("greenroom-reap.timer"));
        std::fs::write(home.path().join("greenroom-reap.timer"), "").unwrap();
        assert_eq!(Units::of(true, &dirs), Units::Ready);
        assert_eq!(Units::of(false, &dirs), Units::NoSystemd);
        assert!(Units::Ready.problem().is_none() && Units::NoSystemd.problem().is_some());
    }
}
