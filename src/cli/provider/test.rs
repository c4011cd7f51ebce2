//! `greenroom provider test`: runs the conformance kit on a program with its settings and its environment, and cleans up
//! whatever happens.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_backends::external::kit::KitSession;
use greenroom_backends::external::kit::cheap::{self, CheapReach};
use greenroom_backends::external::kit::live::{self, LiveOptions, LiveRun, MACHINES, POOLS};
use greenroom_backends::external::process::ProtocolProgram;
use greenroom_backends::external::protocol::Verb;
use greenroom_backends::external::protocol::answers::CapabilitiesAnswer;
use greenroom_backends::program::environment::ProgramEnvironment;
use greenroom_backends::{as_json, authorities, program};
use greenroom_keys::value_error::ValueError;
use greenroom_providers::conformance::report::{CheckGroup, KitReport};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::TestOptions;
use crate::cli::error::CliError;
use crate::cli::kit::{Scratch, Words, cleaned_up, is_confirmed, show};
use crate::cli::program::driver;
use crate::cli::ui;

const WORDS: Words = Words { things: "machines", ending: "terminating", ended: "terminated" };
const GROUPS: [CheckGroup; 3] = [CheckGroup::Calls, CheckGroup::Cheap, CheckGroup::Live];

/// Runs the kit; false if a check failed.
pub(super) async fn test(options: &TestOptions) -> Result<bool, CliError> {
    let program = program_under_test(options)?;
    let settings = settings(options.settings.as_deref())?;
    let session = KitSession::new(&program, settings);
    if options.clean {
        return clean(options, &session).await;
    }
    let empty = "greenroom-kit-none";
    let known = cheap::check(&session, empty, CheapReach::All).await;
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
    let mut report = KitReport::new(options.program.display().to_string(), name, options.live, outcomes);
    report.calls = session.calls();
    report.remaining = left;
    show(&report, options.json, "program")?;
    Ok(report.conforms)
}

/// Makes machines, and ends them. Returns the IDs of those that are left.
async fn live(
    options: &TestOptions,
    session: &KitSession<'_>,
    known: &CapabilitiesAnswer,
) -> Result<Vec<String>, CliError> {
    let scratch = Scratch::make()?;
    let ssh = scratch.ssh();
    let live = LiveRun::new(session, known.clone(), &ssh, live_options(options, scratch.run.clone())?);
    nothing_before(&live).await?;
    ui::err(&cost(known));
    if !is_confirmed("Create them?", options.yes)? {
        return Err(
            CliError::say("no machine was created").help("leave out `--live` to check without machines")
        );
    }
    let checks = Box::pin(live.check());
    let clean_up = Box::pin(live.clean_up());
    cleaned_up(&WORDS, checks, clean_up).await
}

/// An error if an earlier run has left machines, or if lists cannot be trusted.
async fn nothing_before(live: &LiveRun<'_>) -> Result<(), CliError> {
    let left = live.left().await.map_err(|verdict| CliError::say(verdict.text()))?;
    if left.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = left.into_iter().map(|(pool, id)| format!("`{id}` of `{pool}`")).collect();
    Err(CliError::say(format!("an earlier run has left {}", ids.join(", ")))
        .help("run the command with `--clean` instead of `--live` first, unless another run is under way"))
}

/// Ends what an earlier run has left.
async fn clean(options: &TestOptions, session: &KitSession<'_>) -> Result<bool, CliError> {
    let answer = session.answer("capabilities", POOLS[0], &serde_json::json!({ "protocols": [1] })).await;
    let known = answer.and_then(|answer: Value| {
        greenroom_backends::external::kit::read::<CapabilitiesAnswer>("capabilities", &answer)
    });
    let known = known.map_err(|verdict| CliError::say(verdict.text()))?;
    let scratch = Scratch::make()?;
    let ssh = scratch.ssh();
    let live = LiveRun::new(session, known, &ssh, live_options(options, scratch.run.clone())?);
    let before = live.left().await.map_err(|verdict| CliError::say(verdict.text()))?.len();
    let left = live.clean_up().await;
    let ended = before.saturating_sub(left.len());
    ui::out(&format!("{} terminated, {} left\n", ui::plural(ended, "machine"), left.len()));
    Ok(left.is_empty())
}

fn live_options(options: &TestOptions, run: String) -> Result<LiveOptions, CliError> {
    Ok(LiveOptions {
        user: options.user.clone(),
        boot_timeout: Duration::from_secs(options.boot_timeout),
        end_timeout: Duration::from_secs(options.end_timeout),
        delete_with: options.delete_with.clone(),
        host_key_ca: host_key_authorities(options.host_key_ca.as_deref())?,
        run,
    })
}

/// Calls of the kit that run concurrently: more than it makes.
const CONCURRENT_CALLS: usize = 16;
/// The most that a call may print, in bytes.
const OUTPUT_LIMIT: u64 = 4 << 20;

/// The program under test, as the provider would call it.
fn program_under_test(options: &TestOptions) -> Result<ProtocolProgram, CliError> {
    let path = std::path::absolute(&options.program)?;
    let shown = options.program.display();
    let known = fs::metadata(&path).map_err(|error| {
        CliError::say(format!("the program `{shown}` cannot be used: {error}"))
            .help("name the path of the program")
    })?;
    if !known.is_file() || known.permissions().mode() & 0o111 == 0 {
        let error = CliError::say(format!("`{shown}` is not an executable file"));
        return Err(error.help(format!("run `chmod +x {shown}`")));
    }
    let directory = match &options.directory {
        Some(directory) => std::path::absolute(directory)?,
        None => path.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    let limit = options.call_timeout.map(Duration::from_secs);
    let environment = ProgramEnvironment { named: options.env.clone(), secrets: options.secret.clone() };
    if let Some(missing) = environment.missing().next() {
        let error = CliError::say(format!("the environment variable `{missing}` is not set"));
        return Err(error.help("set and export it, or pass a file with `--secret NAME=FILE`"));
    }
    environment.variables()?;
    let how = program::Program {
        guard: driver()?,
        path,
        arguments: Vec::new(),
        directory,
        environment,
        output_limit: OUTPUT_LIMIT,
        concurrent: Rc::new(Semaphore::new(CONCURRENT_CALLS)),
    };
    let of_all = |limit| Verb::ALL.iter().map(|verb| (*verb, limit)).collect();
    Ok(ProtocolProgram { how, time_limits: limit.map(of_all).unwrap_or_default() })
}

/// The program's settings as JSON.
fn settings(file: Option<&Path>) -> Result<Value, CliError> {
    let Some(file) = file else { return Ok(json!({})) };
    let text = fs::read_to_string(file)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        CliError::say(format!("`{}` is not valid TOML: {}", file.display(), error.message()))
            .help("write what the pool's table has under `settings`, such as `image = \"debian-12\"`")
    })?;
    Ok(Value::Object(as_json::table(&table)))
}

/// The keys of certificate authorities in a file.
fn host_key_authorities(file: Option<&Path>) -> Result<Vec<String>, CliError> {
    let Some(file) = file else { return Ok(Vec::new()) };
    let text = fs::read_to_string(file)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let keys: Result<Vec<String>, ValueError> = lines.map(authorities::read).collect();
    let wrong = |why: &dyn std::fmt::Display| {
        CliError::say(format!("`{}` {why}", file.display()))
            .help("write one public key of an authority a line, as the key `host_key_ca` has it")
    };
    match keys.map_err(|why| wrong(&why))? {
        keys if keys.is_empty() => Err(wrong(&"contains no public key")),
        keys => Ok(keys),
    }
}

/// The price of the machines, as far as the program states it.
fn cost(known: &CapabilitiesAnswer) -> String {
    let or_not =
        |stated: &Option<String>| stated.clone().unwrap_or_else(|| "not stated by the program".to_owned());
    let machines = MACHINES + u32::from(known.lifetime);
    let concurrent = live::CONCURRENT + u32::from(known.lifetime);
    format!(
        "The kit creates about {machines} machines, at most {concurrent} of them concurrently, in the pools `{}` and `{}`, and \
         terminates them.\n  account: {}\n  price of a machine: {}\n",
        POOLS[0],
        POOLS[1],
        or_not(&known.account),
        or_not(&known.price),
    )
}
