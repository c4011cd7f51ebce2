//! `[pool.NAME.containers]`: which jobs run in containers, and how.

use std::net::IpAddr;
use std::path::PathBuf;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::image::ImageName;
use greenroom_core::container::settings::{
    ContainerSettings, EngineOptions, Mode, Privileged, PullPolicy, Umask,
};
use greenroom_core::execution::Shell;
use greenroom_core::glob::{self, Glob, name};
use greenroom_core::policy::{Policy, Reuse};
use greenroom_keys::Chosen;
use greenroom_keys::problem::{Place, Problem, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::{Got, ValueError};

use super::keys::{MODE, UMASK};

/// In place of names: those that jobs use.
const LEARN: &str = "learn";
/// The default of `images_warm_size`.
const LEARNED: u64 = 10 << 30;

/// The settings of the pool that the table depends on.
pub(super) struct ContainerContext<'a> {
    pub(super) policy: &'a Policy,
    pub(super) shell: &'a Got<&'static str>,
    /// Directories of jobs, which all containers have.
    pub(super) dirs: [&'a str; 2],
}

/// Reads the table; `None`: there is none, and jobs run on the instance itself.
pub(super) fn read(pool: &Table<'_>, around: &ContainerContext<'_>) -> Option<ContainerSettings> {
    let table = pool.table("containers").into_value()?;
    if let Got::Good(shell, place) = around.shell
        && *shell == Shell::Pwsh.as_str()
    {
        let problem = Problem::new("containers need `shell` \"bash\" or \"sh\"").at(place.clone(), "here");
        pool.report(problem.at(table.place(), "this pool has containers"));
    }
    let policies = policies(&table, around.policy);
    let (images_warm, images_learned) = images_warm(&table);
    let engine = table.word("engine").or_declared();
    Some(ContainerSettings {
        engine: ContainerEngine::ALL.into_iter().find(|known| known.program() == engine).unwrap_or_default(),
        mode: mode(&table),
        default_image: default_image(&table),
        images: globs(&table, "images", glob::pattern),
        services: globs(&table, "services", glob::pattern),
        services_limit: table.count("services_limit").into_value(),
        pull_policy: policies.0,
        allowed_pull_policies: policies.1,
        mirrors: mirrors(&table).into_iter().collect(),
        registry_auth: table.text("registry_auth").into_value().map(PathBuf::from),
        registry_auth_shared: table.flag("registry_auth_shared").or_declared(),
        ca: table.text("ca").into_value().map(PathBuf::from),
        privileged: privileged(&table),
        volumes: volumes(&table, &around.dirs),
        wait_for_services: Some(table.duration("wait_for_services").or_declared())
            .filter(|wait| !wait.is_zero()),
        pull_timeout: table.duration("pull_timeout").or_declared(),
        min_free_space: table.size("min_free_space").or_declared(),
        images_warm,
        images_learned,
        umask: umask(&table),
        user: table.text("user").into_value(),
        allowed_users: globs(&table, "allowed_users", user),
        options: options(&table),
    })
}

/// The first key that needs root on an instance, and why. Static hosts have no root for jobs.
pub(super) fn beyond_static_hosts(settings: &ContainerSettings) -> Option<(&'static str, &'static str)> {
    let options = &settings.options;
    let limit = "needs a control group, which the account of jobs cannot make";
    if settings.engine == ContainerEngine::Docker {
        Some(("engine", "must be Podman, because Docker's daemon is root's"))
    } else if !matches!(settings.privileged, Privileged::SingleUse | Privileged::None) {
        Some(("privileged", "would give jobs no right that they lack"))
    } else if options.memory.is_some() {
        Some(("memory", limit))
    } else if options.cpus.is_some() {
        Some(("cpus", limit))
    } else if options.pids_limit.is_some() {
        Some(("pids_limit", limit))
    } else {
        None
    }
}

fn mode(table: &Table<'_>) -> Mode {
    let got = table.word("mode");
    let mode = if got.or_declared() == MODE[1] { Mode::Always } else { Mode::Image };
    if let Got::Good(_, place) = got
        && mode == Mode::Always
        && !table.has("default_image")
    {
        let problem = Problem::new("`mode` = \"always\" requires `default_image`").at(place, "here");
        table.report(problem.help("name the image of jobs that name none: `default_image = \"IMAGE\"`"));
    }
    mode
}

fn default_image(table: &Table<'_>) -> Option<String> {
    table.parsed("default_image", table.text("default_image"), glob::image).into_value()
}

/// Complete names, each once; or the most bytes of those that are learned.
fn images_warm(table: &Table<'_>) -> (Vec<ImageName>, Option<u64>) {
    let texts = table.texts("images_warm").into_value().unwrap_or_default();
    let most = table.size("images_warm_size").into_value();
    if let [(text, _)] = texts.as_slice()
        && text == LEARN
    {
        return (Vec::new(), Some(most.unwrap_or(LEARNED)));
    }
    let mut names = Vec::new();
    for (text, place) in &texts {
        let parse = |text: &str| {
            let wrong =
                |why| ValueError::unusable_entry(text, format!("which is not the name of an image: {why}"));
            ImageName::parse(text).map_err(wrong)
        };
        let parsed = table.parsed("images_warm", Got::Good(text.as_str(), place.clone()), parse);
        names.extend(parsed.into_value().filter(|name| !names.contains(name)));
    }
    (names, None)
}

/// The policies of the pool, and those that jobs may name. Another trust domain's job must not run an image that an
/// earlier one pulled with its password, so the default depends on whom an instance serves.
fn policies(table: &Table<'_>, policy: &Policy) -> (Vec<PullPolicy>, Vec<PullPolicy>) {
    let read = |name: &str| {
        let words = table.words(name);
        words.map(|words| {
            let of = |word: &&str| PullPolicy::ALL.into_iter().find(|known| known.as_str() == *word);
            words.iter().filter_map(of).collect::<Vec<PullPolicy>>()
        })
    };
    let one_domain = policy.max_use_count == Some(1) || policy.reuse != Reuse::Any;
    let default: &[PullPolicy] = &[PullPolicy::Always, PullPolicy::IfNotPresent];
    let default = if one_domain { default } else { &default[..1] };
    let own = read("pull_policy");
    let allowed = read("allowed_pull_policies");
    let policies = own.or(default.to_vec());
    if let Got::Good(allowed, place) = &allowed
        && let Some(refused) = policies.iter().find(|policy| !allowed.contains(policy))
    {
        let what = if own.is_absent() { "the default of `pull_policy`" } else { "`pull_policy`" };
        let title = format!("`allowed_pull_policies` lacks \"{}\" of {what}", refused.as_str());
        let problem = Problem::new(title).at(place.clone(), "here");
        table.report(problem.help("add it, or set `pull_policy` to what is allowed"));
    }
    let allowed = allowed.or(policies.clone());
    (policies, allowed)
}

fn privileged(table: &Table<'_>) -> Privileged {
    match table.choice("privileged").or_declared() {
        Chosen::Word(_) => Privileged::SingleUse,
        Chosen::Flag(true) => Privileged::All,
        Chosen::Flag(false) => Privileged::None,
        Chosen::Globs(texts) => {
            for (at, text) in texts.iter().enumerate() {
                let place = Place::value_of(join(&table.path("privileged"), &at.to_string()));
                table.parsed("privileged", Got::Good(text.as_str(), place), glob::pattern);
            }
            Privileged::Images(texts.iter().map(|text| Glob::new(text)).collect())
        }
    }
}

fn umask(table: &Table<'_>) -> Umask {
    let word = table.word("umask").or_declared();
    match UMASK.iter().position(|known| *known == word) {
        Some(1) => Umask::Open,
        Some(2) => Umask::Closed,
        _ => Umask::Auto,
    }
}

fn globs<E: std::error::Error>(
    table: &Table<'_>,
    name: &str,
    check: impl Fn(&str) -> Result<(), E>,
) -> Option<Vec<Glob>> {
    let texts = table.texts(name).into_value()?;
    table.check_each(name, &texts, check);
    Some(texts.iter().map(|(text, _)| Glob::new(text)).collect())
}

/// A pattern for users.
fn user(text: &str) -> Result<(), ValueError> {
    if text.is_empty() { Err(ValueError::entry(text, "a pattern for users")) } else { Ok(()) }
}

/// Volumes with absolute paths, each path once.
fn volumes(table: &Table<'_>, dirs: &[&str]) -> Vec<String> {
    let texts = table.texts("volumes").or_declared();
    let mut inside: Vec<&str> = Vec::new();
    for (text, place) in &texts {
        let volume = table.parsed("volumes", Got::Good(text.as_str(), place.clone()), volume);
        let Got::Good(path, place) = volume else { continue };
        if dirs.contains(&path) {
            let problem = Problem::new(format!("all containers have `{path}` without a volume"));
            table.report(problem.at(place, "a directory of the pool's jobs").help("remove the entry"));
        } else if inside.contains(&path) {
            table.report(Problem::new(format!("two volumes have the path `{path}`")).at(place, "again"));
        } else {
            inside.push(path);
        }
    }
    texts.into_iter().map(|(text, _)| text).collect()
}

fn options(table: &Table<'_>) -> EngineOptions {
    let list = |name: &str, check: fn(&str) -> Result<(), ValueError>| {
        let texts = table.texts(name).or_default();
        table.check_each(name, &texts, check);
        texts.into_iter().map(|(text, _)| text).collect::<Vec<String>>()
    };
    let cpus = table.parsed("cpus", table.factor("cpus"), |cpus| {
        if cpus > 0.0 { Ok(cpus) } else { Err(ValueError::rule("be greater than 0")) }
    });
    EngineOptions {
        shm_size: table.size("shm_size").into_value(),
        extra_hosts: list("extra_hosts", extra_host),
        dns: list("dns", address),
        cap_add: list("cap_add", capability),
        cap_drop: list("cap_drop", capability),
        devices: list("devices", device),
        gpus: table.text("gpus").into_value(),
        ulimit: entries(table, "ulimit", limit).into_iter().collect(),
        tmpfs: entries(table, "tmpfs", mount_point).into_iter().collect(),
        memory: table.size("memory").into_value(),
        cpus: cpus.into_value(),
        pids_limit: table.count("pids_limit").into_value(),
        network_mtu: table.count("network_mtu").into_value(),
    }
}

/// Docker Hub, as images name it.
const HUB: &str = "docker.io";
/// Further names of Docker Hub.
const HUB_TOO: &[&str] =
    &["index.docker.io", "registry-1.docker.io", "registry.hub.docker.com", "hub.docker.com"];

/// The mirrors by their registries.
pub(super) fn mirrors(table: &Table<'_>) -> Vec<(String, String)> {
    let check = |registry: &str, text: &str| {
        if HUB_TOO.contains(&registry) {
            let why = format!("Docker Hub, which images name `{HUB}`");
            return Err(ValueError::unusable_entry(registry, why));
        }
        if !is_registry(registry) {
            return Err(ValueError::entry(registry, "the name of a registry (HOST or HOST:PORT)"));
        }
        let mirror = location(text);
        let (host, path) = mirror.split_once('/').map_or((mirror, None), |(host, path)| (host, Some(path)));
        let is_path = path.is_none_or(|path| !path.is_empty() && name(path, "").is_ok());
        if !is_registry(host) || !is_path {
            // It may have a password.
            let rule = format!("have HOST, HOST:PORT or one of these with a path for `{registry}`");
            return Err(ValueError::rule(rule));
        }
        if mirror == registry {
            return Err(ValueError::rule(format!("have another mirror for `{registry}` than itself")));
        }
        Ok(())
    };
    let plain = |text: &str| text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/').to_owned();
    let entries = entries(table, "mirrors", check).into_iter();
    entries.map(|(registry, text)| (registry, plain(&text))).collect()
}

/// A mirror without its scheme.
fn location(text: &str) -> &str {
    let location = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    location.unwrap_or(text).trim_end_matches('/')
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => (host, Some(port)),
        _ => (text, None),
    };
    let is_address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match is_address {
        Some(address) => address.parse::<IpAddr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)),
    };
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// The path of a volume inside containers.
pub(super) fn volume(text: &str) -> Result<&str, ValueError> {
    let parts: Vec<&str> = text.split(':').collect();
    let (paths, options) = match parts.as_slice() {
        [path] => ([*path, *path], ""),
        [host, path] => ([*host, *path], ""),
        [host, path, options] => ([*host, *path], *options),
        _ => return Err(ValueError::entry(text, "PATH or HOST_PATH:PATH[:OPTIONS]")),
    };
    if let Some(wrong) = paths.iter().find(|path| !is_path(path)) {
        return Err(ValueError::unusable_entry(text, format!("in which `{wrong}` is not an absolute path")));
    }
    if !options.chars().all(|c| c.is_ascii_alphanumeric() || ",=-_".contains(c)) {
        return Err(ValueError::unusable_entry(text, format!("in which `{options}` are not mount options")));
    }
    Ok(tidy(paths[1]))
}

pub(super) fn device(text: &str) -> Result<(), ValueError> {
    let (paths, rights) = match text.split(':').collect::<Vec<&str>>().as_slice() {
        [path] => ([*path, *path], ""),
        [path, inside] => ([*path, *inside], ""),
        [path, inside, rights] => ([*path, *inside], *rights),
        _ => ([""; 2], ""),
    };
    let is_right = paths.iter().all(|path| is_path(path)) && rights.chars().all(|c| "rwm".contains(c));
    if is_right { Ok(()) } else { Err(ValueError::entry(text, "PATH or PATH:PATH_INSIDE[:rwm]")) }
}

/// A file system in memory.
fn mount_point(path: &str, _options: &str) -> Result<(), ValueError> {
    if is_path(path) { Ok(()) } else { Err(ValueError::entry(path, "an absolute path")) }
}

fn is_path(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && !text.contains(char::is_control)
}

fn tidy(path: &str) -> &str {
    path.trim_end_matches('/')
}

fn extra_host(text: &str) -> Result<(), ValueError> {
    let is_right = text.split_once(':').is_some_and(|(name, address)| {
        let is_name =
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        is_name && address.parse::<IpAddr>().is_ok()
    });
    if is_right { Ok(()) } else { Err(ValueError::entry(text, "NAME:ADDRESS")) }
}

pub(super) fn address(text: &str) -> Result<(), ValueError> {
    text.parse::<IpAddr>().map(drop).map_err(|_| ValueError::entry(text, "an IP address"))
}

pub(super) fn capability(text: &str) -> Result<(), ValueError> {
    let is_right = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    if is_right { Ok(()) } else { Err(ValueError::entry(text, "a capability such as \"NET_ADMIN\"")) }
}

/// A resource limit.
pub(super) fn limit(name: &str, text: &str) -> Result<(), ValueError> {
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
    let is_number = |text: &str| text == "-1" || text.parse::<u64>().is_ok();
    let is_right = match text.split_once(':') {
        Some((soft, hard)) => is_number(soft) && is_number(hard),
        None => is_number(text),
    };
    match (is_name, is_right) {
        (false, _) => Err(ValueError::entry(name, "a limit such as `nofile`")),
        (_, false) => Err(ValueError::entry(text, format!("a number, or SOFT:HARD, for `{name}`"))),
        _ => Ok(()),
    }
}

/// The entries of a table of strings, each checked.
pub(super) fn entries(
    table: &Table<'_>,
    name: &str,
    check: impl Fn(&str, &str) -> Result<(), ValueError>,
) -> Vec<(String, String)> {
    let Got::Good(entries, _) = table.map(name) else { return Vec::new() };
    for (key, text) in &entries {
        let place = Place::value_of(join(&table.path(name), key));
        table.parsed(name, Got::Good(text.as_str(), place), |text| check(key, text));
    }
    entries
}

#[cfg(test)]
mod tests;
