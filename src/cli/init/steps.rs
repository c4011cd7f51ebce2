//! What is left to the operator after `init`.

use std::path::Path;

use super::draft::Draft;
use super::found::Surroundings;
use super::units::{self, Units};
use crate::cli::args::GlobalOptions;
use crate::cli::ui;

/// How the keeper and `reap` run as services.
pub(super) fn units(units: &Units, will_enable: bool) {
    match units.problem() {
        Some((problem, help)) => {
            ui::out(&format!("The keeper does not run as a service: {problem}.\n  help: {help}\n"));
        }
        None if will_enable => ui::out(&format!("This would run: {}\n", units::command().join(" "))),
        None => ui::out(&format!("To run the keeper as a service: {}\n", units::command().join(" "))),
    }
}

/// How the operator calls Greenroom from now on: with this call's `--config`, unless the variable is set.
pub(super) fn program(place: &GlobalOptions) -> String {
    // The state directory is in the configuration.
    let is_set = |path: &Path| std::env::var_os("GREENROOM_CONFIG").is_some_and(|set| set == *path);
    match place.config.as_deref().filter(|path| !is_set(path)) {
        Some(path) => format!("greenroom --config {}", path.display()),
        None => "greenroom".to_owned(),
    }
}

/// The commands that the pool still needs. `program`: how they call Greenroom.
pub(super) fn next(draft: &Draft, surroundings: &Surroundings, program: &str) {
    let found = surroundings.of(draft.known.kind);
    let mut lines = found.map(|found| found.steps(&draft.name, &draft.given(), program)).unwrap_or_default();
    lines.push(format!("{program} try"));
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}\n")).collect();
    ui::out(&format!("\nNext:\n{}", lines.concat()));
}
