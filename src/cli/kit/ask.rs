//! The question before a kit makes or ends machines.

use std::io::{BufRead as _, IsTerminal as _};

use crate::cli::error::CliError;
use crate::cli::ui;

/// Asks a question; true if the answer is yes. `given`: the option `--yes`.
pub(in crate::cli) fn ask(question: &str, given: bool) -> Result<bool, CliError> {
    if given {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        return Err(CliError::say("cannot ask for confirmation: standard input is not a terminal")
            .help("add `--yes` to leave out the question"));
    }
    ui::err(&format!("{question} [y/N]: "));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
