//! What the strings of `[pool.NAME.containers]` may contain.

use std::net::IpAddr;

use greenroom_core::container::pattern::name;
use greenroom_keys::got::Got;
use greenroom_keys::problem::{Place, join};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::ValueError;

/// Docker Hub, as images name it.
const HUB: &str = "docker.io";
/// What else Docker Hub is called.
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
pub(super) fn mount_point(path: &str, _options: &str) -> Result<(), ValueError> {
    if is_path(path) { Ok(()) } else { Err(ValueError::entry(path, "an absolute path")) }
}

fn is_path(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && !text.contains(char::is_control)
}

fn tidy(path: &str) -> &str {
    path.trim_end_matches('/')
}

pub(super) fn extra_host(text: &str) -> Result<(), ValueError> {
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
