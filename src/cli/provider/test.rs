//! `greenroom provider test`: runs the conformance kit, and cleans up whatever happens.

use std::time::Duration;

use greenroom_backends::external::kit::cheap::{self, Reach};
use greenroom_backends::external::kit::live::{Live, Options, POOLS};
use greenroom_backends::external::kit::session::Session;
use greenroom_backends::external::protocol::answers::CapabilitiesAnswer;
use greenroom_backends::program::kit::check::Group;
use greenroom_backends::program::kit::report::Report;
use serde_json::Value;

use super::args::TestOptions;
use super::{progress, run};
use crate::cli::error::CliError;
use crate::cli::kit::ask::ask;
use crate::cli::kit::interrupts::{self, Words};
use crate::cli::kit::{scratch, show};
use crate::cli::ui;

const WORDS: Words = Words { things: "machines", ending: "terminating", ended: "terminated" };
const GROUPS: [Group; 3] = [Group::Calls, Group::Cheap, Group::Live];

/// Runs the kit; false if a check failed.
pub(super) async fn test(options: &TestOptions) -> Result<bool, CliError> {
    let program = run::program(options)?;
    let settings = run::settings(options.settings.as_deref())?;
    let session = Session::new(&program, settings);
    if options.clean {
        return clean(options, &session).await;
    }
    let empty = "greenroom-kit-none";
    let known = cheap::check(&session, empty, Reach::All).await;
    let (why, left) = match (&known, options.live) {
        (Err(verdict), _) => (verdict.text(), Vec::new()),
        (Ok(_), false) => ("it needs machines: add `--live`".to_owned(), Vec::new()),
        (Ok(_), true) if session.outcomes.failures() > 0 => {
            ("machines are created only if all checks without machines pass".to_owned(), Vec::new())
        }
        (Ok(known), true) => (
            "an earlier check failed, without which it makes no sense".to_owned(),
            live(options, &session, known).await?,
        ),
    };
    let outcomes = session.outcomes.all(&GROUPS, &why);
    let name = known.ok().map(|known| known.name);
    let mut report = Report::new(options.program.display().to_string(), name, options.live, outcomes);
    report.calls = session.calls();
    report.remaining = left;
    show(&report, options.json, "program")?;
    Ok(report.conforms)
}

/// Makes machines, and ends them. What is left, by ID.
async fn live(
    options: &TestOptions,
    session: &Session<'_>,
    known: &CapabilitiesAnswer,
) -> Result<Vec<String>, CliError> {
    let scratch = scratch::Scratch::make()?;
    let ssh = scratch.ssh();
    let live = Live::new(session, known.clone(), &ssh, live_options(options, scratch.run.clone())?);
    nothing_before(&live).await?;
    ui::err(&progress::cost(known));
    if !ask("Create them?", options.yes)? {
        return Err(
            CliError::say("no machine was created").help("leave out `--live` to check without machines")
        );
    }
    let (checks, clean_up) = (Box::pin(live.check()), Box::pin(live.clean_up()));
    interrupts::cleaned_up(&WORDS, checks, clean_up).await
}

/// An error if an earlier run has left machines, or if lists cannot be trusted.
async fn nothing_before(live: &Live<'_>) -> Result<(), CliError> {
    let left = live.left().await.map_err(|verdict| CliError::say(verdict.text()))?;
    if left.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = left.into_iter().map(|(pool, id)| format!("`{id}` of `{pool}`")).collect();
    Err(CliError::say(format!("an earlier run has left {}", ids.join(", ")))
        .help("run the command with `--clean` instead of `--live` first, unless another run is under way"))
}

/// Ends what an earlier run has left.
async fn clean(options: &TestOptions, session: &Session<'_>) -> Result<bool, CliError> {
    let answer = session.answer("capabilities", POOLS[0], &serde_json::json!({ "protocols": [1] })).await;
    let known = answer.and_then(|answer: Value| {
        greenroom_backends::external::kit::session::read::<CapabilitiesAnswer>("capabilities", &answer)
    });
    let known = known.map_err(|verdict| CliError::say(verdict.text()))?;
    let scratch = scratch::Scratch::make()?;
    let ssh = scratch.ssh();
    let live = Live::new(session, known, &ssh, live_options(options, scratch.run.clone())?);
    let before = live.left().await.map_err(|verdict| CliError::say(verdict.text()))?.len();
    let left = live.clean_up().await;
    let ended = before.saturating_sub(left.len());
    ui::out(&format!("{} terminated, {} left\n", ui::plural(ended, "machine"), left.len()));
    Ok(left.is_empty())
}

fn live_options(options: &TestOptions, run: String) -> Result<Options, CliError> {
    Ok(Options {
        user: options.user.clone(),
        boot_timeout: Duration::from_secs(options.boot_timeout),
        end_timeout: Duration::from_secs(options.end_timeout),
        delete_with: options.delete_with.clone(),
        host_key_ca: run::authorities(options.host_key_ca.as_deref())?,
        run,
    })
}
