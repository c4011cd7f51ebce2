//! The scripts for `run`: the runner's frame, and the content of each stage.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::Value;

use super::attempt::{Build, Places};
use super::job::Variable;
use super::variables;

/// Head, one line with everything, tail.
pub(super) fn frame(shell: &str, body: &str) -> String {
    format!(
        "#!/usr/bin/env {shell}\n\ntrap 'exit 1' TERM\n\n\
         case \"$(set -o)\" in *pipefail*) set -o pipefail;; esac; set -o errexit\nset +o noclobber\n\
         (trap 'exit 1' TERM; eval {}) < /dev/null\nexit 0\n",
        ansi_c(body.as_bytes())
    )
}

/// The body of a stage's script, or nothing if the runner skips the stage.
pub(super) fn body(build: &Build, stage: &str) -> Option<String> {
    let places = build.places();
    let body = match stage {
        "prepare_script" => prepare(&places),
        "get_sources" => exports(build, &places) + &get_sources(build, &places),
        "clear_worktree" => clear_worktree(&places),
        "restore_cache" => cache(build, &places, "cache-extractor", "Restoring cache", |_| true)?,
        "download_artifacts" => download(build, &places)?,
        "build_script" => exports(build, &places) + &user_script(&places, &build.job.script),
        "after_script" if build.job.after_script.is_empty() => return None,
        "after_script" => {
            let note = "echo 'Running after script...'\n";
            exports(build, &places) + note + &user_script(&places, &build.job.after_script)
        }
        "archive_cache" => cache(build, &places, "cache-archiver", "Saving cache", |w| w != "on_failure")?,
        "archive_cache_on_failure" => {
            cache(build, &places, "cache-archiver", "Saving cache", |w| w == "on_failure" || w == "always")?
        }
        "upload_artifacts_on_success" => upload(build, &places, |when| when != "on_failure")?,
        "upload_artifacts_on_failure" => {
            upload(build, &places, |when| when == "on_failure" || when == "always")?
        }
        "cleanup_file_variables" => cleanup_file_variables(build, &places),
        step => {
            let name = step.strip_prefix("step_")?;
            let (_, lines) = build.job.steps.iter().find(|(other, _)| other.to_lowercase() == name)?;
            exports(build, &places) + &user_script(&places, lines)
        }
    };
    Some(body)
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes every line");
}

fn quoted(text: &str) -> String {
    ansi_c(text.as_bytes())
}

fn prepare(places: &Places) -> String {
    let via = places.hostname.as_ref().map(|name| format!(" via {name}")).unwrap_or_default();
    let env_file = quoted(&format!("{}/gitlab_runner_env", places.temp_project_dir()));
    format!("echo \"Running on $(hostname){via}...\"\nrm -f -r {env_file}\n")
}

/// Every variable in clear; file variables are written anew and exported as their path.
fn exports(build: &Build, places: &Places) -> String {
    let mut text = String::new();
    let temp = places.temp_project_dir();
    let all = variables::all(build, places);
    if all.iter().any(|variable| variable.file) {
        add(&mut text, format_args!("mkdir -p {}", quoted(&temp)));
    }
    for Variable { key, value, file, .. } in &all {
        if *file {
            let path = quoted(&format!("{temp}/{key}"));
            add(&mut text, format_args!("printf '%s' {} > {path}", ansi_c(value.as_bytes())));
            add(&mut text, format_args!("export {key}={path}"));
        } else {
            add(&mut text, format_args!("export {key}={}", ansi_c(value.as_bytes())));
        }
    }
    text
}

/// Keeps the machine's own settings of git out of the instance's work.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1\n";

fn get_sources(build: &Build, places: &Places) -> String {
    let project = quoted(&places.project_dir);
    let default = if build.job.repository.is_some() { "fetch" } else { "none" };
    let strategy = build.variable("GIT_STRATEGY").unwrap_or_else(|| default.into());
    let (Some(repository), "clone" | "fetch") = (&build.job.repository, strategy.as_str()) else {
        let clear = if strategy == "empty" { format!("rm -rf {project}\n") } else { String::new() };
        return format!("{clear}mkdir -p {project}\necho 'Skipping Git repository setup'\n");
    };
    let url = ansi_c(repository.as_os_str().as_bytes());
    let git_ref = quoted(&build.job.git_ref);
    let (clear, saying) = match strategy.as_str() {
        "clone" => (format!("rm -rf {project}\n"), "Cloning repository..."),
        _ => (String::new(), "Fetching changes..."),
    };
    format!(
        "{clear}echo '{saying}'\nmkdir -p {project}\ncd {project}\n{GIT}git init --quiet\n\
         git remote add origin {url} 2>/dev/null || git remote set-url origin {url}\n\
         git fetch --quiet --depth 20 origin {git_ref}\ngit checkout -f -q FETCH_HEAD\ngit clean -ffdx\n\
         echo \"Checking out $(git rev-parse --short HEAD) as detached HEAD...\"\n"
    )
}

fn clear_worktree(places: &Places) -> String {
    let project = quoted(&places.project_dir);
    format!(
        "{GIT}echo 'Deleting tracked and untracked files...'\n\
         if cd {project} 2>/dev/null && git rev-parse --git-dir >/dev/null 2>&1; then\n\
         git rm -rf --ignore-unmatch --quiet .\ngit clean -ffdx\nfi\n"
    )
}

/// Echoes each line and runs it, in the project directory.
fn user_script(places: &Places, lines: &[String]) -> String {
    let mut text = format!("cd {}\n", quoted(&places.project_dir));
    for line in lines {
        let (first, more) = match line.split_once('\n') {
            Some((first, _)) => (first, " # collapsed multi-line command"),
            None => (line.as_str(), ""),
        };
        add(&mut text, format_args!("echo {}", quoted(&format!("\x1b[32;1m$ {first}{more}\x1b[0;m"))));
        add(&mut text, format_args!("{line}"));
    }
    text
}

/// The instance needs `gitlab-runner` for this; without it, the stage warns and passes.
fn with_runner_binary(saying: &str, commands: &str) -> String {
    format!(
        "if gitlab-runner --version >/dev/null 2>&1; then\n{commands}else\n\
         echo 'Missing gitlab-runner. {saying} is disabled.'\nfi\n"
    )
}

/// `--path` for each of the entry's paths.
fn path_options(entry: &Value) -> Option<String> {
    let paths = entry.get("paths")?.as_array()?.iter().filter_map(Value::as_str);
    let options: Vec<String> = paths.map(|path| format!(" --path {}", quoted(path))).collect();
    Some(options.concat())
}

fn cache(
    build: &Build,
    places: &Places,
    command: &str,
    saying: &str,
    fits: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut commands = String::new();
    let url = build.runner.cache_urls.as_ref().map(|[download, upload]| {
        format!(" --url {}", quoted(if command == "cache-archiver" { upload } else { download }))
    });
    let url = url.unwrap_or_default();
    for entry in &build.job.cache {
        let when = entry.get("when").and_then(Value::as_str).unwrap_or("on_success");
        if !fits(when) || path_options(entry)?.is_empty() {
            continue;
        }
        let key = entry.get("key").and_then(Value::as_str).unwrap_or("default");
        let file = quoted(&format!("{}/{key}/cache.zip", places.cache_dir));
        let paths = if command == "cache-archiver" { path_options(entry)? } else { String::new() };
        // Caches are never fatal.
        add(
            &mut commands,
            format_args!("gitlab-runner {command} --file {file} --timeout 10{paths}{url} || true"),
        );
    }
    let head = exports(build, places) + &format!("cd {}\n", quoted(&places.project_dir));
    (!commands.is_empty()).then(|| head + &with_runner_binary(saying, &commands))
}

fn download(build: &Build, places: &Places) -> Option<String> {
    let mut commands = String::new();
    for job in &build.job.dependencies {
        let id = job.get("id")?.as_u64()?;
        let token = job.get("token")?.as_str()?;
        let url = quoted(&build.runner.url);
        let line =
            format!("gitlab-runner artifacts-downloader --url {url} --token {} --id {id}", quoted(token));
        add(&mut commands, format_args!("{line}"));
    }
    let head = exports(build, places) + &format!("cd {}\n", quoted(&places.project_dir));
    (!commands.is_empty()).then(|| head + &with_runner_binary("Artifacts downloading", &commands))
}

fn upload(build: &Build, places: &Places, fits: impl Fn(&str) -> bool) -> Option<String> {
    let mut commands = String::new();
    for artifact in &build.job.artifacts {
        let when = artifact.get("when").and_then(Value::as_str).unwrap_or("on_success");
        if !fits(when) {
            continue;
        }
        let paths = path_options(artifact)?;
        let url = quoted(&build.runner.url);
        let token = quoted(&build.job.token);
        let head = format!("gitlab-runner artifacts-uploader --url {url} --token {token}");
        add(&mut commands, format_args!("{head} --id {}{paths}", build.job.id));
    }
    let head = exports(build, places) + &format!("cd {}\n", quoted(&places.project_dir));
    (!commands.is_empty()).then(|| head + &with_runner_binary("Uploading artifacts", &commands))
}

fn cleanup_file_variables(build: &Build, places: &Places) -> String {
    let temp = places.temp_project_dir();
    let mut text = String::new();
    for variable in variables::all(build, places).iter().filter(|variable| variable.file) {
        add(&mut text, format_args!("rm -f {}", quoted(&format!("{temp}/{}", variable.key))));
    }
    add(&mut text, format_args!("rm -f -r {}", quoted(&format!("{temp}/gitlab_runner_env"))));
    text
}

// ANSI-C quoting, the way the runner writes scripts: `$'…'`.

/// Quotes any bytes for bash; plain text stays as it is.
pub(super) fn ansi_c(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=,@%+".contains(byte);
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut quoted = String::from("$'");
    for &byte in bytes {
        match byte {
            b'\n' => quoted.push_str("\\n"),
            b'\r' => quoted.push_str("\\r"),
            b'\t' => quoted.push_str("\\t"),
            b'\\' => quoted.push_str("\\\\"),
            b'\'' => quoted.push_str("\\'"),
            0x20..=0x7e => quoted.push(byte.into()),
            _ => write!(quoted, "\\x{byte:02X}").expect("a String takes everything"),
        }
    }
    quoted.push('\'');
    quoted
}
