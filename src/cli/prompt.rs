//! The operator at the terminal: questions with their answers, and Ctrl-C.

use std::error::Error;
use std::io::{BufRead as _, IsTerminal as _, Write as _};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::CliError;
use super::ui;

/// Asks, if there is a terminal for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Questions {
    may_ask: bool,
}

impl Questions {
    /// A terminal for questions and answers, unless the operator wants none.
    pub(super) fn new(unwanted: bool) -> Self {
        Self { may_ask: !unwanted && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() }
    }

    pub(super) fn possible(self) -> bool {
        self.may_ask
    }

    /// An answer that `check` accepts; an empty one stands for the default. Without a terminal, the default; without a
    /// default, an error that names the flag.
    pub(super) fn text<T, E: Error + 'static>(
        self,
        question: &str,
        default: Option<&str>,
        flag: &str,
        check: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, CliError> {
        if !self.may_ask {
            let refused = |why: E| CliError::system(why).help(format!("name another one with `{flag}`"));
            return match default {
                Some(default) => check(default).map_err(refused),
                None => Err(CliError::say(format!("there is no terminal to ask for this: {question}"))
                    .help(format!("add `{flag}`"))),
            };
        }
        loop {
            let shown = default.map(|default| format!(" [{default}]")).unwrap_or_default();
            let answer = answer(&format!("{question}{shown}: "))?;
            let answer = if answer.is_empty() { default.unwrap_or_default() } else { &answer };
            match check(answer) {
                Ok(checked) => return Ok(checked),
                Err(why) => ui::out(&format!("  {why}\n")),
            }
        }
    }

    /// Asks a question with the answers yes and no; without a terminal, the answer is `false`.
    pub(super) fn yes(self, question: &str, default: bool) -> Result<bool, CliError> {
        if !self.may_ask {
            return Ok(false);
        }
        loop {
            let answer = answer(&format!("{question} [{}]: ", if default { "Y/n" } else { "y/N" }))?;
            match answer.to_ascii_lowercase().as_str() {
                "" => return Ok(default),
                "y" | "yes" => return Ok(true),
                "n" | "no" => return Ok(false),
                _ => ui::out("  answer `y` or `n`\n"),
            }
        }
    }
}

fn answer(prompt: &str) -> Result<String, CliError> {
    ui::out(prompt);
    std::io::stdout().flush().ok();
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line)? == 0 {
        ui::out("\n");
        return Err(CliError::say("standard input ended before the answer")
            .help("run init again; it continues where it stopped"));
    }
    Ok(line.trim().to_owned())
}

/// Asks a question that `show` writes; true if the answer is yes. Without a terminal, an error with this help.
pub(super) fn is_confirmed(question: &str, show: fn(&str), help: &str) -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::say("cannot ask for confirmation: standard input is not a terminal").help(help));
    }
    show(&format!("{question} [y/N]: "));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The signals SIGINT and SIGTERM of this process.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Resolves with the next of them.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
