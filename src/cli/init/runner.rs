//! The runner's file: which change it needs, that change, and how it is shown without what may be a secret.

use std::io;
use std::path::Path;
use std::time::Duration;

use greenroom_ssh::STOP_MARGIN;
use similar::{ChangeTag, TextDiff};

use super::InitOptions;
use super::files::{self, Changed};
use super::stanza::{self, Refusal, Wanted};
use crate::cli::args::{DEFAULT_CONFIG, GlobalOptions};
use crate::cli::error::CliError;
use crate::cli::prompt::Questions;
use crate::cli::{program, ui};
use crate::config::{Config, PoolConfig};

/// The plan for the runner's file, which [`carry_out`](Self::carry_out) shows and follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunnerPlan {
    /// The file calls Greenroom already.
    Right,
    Change {
        before: String,
        after: String,
    },
    /// The file cannot be changed: the cause, and the help.
    Impossible {
        problem: String,
        help: String,
    },
}

pub(super) fn plan(
    place: &GlobalOptions,
    options: &InitOptions,
    config: &Config,
    ask: Questions,
) -> Result<RunnerPlan, CliError> {
    let path = &options.runner_config;
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return impossible(options, unreadable(path, &error)),
    };
    let at = match choose(&before, options, ask)? {
        Ok(at) => at,
        Err(refusal) => {
            let problem = format!("`{}` {refusal}", path.display());
            return impossible(options, (problem, refusal.help()));
        }
    };
    let wanted = wanted(place, config)?;
    match stanza::merge(&before, at, &wanted) {
        Ok(after) if after == before => Ok(RunnerPlan::Right),
        Ok(after) => Ok(RunnerPlan::Change { before, after }),
        Err(refusal) => impossible(options, (format!("`{}` {refusal}", path.display()), refusal.help())),
    }
}

/// An error only if the operator has asked for the change.
fn impossible(options: &InitOptions, (problem, help): (String, String)) -> Result<RunnerPlan, CliError> {
    if options.merge_runner {
        return Err(CliError::say(problem).help(help).help("nothing was written"));
    }
    Ok(RunnerPlan::Impossible { problem, help })
}

fn unreadable(path: &Path, error: &io::Error) -> (String, String) {
    let shown = path.display();
    if error.kind() == io::ErrorKind::NotFound {
        let help = "install GitLab Runner and register a runner, then run init again; or name the file with \
                    `--runner-config FILE`";
        return (format!("there is no runner's configuration `{shown}`"), help.to_owned());
    }
    let help = "run init as root, or name another file with `--runner-config FILE`";
    (format!("the runner's configuration `{shown}` cannot be read: {error}"), help.to_owned())
}

/// An answer that names no runner of the file.
#[derive(Debug, thiserror::Error)]
#[error("the file {refusal}; {}", refusal.help())]
struct RefusedRunner {
    refusal: Refusal,
}

/// The section, after questions where several could be meant or another program is called.
fn choose(text: &str, options: &InitOptions, ask: Questions) -> Result<Result<usize, Refusal>, CliError> {
    let mut name = options.runner.clone();
    let mut may_change = options.change_executor;
    loop {
        match stanza::choose(text, name.as_deref(), may_change) {
            Err(Refusal::Several(titles)) if ask.possible() => {
                ui::out(&format!("Several runners could call Greenroom: {}.\n", titles.join(", ")));
                let check = |answer: &str| match stanza::choose(text, Some(answer), true) {
                    Ok(_) => Ok(answer.to_owned()),
                    Err(refusal) => Err(RefusedRunner { refusal }),
                };
                name = Some(ask.text("Name of the runner", None, "--runner NAME", check)?);
            }
            Err(refusal @ (Refusal::OtherExecutor { .. } | Refusal::OtherProgram { .. })) => {
                let question = format!("The runner's file {refusal}. Change that section to call Greenroom?");
                if !ask.yes(&question, false)? {
                    return Ok(Err(refusal));
                }
                may_change = true;
            }
            chosen => return Ok(chosen),
        }
    }
}

fn wanted(place: &GlobalOptions, config: &Config) -> Result<Wanted, CliError> {
    let of_all =
        |of: fn(&PoolConfig) -> Duration| config.pools.values().map(of).max().unwrap_or_default().as_secs();
    let path = place.config_file()?.display().to_string();
    Ok(Wanted {
        program: program::driver()?.display().to_string(),
        config: (path != DEFAULT_CONFIG).then_some(path),
        slots: config.pools.values().map(PoolConfig::slots).sum(),
        stop: of_all(|pool| pool.policy.timing.stop_grace.saturating_add(STOP_MARGIN)),
        prepare: of_all(|pool| {
            let pulls = pool.containers.as_ref().map(|containers| containers.pull_timeout);
            pool.policy.timing.acquire_timeout + pulls.unwrap_or_default()
        }),
    })
}

impl RunnerPlan {
    pub(super) fn show(&self, path: &Path) {
        let shown = path.display();
        match self {
            Self::Right => ui::out(&format!("`{shown}` calls Greenroom already.\n")),
            Self::Change { before, after } => {
                ui::out(&format!("`{shown}` needs this change:\n\n{}\n", unified(before, after)));
            }
            Self::Impossible { problem, help } => {
                ui::out(&format!("The runner's file stays as it is: {problem}.\n  help: {help}\n"));
            }
        }
    }

    /// Shows the change, and makes it if the operator wants it.
    pub(super) fn carry_out(&self, path: &Path, wanted: bool, ask: Questions) -> Result<(), CliError> {
        self.show(path);
        let Self::Change { before, after } = self else { return Ok(()) };
        let shown = path.display();
        if !wanted && !ask.yes(&format!("Change `{shown}`? Its earlier text stays beside it."), false)? {
            ui::out(&format!(
                "`{shown}` is not changed. To change it, run `greenroom init --merge-runner`, or edit it.\n"
            ));
            return Ok(());
        }
        match files::change(path, before, after).map_err(|error| cannot("write", path, &error))? {
            Changed::Done(backup) => ui::out(&format!(
                "Changed `{shown}`. Its earlier text is in `{}`. GitLab Runner reloads the file by itself.\n",
                backup.display()
            )),
            Changed::Already => ui::out(&format!("`{shown}` has this change already.\n")),
            Changed::Meanwhile => {
                return Err(CliError::say(format!("`{shown}` was changed by another program meanwhile"))
                    .help("run init again"));
            }
        }
        Ok(())
    }
}

pub(super) fn cannot(what: &str, path: &Path, error: &io::Error) -> CliError {
    let help = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run init as root, for example with sudo, or name another file with `--config`"
        }
        io::ErrorKind::StorageFull => "free some space there, then run init again",
        _ => "make its directory writable, or name another file with `--config`, then run init again",
    };
    CliError::say(format!("cannot {what} `{}`: {error}", path.display())).help(help)
}

/// Lines around a change.
const CONTEXT_LINES: usize = 3;
/// Keys of the runner's file whose values are no secrets.
const PLAIN_KEYS: &[&str] =
    &["concurrent", "check_interval", "name", "url", "executor", "limit", "shell", "builds_dir", "cache_dir"];

/// The changes in the form of `diff -u`, without its header. Values of other keys show as `…`: they may be tokens.
fn unified(before: &str, after: &str) -> String {
    let diff = TextDiff::from_lines(before, after);
    let mut text = String::new();
    for hunk in diff.grouped_ops(CONTEXT_LINES) {
        if !text.is_empty() {
            text += "…\n";
        }
        for change in hunk.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = change.value().trim_end_matches(['\n', '\r']);
            let shown = shown(line);
            let sign = match change.tag() {
                ChangeTag::Equal => " ",
                ChangeTag::Delete => "-",
                ChangeTag::Insert => "+",
            };
            text.extend([sign, &shown, "\n"]);
        }
    }
    text
}

fn shown(line: &str) -> String {
    let trimmed = line.trim_start();
    let is_header = trimmed.starts_with('[') && !trimmed.contains(['=', '"', '\'']);
    if trimmed.is_empty() || is_header {
        return line.trim_end().to_owned();
    }
    let blank = &line[..line.len() - trimmed.len()];
    match trimmed.split_once('=') {
        Some((key, _)) if is_plain(key.trim_end()) => without_comment(line),
        Some((key, _)) if !key.contains(['#', '"', '\'']) => format!("{blank}{key}= …"),
        _ => format!("{blank}…"),
    }
}

fn is_plain(key: &str) -> bool {
    PLAIN_KEYS.contains(&key) || ["_exec", "_args", "_timeout"].iter().any(|end| key.ends_with(end))
}

/// A line up to its comment. A `#` in a string only makes it shorter.
fn without_comment(line: &str) -> String {
    match line.split_once(" #") {
        Some((before, _)) => format!("{} # …", before.trim_end()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_shown_and_no_secret_beside_them() {
        let before = "a = 1\n\n[[runners]]\n  name = \"x\" # glrt-1\n  token = \"glrt-2\"\n  # glrt-3\n  environment = [\n    \
                      \"KEY=glrt-4\",\n  ]\n  limit = 1\n  id = 7\n";
        let after = before.replace("limit = 1", "limit = 4");
        assert_eq!(
            unified(before, &after),
            "   environment = …\n     …\n   …\n-  limit = 1\n+  limit = 4\n   id = …\n"
        );
        let longer = before.replace("\"x\" # glrt-1", "\"y\" # glrt-1");
        let text = unified(before, &longer);
        assert!(text.contains("+  name = \"y\" # …\n") && text.contains("   token = …\n   …\n"), "{text}");
        assert!(!text.contains("glrt"), "{text}");
        assert_eq!(unified(before, before), "");
    }
}
