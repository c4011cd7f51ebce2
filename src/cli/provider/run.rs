//! What the kit needs of this process: the program, its settings and its environment.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use fs_err as fs;
use greenroom_backends::as_json;
use greenroom_backends::authorities;
use greenroom_backends::environment::Environment;
use greenroom_backends::external::process::Program;
use greenroom_backends::external::protocol::Verb;
use greenroom_backends::program;
use greenroom_keys::value_error::ValueError;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::args::TestOptions;
use crate::cli::error::CliError;
use crate::cli::program::driver;

/// Calls of the kit that run concurrently: more than it makes.
const CONCURRENT: usize = 16;
/// The most that a call may print, in bytes.
const OUTPUT_LIMIT: u64 = 4 << 20;

/// The program under test, as the provider would call it.
pub(super) fn program(options: &TestOptions) -> Result<Program, CliError> {
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
    let environment = Environment { named: options.env.clone(), secrets: options.secret.clone() };
    if let Some(missing) = environment.missing().next() {
        let error = CliError::say(format!("the environment variable `{missing}` is not set"));
        return Err(error.help("set and export it, or pass a file with `--secret NAME=FILE`"));
    }
    environment.variables().map_err(CliError::say)?;
    let how = program::Program {
        holder: driver()?,
        path,
        arguments: Vec::new(),
        directory,
        environment,
        output_limit: OUTPUT_LIMIT,
        concurrent: Rc::new(Semaphore::new(CONCURRENT)),
    };
    let of_all = |limit| Verb::ALL.iter().map(|verb| (*verb, limit)).collect();
    Ok(Program { how, time_limits: limit.map(of_all).unwrap_or_default() })
}

/// The program's settings as JSON.
pub(super) fn settings(file: Option<&Path>) -> Result<Value, CliError> {
    let Some(file) = file else { return Ok(json!({})) };
    let text = fs::read_to_string(file)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        CliError::say(format!("`{}` is not valid TOML: {}", file.display(), error.message()))
            .help("write what the pool's table has under `settings`, such as `image = \"debian-12\"`")
    })?;
    Ok(Value::Object(as_json::table(&table)))
}

/// The keys of certificate authorities in a file.
pub(super) fn authorities(file: Option<&Path>) -> Result<Vec<String>, CliError> {
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
