//! Ctrl-C while a kit has machines.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::error::CliError;
use crate::cli::ui;

/// How messages name what a kit makes, and its end.
#[derive(Debug)]
pub(in crate::cli) struct Words {
    /// In the plural.
    pub(in crate::cli) things: &'static str,
    pub(in crate::cli) ending: &'static str,
    pub(in crate::cli) ended: &'static str,
}

/// Makes the checks, and then cleans up, also after an interruption. What is left, by ID.
pub(in crate::cli) async fn cleaned_up(
    words: &Words,
    checks: impl Future<Output = ()>,
    clean_up: impl Future<Output = Vec<String>>,
) -> Result<Vec<String>, CliError> {
    let Words { things, ending, ended } = words;
    let mut interrupts = Interrupts::new()?;
    let is_interrupted = tokio::select! {
        () = checks => false,
        () = interrupts.next() => true,
    };
    if is_interrupted {
        ui::err(&format!(
            "greenroom: interrupted, {ending} the {things} (press Ctrl-C again to leave them)\n"
        ));
    }
    let help = "repeat the command with `--clean` instead of `--live`";
    let left = tokio::select! {
        left = clean_up => left,
        () = interrupts.next() => {
            return Err(CliError::say(format!("interrupted: {things} may be left")).help(help));
        }
    };
    match (is_interrupted, left.is_empty()) {
        (false, _) => Ok(left),
        (true, true) => Err(CliError::say(format!("interrupted; the {things} are {ended}"))),
        (true, false) => Err(CliError::say(format!("interrupted; left: {}", left.join(", "))).help(help)),
    }
}

/// SIGINT and SIGTERM, one after the other.
#[derive(Debug)]
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
