//! Checks inside a booted instance whether jobs can run in containers there.

mod facts;

use std::collections::BTreeSet;
use std::time::Duration;

pub(super) use facts::Facts;
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::settings::ContainerSettings;
use greenroom_core::text::quoted;
use greenroom_engine::container::script::TAKEN_OVER;
use greenroom_ports::connector::RemoteCommand;
use serde_json::Value;

use crate::cli::error::CliError;
use crate::config::PoolConfig;

const GUEST: &str = include_str!("guest.sh");
/// Only root runs an engine that all containers share.
const AS_ROOT: &str = "if [ \"$(id -u)\" = 0 ]; then exec sh; else exec sudo -n sh; fi";
/// An emulated machine takes a second for each call of the engine, and a registry that does not answer takes ten.
const WITHIN: Duration = Duration::from_mins(3);

const HUB: &str = "docker.io";
/// The hub's registry has another name than its images.
const HUB_ADDRESS: &str = "registry-1.docker.io";

/// The check of one pool.
pub(super) struct ContainerCheck {
    /// What the instances are to have.
    pub(super) engine: ContainerEngine,
    /// The pool's own limit of processes.
    pub(super) limit: Option<u64>,
    /// Contains passwords.
    script: String,
}

impl ContainerCheck {
    /// Reads the pool's files; `None`: its jobs do not run in containers.
    pub(super) fn of(pool: &PoolConfig) -> Result<Option<Self>, CliError> {
        let Some(settings) = &pool.containers else { return Ok(None) };
        let read = |path: &Option<std::path::PathBuf>| {
            let Some(path) = path else { return Ok(String::new()) };
            let named = |error| CliError::say(format!("cannot read {}: {error}", path.display()));
            std::fs::read_to_string(path).map_err(named)
        };
        let (auth, ca) = (read(&settings.registry_auth)?, read(&settings.ca)?);
        let script = script(settings, &auth, &ca);
        Ok(Some(Self { engine: settings.engine, limit: settings.options.pids_limit, script }))
    }

    pub(super) fn command(&self) -> RemoteCommand<'_> {
        RemoteCommand {
            text: AS_ROOT,
            input: &self.script,
            within: WITHIN,
            start_within: WITHIN,
            shared: false,
        }
    }
}

fn script(settings: &ContainerSettings, auth: &str, ca: &str) -> String {
    let mut logins = logins(auth);
    // Behind a mirror, the registry itself may be out of reach.
    logins.retain(|login| !login.split('/').next().is_some_and(|host| settings.mirrors.contains_key(host)));
    let mut names: BTreeSet<&str> = logins.iter().filter_map(|login| login.split('/').next()).collect();
    names.extend(settings.default_image.as_deref().map(registry_of));
    // Jobs may name any image, and most are there.
    names.extend(settings.images.is_none().then_some(HUB));
    names.retain(|name| !settings.mirrors.contains_key(*name));
    names.extend(settings.mirrors.values().map(String::as_str));
    let registries: Vec<String> = names.iter().map(|name| format!("{name} {}", address(name))).collect();
    let registries = registries.join("\n");
    let program = settings.engine.program();
    let values = [
        ("program", program),
        ("registries", registries.as_str()),
        ("logins", &logins.join(" ")),
        ("auth", auth),
        ("ca", ca),
        ("limit", &settings.engine.pids_option(settings.options.pids_limit)),
        ("dns", if settings.options.dns.is_empty() { "" } else { "yes" }),
    ];
    let values = values.map(|(name, value)| format!("{name}={}\n", quoted(value)));
    format!("{}{TAKEN_OVER}{GUEST}", values.concat())
}

/// The registries that a `config.json` has passwords for.
fn logins(auth: &str) -> Vec<String> {
    let read: Value = serde_json::from_str(auth).unwrap_or_default();
    let names = read["auths"].as_object().into_iter().flat_map(|auths| auths.keys());
    names
        .map(|name| match name.trim_start_matches("https://").trim_end_matches('/') {
            "index.docker.io" | "index.docker.io/v1" => HUB.to_owned(),
            other => other.to_owned(),
        })
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()))
        .collect()
}

/// The registry of an image: what stands before the first `/`, if it is a host's name.
fn registry_of(image: &str) -> &str {
    let first = image.split('/').next().filter(|first| first.len() < image.len());
    first.filter(|first| first.contains(['.', ':']) || *first == "localhost").unwrap_or(HUB)
}

/// Where a registry, or a mirror with or without `http://`, answers.
fn address(registry: &str) -> String {
    let (scheme, rest) = registry.split_once("://").unwrap_or(("https", registry));
    let host = rest.split('/').next().unwrap_or(rest);
    format!("{scheme}://{}/v2/", if host == HUB { HUB_ADDRESS } else { host })
}

#[cfg(test)]
pub(in crate::cli::doctor) mod tests {
    pub(in crate::cli::doctor) use super::facts::tests::provoked;
    use super::*;

    #[test]
    fn each_registry_is_tried_once_and_a_mirror_in_its_place() {
        let mut settings = ContainerSettings::default();
        let head = |settings: &ContainerSettings, auth: &str| {
            let script = script(settings, auth, "");
            script.split("\nauth=").next().unwrap().trim_start_matches("program='podman'\n").to_owned()
        };
        let hub = "docker.io https://registry-1.docker.io/v2/";
        assert_eq!(head(&settings, ""), format!("registries='{hub}'\nlogins=''"));
        settings.default_image = Some("registry.example.com:5005/g/ruby:3".to_owned());
        settings.mirrors.insert(HUB.to_owned(), "http://mirror.example.com/hub".to_owned());
        let auth = r#"{"auths":{"https://index.docker.io/v1/":{},"registry.example.com:5005/g":{}}}"#;
        let expected = "registries='http://mirror.example.com/hub http://mirror.example.com/v2/\n\
                        registry.example.com:5005 https://registry.example.com:5005/v2/'\n\
                        logins='registry.example.com:5005/g'";
        assert_eq!(head(&settings, auth), expected);
        settings.images = Some(Vec::new());
        settings.mirrors.clear();
        settings.default_image = None;
        assert_eq!(head(&settings, "{"), "registries=''\nlogins=''");
    }

    #[test]
    fn an_image_without_a_host_is_the_hubs() {
        for (image, registry) in [
            ("ruby:3.3", HUB),
            ("library/ruby", HUB),
            ("registry.example.com/ruby", "registry.example.com"),
            ("localhost/ruby", "localhost"),
            ("host:5000/ruby", "host:5000"),
        ] {
            assert_eq!(registry_of(image), registry, "{image}");
        }
    }
}
