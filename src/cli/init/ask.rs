//! Questions in a terminal, each with a default.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::cli::error::CliError;
use crate::cli::ui;

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
    pub(super) fn text<T>(
        self,
        question: &str,
        default: Option<&str>,
        flag: &str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, CliError> {
        if !self.may_ask {
            let refused = |why: String| CliError::say(why).help(format!("name another one with `{flag}`"));
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

    /// Yes or no; without a terminal, `false`.
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
